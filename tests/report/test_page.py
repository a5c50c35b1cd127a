"""The page: well-formed, self-contained, escaped, accessible, and its numbers are those found."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
import torch

from gduq.errors import InputError
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction
from gduq.report import Subject, build, write
from gduq.report.subject import main_split, split_names
from gduq.report.verdict import verdict
from tests.report.cases import (
    EVIL,
    judged,
    labels,
    of_labels,
    of_values,
    page_of_three,
    prediction,
    rare,
    three,
    values,
)

VOID = {"meta", "br", "img", "link", "hr", "input"}


class Reader(HTMLParser):
    """Checks nesting, and keeps tags and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sections: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in {tag}"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section" or dict(attrs).get("class") == "fold":
            self.sections.append(dict(attrs)["id"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    return page_of_three()


@pytest.fixture(scope="module")
def read(page) -> Reader:
    return Reader(page)


def test_the_page_is_well_formed_and_complete(page, read):
    ids = [a["id"] for _, a in read.tags if "id" in a]
    assert len(set(ids)) == len(ids)
    expected = ["verdict", "why", "about", "scorecard", "reliability", "risk", "shifted", "again"]
    assert read.sections == expected
    folds = [attributes for tag, attributes in read.tags if tag == "details"]
    assert len(folds) >= len(expected) - 1
    assert not any("open" in attributes for attributes in folds)


def test_nothing_is_loaded_from_elsewhere(page, read):
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", page)
    for _, attributes in read.tags:
        assert not {"src", "srcset", "action", "data", "background"} & set(attributes)
    assert not [t for t, _ in read.tags if t in ("link", "iframe", "object", "embed", "base")]


def test_names_are_shown_and_nothing_is_run(page, read):
    assert "script" not in [tag for tag, _ in read.tags]
    assert EVIL not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 20
    assert not [a for _, at in read.tags for a in at if a.startswith("on")]
    policy = next(a["content"] for t, a in read.tags if a.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_pictures_and_tables_are_described(read):
    for tag, attributes in read.tags:
        if tag == "svg":
            assert attributes.get("aria-label") or attributes.get("aria-hidden") == "true"
            assert attributes.get("role") == "img" or attributes.get("aria-hidden") == "true"
        if tag == "th":
            assert attributes["scope"] in ("col", "row")
    tags = [tag for tag, _ in read.tags]
    assert tags.count("caption") == tags.count("table")
    assert tags.count("h1") == 1
    assert dict(read.tags)["html"] == {"lang": "en"}


# -- other subjects ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "folds"), [(of_values, "reliability parity"), (of_labels, "labels reliability")]
)
def test_pages_about_values_and_labels(make, folds):
    page = build(make())
    expected = f"verdict why about scorecard {folds} risk shifted again"
    assert Reader(page).sections == expected.split()
    assert ("Truth and prediction, ood_test: plain: 90 % intervals:" in page) == (make is of_values)


def test_what_charts_leave_out_is_named():
    p = of_labels()[0].predictions["ood_test"]
    twice = LabelPrediction(torch.cat([p.samples] * 2, dim=2), torch.cat([p.target] * 2, dim=1))
    assert "Only in tables: 4, 5." in build(judged("m", twice))
    many = [judged(f"run {i}", prediction(m=40, seed=i)) for i in range(9)]
    assert "Only in tables: run 6, run 7, run 8." in build(many)


@pytest.mark.parametrize(
    ("p", "there"),
    [
        ({"test": prediction(m=7)}, "scorecard"),
        ({s: prediction(labelled=False) for s in ("id_test", "ood_test")}, "shifted"),
        ({s: ValuePrediction(values().samples) for s in ("id_test", "new")}, "scorecard"),
        (values(width=2), "parity"),
        (labels(width=1), "reliability"),
        (rare(0.6, 0.97), "reliability"),
        (rare(0.5, 0.97, m=40), "scorecard"),
        (ValuePrediction(torch.zeros(40, 2), torch.full((40,), 3.0)), "parity"),
        (ClassPrediction(torch.eye(2).repeat(20, 1), torch.zeros(40).long()), "reliability"),
    ],
)
def test_any_subject_has_a_page(p, there):
    subject = judged("one", p)
    page = build(subject)
    sections = Reader(page).sections
    assert there in sections
    assert "graphs" not in sections
    unknown = all(q.target is None for q in subject.predictions.values())
    assert ("No split has labels." in page) == unknown


def test_the_order_of_splits():
    names = ["noise=2", "noise=10", "other", "ood_test", "train", "id_val"]
    subject = Subject("a", dict.fromkeys(names, prediction()))
    assert split_names([subject]) == ["id_val", "ood_test", "noise=2", "noise=10", "other"]
    assert main_split([subject]) == "ood_test"


@pytest.mark.parametrize(
    "make",
    [
        lambda: build([]),
        lambda: build([prediction()]),
        lambda: Subject("a", {}),
        lambda: Subject("a", {"test": 1}),
        lambda: Subject("a", {"x": values(), "y": labels()}),
        lambda: build([of_values()[0], of_labels()[0]]),
        lambda: write(Subject("a", {"t": prediction()}), "x.docx"),
    ],
)
def test_bad_input(make):
    with pytest.raises(InputError):
        make()


# -- other formats -----------------------------------------------------------------------------


def test_json_holds_every_number_and_the_verdict(tmp_path):
    path = write(three(), tmp_path / "new" / "report.json", title="Mine")
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["verdict"]["advice"]["action"] == verdict(three()).advice.action
    assert [s["name"] for s in content["subjects"]] == ["vanilla", "mild", EVIL]
    assert len(content["table"]) == sum(len(s.result.table) for s in three())
    key = ("subject", "split", "calibrator", "variant", "measure")
    found = {tuple(r[k] for k in key): r for r in content["table"]}
    value = three()[1].result.value("ood_test", "ece", "temperature")
    row = found["mild", "ood_test", "temperature", "", "ece"]
    assert (row["value"], row["low"], row["high"]) == value
