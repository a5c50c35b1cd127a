"""Molecules in a report: drawn as such, with SMILES."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gduq.data import Splits, View
from gduq.data.smiles import molecules as read
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction
from gduq.report import Subject, write
from gduq.report.page import draw_molecule, examples
from tests.report.cases import evaluated
from tests.serve.cases import SMILES

pytest.importorskip("rdkit")

TRAIN = ("CCO", "c1ccccc1", "CCCCCCCC", "CC(=O)O", "Clc1ccccc1")
CLASSES = ("inactive", "active")


def view(smiles, kind="classes") -> View:
    graphs = read(smiles)
    for graph in graphs:
        size = float(graph.num_nodes)
        graph.y = torch.tensor([size / 3]) if kind == "values" else torch.tensor([int(size > 6)])
    return View(graphs)


def splits(kind="classes", name="molecules/bbbp/scaffold") -> Splits:
    train, test = view(TRAIN, kind), view(SMILES, kind)
    domains = {"ood_test": torch.arange(len(SMILES))}
    names = CLASSES if kind == "classes" else ()
    return Splits(train, ood_test=test, name=name, class_names=names, domains=domains)


def subject(kind="classes", **more) -> Subject:
    generator = torch.Generator().manual_seed(0)
    data, m = splits(kind, **more), len(SMILES)
    novelty = torch.linspace(0, 1, m)
    target = torch.cat([graph.y for graph in data.ood_test.graphs])
    draws = torch.randn(2, m, 2, generator=generator)
    if kind == "values":
        p = ValuePrediction(draws, target=target, novelty=novelty)
    else:
        p = ClassPrediction(draws, target, CLASSES, novelty=novelty)
    return Subject("mine", {"ood_test": p}, splits=data)


@pytest.mark.parametrize("kind", ["classes", "values"])
def test_the_most_novel(kind):
    mine = subject(kind)
    mine.splits.ood_test.graphs[14].id = "CHEMBL25"  # the name of a compound, where it has one
    found = list(islice(examples(mine, "ood_test", "novel"), 4))
    assert [e.title for e in found] == ["CHEMBL25", *(SMILES[i] for i in (13, 12, 11))]
    assert [e.smiles for e in found] == [SMILES[i] for i in (14, 13, 12, 11)]
    assert found[0].figures.startswith("novelty 1.00, ")
    for example in found:
        ET.fromstring(example.svg)
        assert "<use" not in example.svg


def test_labels_that_were_not_measured_are_unknown():
    nan, rows = float("nan"), 4
    graphs = read(SMILES[:rows])
    y = torch.tensor([[1, 0, nan], [0, 0, nan], [0, 0, 0], [nan, nan, nan]])
    p = LabelPrediction(torch.full((rows, 3), 2.0), y, ("a", "b", "c"))
    mine = Subject("mine", {"ood_test": p}, splits=Splits(view(TRAIN), ood_test=View(graphs)))
    truth = {e.title: e.truth for e in examples(mine, "ood_test", "uncertain")}
    told = ["a (unknown: c)", "none (unknown: c)", "none", "unknown"]
    assert truth == dict(zip(SMILES[:rows], told, strict=True))


def test_what_cannot_be_drawn_is_listed():
    plain = subject()
    graph = plain.splits.ood_test.graphs[14]
    graph.smiles = "<script>alert(1)</script>"
    example = next(examples(plain, "ood_test", "novel"))
    assert example.svg is None
    assert draw_molecule("C" * 500, "long") is None


@settings(deadline=None, max_examples=25)
@given(text=st.text(max_size=30))
def test_no_text_breaks_a_drawing(text):
    svg = draw_molecule(text, text)
    if svg is not None:
        assert svg.startswith("<svg ")
        assert "<script" not in svg


def test_the_page_shows_them(tmp_path):
    page = write(evaluated(subject()), tmp_path / "report.html").read_text()
    assert "mine: most novel" in page
    assert "FC(F)F" in page
    assert "inactive" in page
