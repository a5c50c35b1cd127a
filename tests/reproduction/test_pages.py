"""The pages of results: those in the repository are what the figures in it make."""

from __future__ import annotations

import json
import re

import pandas as pd
import pytest

from gduq_reproduction.pages import ROOT, pages, tables
from gduq_reproduction.summary import CLAIMS, OURS, claimed, groups, summary


@pytest.fixture(scope="module")
def made():
    return pages(*tables())


def test_pages_are_those_of_the_figures(made):
    for name, text in made.items():
        if not name.endswith(".svg"):  # which Matplotlib's version may change
            assert (ROOT / name).read_text(encoding="utf-8") == text, name
        assert not re.search(r"\bnan\b", text.lower()), name


def test_figures_of_the_summary_stay(made):
    """Some of those of commit 82c364a, by hand."""
    found = json.loads(made["results/summary.json"])
    assert found["about"] == {"cells": 31, "nodes": 16, "searched": 10}
    counts = {name: (of["won"], of["of"]) for name, of in found["comparisons"].items()}
    assert counts["ts_nll"] == (31, 31)
    assert counts["copies_nll"] == (26, 31)
    assert counts["ensemble_2.5"] == (22, 31)
    assert counts["novelty"] == (18, 21)
    assert counts["novelty_read"] == (13, 13)
    assert counts["gebm"] == (13, 16)
    assert found["means"]["ood_test"]["choose 1.2|copies"]["nll"] == 0.8
    assert found["published_claims"]["best_ece"]["won"] == 9


def test_counts_are_those_of_the_table():
    """Counted again by hand."""
    small, published = tables()
    for table, kind, prefix in ((small, "nodes", ""), (published, "sizes", "published_")):
        rows = table[(table["split"] == "ood_test") & (table["calibration"] == "none")]
        rows = rows[[kind in groups(cell) for cell in rows["cell"]]]
        done = rows[rows["method"] == "L1"][["cell", "seed"]]
        means = rows.merge(done).groupby(["cell", "method"])["ece"].mean().unstack()
        ours = means["NFA"] if kind == "nodes" else means["L1"]
        count = summary(small, published)[f"{prefix}claims"][
            "nfa_ece" if kind == "nodes" else "l1_ece"
        ]
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
    count = claimed(table, {"best_ece": CLAIMS["best_ece"]})[0]["best_ece"]
    assert (count["won"], count["of"], count["theirs"], count["ours"]) == (2, 3, 0.3, 0.267)


def test_claims_name_known_groups():
    known = {"all", "nodes", "graphs", "sizes", "shifted", "read"}
    assert {claim.group for claim in (*CLAIMS.values(), *OURS.values())} <= known


def test_every_section_of_the_replication_has_a_picture_of_its_own(made):
    sections = re.split(r"^## ", made["docs/replication.md"], flags=re.MULTILINE)[1:]
    named = [re.findall(r"!\[[^]]+\]\(([^)]+)\)", section) for section in sections]
    assert [len(names) for names in named] == [1] * 10
    assert {f"docs/{names[0]}" for names in named} == {n for n in made if n.startswith("docs/pict")}


def test_the_page_stands_alone(made):
    page = made["results/comparison.html"]
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\(|https?:|//\w", page)
    for link in set(re.findall(r"href=\"([^\"]+)\"", page)):
        inside = link.startswith("#") and f'id="{link[1:]}"' in page
        assert inside or (ROOT / "results" / link).is_file(), link
