"""The pages of results: those in the repository are what the figures in it make."""

from __future__ import annotations

import re

import pandas as pd

from gduq_reproduction.pages import ROOT, Claim, by_cell, claimed, pages, tables
from gduq_reproduction.scoring import HIGHER


def test_pages_are_those_of_the_figures():
    for name, text in pages(*tables()).items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, name
        assert not re.search(r"\bnan\b", text.lower()), name


def test_the_best_of_several_and_each_of_them():
    keys = {"seed": 0, "split": "ood_test"}
    errors = {"none": (0.2, 0.6, 0.7), "dirichlet": (0.4, 0.3, 0.5), "spline": (0.1, 0.4, 0.2)}
    errors["dirichlet, published"] = (0.5, 0.1, 0.4)  # goes before the one with a prior
    rows = [
        {**keys, "cell": "tu/NCI1/size gin", "method": m, "calibration": level, "ece": ece}
        for level, own in errors.items()
        for m, ece in zip(("plain", "L1", "L2"), own, strict=True)
    ]
    claims = {
        "or": Claim("sizes", "L1|none or L2|none", "plain|none", "ece"),
        "each": Claim("sizes", "L1|each", "plain|each", "ece"),
        "one": Claim("tu/NCI1/size", "L1|dirichlet", "L2|dirichlet", "ece"),
    }
    counts = claimed(by_cell(pd.DataFrame(rows)), claims)
    count = [(c["won"], c["of"], c["theirs"], c["ours"]) for c in counts.values()]
    assert "msp_val" in HIGHER
    assert count == [(0, 1, 0.2, 0.6), (1, 3, 0.267, 0.367), (1, 1, 0.4, 0.1)]
