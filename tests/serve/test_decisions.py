"""Files of graphs are answered by models of every kind, and decided about."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

import gduq
from gduq import conformal
from gduq.cli.request import Request
from gduq.data import save
from gduq.errors import InputError
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction
from gduq.serve.files import predict_files
from gduq.serve.server import Settings
from gduq.serve.service import REASONS, Decisions, Service
from tests.serve.cases import KINDS, model, molecules, service

pytest.importorskip("rdkit")


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


def test_files_are_answered(kind, tmp_path):
    path = save(molecules(kind)[:20], tmp_path / "graphs.safetensors")
    of = service(kind)
    assert (of.kind, of.score) == (kind, "novelty")
    done = predict_files(of, [path], tmp_path / "out.parquet", batch_size=7)
    table = pd.read_parquet(done.path)
    p = replace(gduq.predict(model(kind), molecules(kind)[:20]), target=None)
    for name, values in of.columns(p).items():
        if name not in ("class", "abstain"):
            assert table[name].tolist() == pytest.approx(values, abs=1e-5), name
    unlike = ["unlike training data" if n > 0.99 else "" for n in p.novelty]
    assert table["abstain"].fillna("").tolist() == unlike  # all that is known without labelled rows
    assert done.abstained == sum(map(bool, unlike))
    assert not [name for name in table if name.startswith("target")], "labels are not used"


def test_files_of_other_columns_make_one_table(tmp_path):
    bare = [Data(**{**graph.to_dict(), "smiles": None}) for graph in molecules("classes")[:3]]
    (tmp_path / "t.csv").write_text("smiles\nCCO\n")
    sources = [save(bare, tmp_path / "bare.safetensors"), tmp_path / "t.csv"]
    table = pd.read_csv(predict_files(service(), sources, tmp_path / "out.csv").path)
    assert table["smiles"].fillna("").tolist() == ["", "", "", "CCO"]
    assert table["novelty"].between(0, 1).all()


@pytest.mark.filterwarnings("ignore:calibrated on")
def test_a_reference_adds_decisions(kind, tmp_path):
    path = save(molecules(kind), tmp_path / "graphs.safetensors")
    of = Service(model(kind), settings=Settings(alpha=0.2, coverage=0.7))
    known = of.answer(molecules(kind))
    done = predict_files(of.refer_to(known), [path], tmp_path / "out.parquet")
    table = pd.read_parquet(done.path)
    held = conformal.make(known, alpha=0.2, shift_level=0).fit(known)(known)
    if kind == "values":
        low = held.column(0).low if held.low.dim() > 1 else held.low
        assert table["conformal_low"].to_numpy() == pytest.approx(low.numpy(), abs=1e-5)
    else:
        mask, end = (held.mask[:, 1], "_not tiny") if kind == "labels" else (held.mask, "")
        expected = [row.nonzero().flatten().tolist() for row in mask]
        assert [list(row) for row in table[f"conformal_set{end}"]] == expected
    flags = [name for name in table if name.startswith("abstain_")]
    assert flags == (["abstain_big", "abstain_not tiny"] if kind == "labels" else [])
    if flags:
        assert (table["abstain"].notna() == table[flags].notna().all(axis=1)).all()
    assert done.abstained == table["abstain"].notna().sum() == sum(done.reasons.values())
    assert 0 < table[flags or ["abstain"]].notna().to_numpy().mean() < 0.8
    assert done.shift_pvalue is not None


def test_a_label_nobody_knows_is_abstained_from():
    y = torch.tensor([[0.0], [1.0]]).repeat(20, 2)
    y[:, 1] = torch.nan
    known = LabelPrediction(torch.randn(1, 40, 2), target=y)
    columns = Decisions(Settings(), known).columns(known[:5])
    assert columns["abstain_1"] == ["not sure enough"] * 5
    assert columns["conformal_set_1"] == [[0, 1]] * 5
    assert None in columns["abstain"]


def rows(novelty: torch.Tensor, spread: torch.Tensor, mean: torch.Tensor) -> ClassPrediction:
    """Two hypotheses that differ by a spread."""
    samples = torch.stack([mean + spread, mean - spread])
    logits = torch.stack([samples, -samples], dim=2)
    return ClassPrediction(logits, target=torch.zeros(len(mean)).long(), novelty=novelty)


def test_the_reason_to_abstain_is_the_first_that_applies():
    count = 1000
    known = rows(
        torch.linspace(0, 1, count), torch.linspace(0, 1, count).flip(0), torch.full((count,), 3.0)
    )
    strange = rows(
        torch.tensor([0.5, 0.95, 0.5, 0.5, 0.95]),
        torch.tensor([0.1, 0.1, 3.0, 0.0, 3.0]),
        torch.tensor([3.0, 3.0, 0.0, 0.0, 0.0]),
    )
    settings = Settings(max_novelty=0.9, max_epistemic=0.9)
    found = Decisions(settings, known).columns(strange)["abstain"]
    unlike, disagree, unsure = REASONS
    assert found == [None, unlike, disagree, unsure, unlike]
    bare = replace(strange, novelty=None)
    lenient = Decisions(replace(settings, max_epistemic=1), known).columns(bare)["abstain"]
    assert lenient == [None, None, unsure, unsure, unsure]


@pytest.mark.parametrize("coverage", [0.7, 0.9])
def test_all_reasons_together_leave_the_wished_coverage(coverage):
    generator = torch.Generator().manual_seed(0)
    novelty, spread, mean = torch.rand(3, 4000, generator=generator)
    known, new = (
        rows(novelty[part], spread[part], mean[part]) for part in (slice(2000), slice(2000, None))
    )
    reasons = Decisions(Settings(coverage=coverage), known).columns(new)["abstain"]
    assert reasons.count(None) / len(reasons) == pytest.approx(coverage, abs=0.03)
    assert set(reasons) == {None, *REASONS}


@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_sets_may_be_asked_to_hold_a_rare_class_too(kind):
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(4000, generator=generator) < 0.04).long()
    logit = 2 * y - 4 + torch.randn(4000, generator=generator)
    if kind == "classes":
        known = ClassPrediction(torch.stack([torch.zeros(4000), logit], dim=1), target=y)
    else:
        known = LabelPrediction(logit.view(-1, 1), target=y.float().view(-1, 1))
    held = {}
    for per_class in (False, True):
        sets = Decisions(Settings(per_class=per_class), known).columns(known)["conformal_set"]
        held[per_class] = sum(1 in s for s, truth in zip(sets, y, strict=True) if truth) / y.sum()
    assert held[False] < 0.1, "nine rows in ten are right without it"
    assert held[True] >= 0.9


def test_wishes_must_fit_the_kind():
    known = ValuePrediction(torch.zeros(1, 9, 2), target=torch.zeros(9))
    with pytest.raises(InputError):
        Decisions(Settings(accuracy=0.9), known)


def test_a_bundle_that_carries_labelled_rows_needs_no_calibration_data(kind, tmp_path):
    known = gduq.predict(model(kind), molecules(kind))
    path = gduq.save(model(kind), tmp_path / "model", reference=known)
    of, new = Request(bundle=path).service(), molecules(kind)[:5]
    found = of.columns(of.answer(new))
    expected = Service(model(kind)).refer_to(known).columns(of.answer(new))
    decided = [name for name in found if name.startswith(("conformal_", "abstain", "ood_"))]
    assert decided[0].startswith("conformal_")
    assert [found[name] for name in decided] == [expected[name] for name in decided]
    gduq.save(model(kind), tmp_path / "model")
    assert Request(bundle=path).service().reference is None
