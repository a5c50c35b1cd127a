"""Files of graphs are answered by models of every kind: classes, labels with gaps, values."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

import gduq
from gduq.cli.request import Request
from gduq.conformal import ConformalIntervals, ConformalLabels
from gduq.data import save
from gduq.errors import InputError
from gduq.nn import GNN
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction
from gduq.serve.files import predict_files
from gduq.serve.service import REASONS, Decisions, Service
from gduq.serve.settings import Settings

NAMES = ("logP", "mass")


def graphs(count: int, targets: int, labels: bool, seed: int = 0) -> list[Data]:
    """Small graphs whose features tell the truth; some labels are unknown."""
    generator, found = torch.Generator().manual_seed(seed), []
    for i in range(count):
        nodes = 2 + i % 4
        x = torch.randn(nodes, 3, generator=generator)
        y = x.mean(0)[:targets].view(1, -1)
        if labels:
            y = (y > 0).float()
            y[torch.rand(y.shape, generator=generator) < 0.2] = torch.nan
        edges = torch.stack([torch.arange(nodes), torch.arange(nodes).roll(1)])
        found.append(Data(x=x, edge_index=edges, y=y))
    return found


def fitted(targets: int, labels: bool) -> torch.nn.Module:
    kind = gduq.prediction.Labels if labels else gduq.prediction.Values
    net = GNN(3, 8, targets if labels else 2 * targets, num_layers=1, head="mlp")
    train, val = graphs(60, targets, labels, 1), graphs(40, targets, labels, 2)
    gduq.fit(net, train, val, epochs=3, target=kind(names=NAMES[:targets]), progress=False)
    return net


@pytest.fixture(scope="module", params=[(1, False), (2, False), (2, True)], ids=str)
def case(request) -> tuple[int, bool, torch.nn.Module]:
    return (*request.param, fitted(*request.param))


@pytest.mark.filterwarnings("ignore:calibrated on")
def test_files_are_answered(case, tmp_path):
    targets, labels, model = case
    path = save(graphs(30, targets, labels, 3), tmp_path / "graphs.safetensors")
    service = Service(model)
    assert service.kind == ("labels" if labels else "values")
    assert service.score == "novelty"
    done = predict_files(service, [path], tmp_path / "out.parquet")
    table = pd.read_parquet(done.path)
    p = gduq.predict(model, graphs(30, targets, labels, 3))
    assert p.novelty is not None
    unlike = ["unlike training data" if n > 0.99 else "" for n in p.novelty]
    found = table["abstain"].fillna("").tolist()
    assert found == unlike  # all that can be said without labelled rows
    assert done.abstained == sum(map(bool, unlike))
    end = "" if targets == 1 else "_mass"
    if labels:
        assert table["prob_mass"].to_numpy() == pytest.approx(p.probs[:, 1].numpy())
        assert table["label_mass"].dtype == "int64"
    else:
        mean = p.mean if targets == 1 else p.mean[:, 1]
        assert table[f"mean{end}"].to_numpy() == pytest.approx(mean.numpy(), abs=1e-5)
    assert not [name for name in table if name.startswith("target")], "labels are not used"


def test_a_reference_adds_decisions(case, tmp_path):
    targets, labels, model = case
    path = save(graphs(30, targets, labels, 3), tmp_path / "graphs.safetensors")
    service = Service(model, settings=Settings(alpha=0.2, coverage=0.7))
    known = service.answer(graphs(40, targets, labels, 2))
    done = predict_files(service.refer_to(known), [path], tmp_path / "out.parquet")
    table = pd.read_parquet(done.path)
    p = gduq.predict(model, graphs(30, targets, labels, 3))
    if labels:
        sets = ConformalLabels(0.2, shift_level=0).fit(known)(p).mask
        expected = [row.nonzero().flatten().tolist() for row in sets[:, 1]]
        assert [list(row) for row in table["conformal_set_mass"]] == expected
    else:
        held = ConformalIntervals(0.2, shift_level=0).fit(known)(p).column(targets - 1)
        end = "" if targets == 1 else "_mass"
        assert table[f"conformal_low{end}"].to_numpy() == pytest.approx(held.low.numpy(), abs=1e-5)
    flags = [name for name in table if name.startswith("abstain_")]
    assert flags == ([] if targets == 1 else [f"abstain_{name}" for name in NAMES])
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
    assert columns["abstain_1"] == ["ambiguous"] * 5
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
    unlike, disagree, ambiguous = REASONS
    assert found == [None, unlike, disagree, ambiguous, unlike]
    bare = replace(strange, novelty=None)
    lenient = Decisions(replace(settings, max_epistemic=1), known).columns(bare)["abstain"]
    assert lenient == [None, None, ambiguous, ambiguous, ambiguous]


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


def test_one_hypothesis_never_disagrees():
    known = ClassPrediction(torch.randn(1, 50, 2), target=torch.zeros(50).long())
    found = Decisions(Settings(max_epistemic=0.0), known).columns(known)["abstain"]
    assert "hypotheses disagree" not in found


def test_scores_and_wishes_must_fit_the_kind():
    model = fitted(1, False)
    with pytest.raises(InputError):
        Service(model, settings=Settings(ood_score="energy"))
    known = ValuePrediction(torch.zeros(1, 9, 2), target=torch.zeros(9))
    with pytest.raises(InputError):
        Decisions(Settings(accuracy=0.9), known)


def test_a_bundle_that_carries_labelled_rows_needs_no_calibration_data(case, tmp_path):
    targets, labels, model = case
    known = gduq.predict(model, graphs(40, targets, labels, 2))
    path = gduq.save(model, tmp_path / "model", reference=known)
    service, new = Request(bundle=path).service(), graphs(5, targets, labels, 3)
    found = service.columns(service.answer(new))
    expected = Service(model).refer_to(known).columns(service.answer(new))
    decided = [name for name in found if name.startswith(("conformal_", "abstain", "ood_"))]
    assert decided[0].startswith("conformal_")
    assert [found[name] for name in decided] == [expected[name] for name in decided]
    gduq.save(model, tmp_path / "model")
    assert Request(bundle=path).service().reference is None
