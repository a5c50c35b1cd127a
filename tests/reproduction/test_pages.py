"""The pages of results: those in the repository are what the figures in it make."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from gduq_reproduction.pages import pages, tables
from gduq_reproduction.summary import CLAIMS, ROOT, by_cell, claimed, groups, summary


@pytest.fixture(scope="module")
def found():
    return summary(*tables())


def test_pages_are_those_of_the_figures(found):
    made = pages(found)
    for name, text in made.items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, name
        assert not re.search(r"\bnan\b", text.lower()), name


def test_counts_are_those_of_the_table(found):
    """Counted again by hand."""
    for table, kind, prefix in zip(tables(), ("nodes", "sizes"), ("", "published_"), strict=True):
        rows = table[(table["split"] == "ood_test") & (table["calibration"] == "none")]
        rows = rows[[kind in groups(cell) for cell in rows["cell"]]]
        done = rows[rows["method"] == "L1"][["cell", "seed"]]
        means = rows.merge(done).groupby(["cell", "method"])["ece"].mean().unstack()
        ours = means["NFA"] if kind == "nodes" else means["L1"]
        count = found[f"{prefix}claims"]["nfa_ece" if kind == "nodes" else "l1_ece"]
        assert count["won"] == int((ours < means["plain"]).sum())
        assert count["ours"] == round(float(ours.mean()), 3)


def test_the_best_of_several_networks():
    errors = {"gin": (0.2, 0.6, 0.7, 0.1), "pna": (0.4, 0.3, 0.5, 0.6), "gcn": (0.3, 0.4, 0.4, 0.9)}
    keys = {"seed": 0, "split": "ood_test", "calibration": "none"}
    rows = [
        {**keys, "cell": f"tu/NCI1/size {conv}", "method": method, "ece": ece}
        for conv, own in errors.items()
        for method, ece in zip(("plain", "L1", "L2", "readout"), own, strict=True)
    ]
    more = ["nll", "brier", "ece_debiased", "aurc", "accuracy", "errors", "auroc", "cost"]
    table = pd.DataFrame(rows).reindex(columns=[*rows[0], *more])
    count = claimed(by_cell(table), {"best_ece": CLAIMS["best_ece"]})["best_ece"]
    assert (count["won"], count["of"], count["theirs"], count["ours"]) == (2, 3, 0.3, 0.267)
