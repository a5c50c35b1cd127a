"""Trust: calibrated where the training data are, falling with distance, for every kind; kept."""

import math

import pytest
import torch

import gduq
from gduq.nn import GNN
from gduq.ood import Abstention, Novelty
from gduq.ood.trust import Evidence, Trust
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction
from tests.tensors import randn, seeded

ROWS = 4000


def classes(odds: float) -> ClassPrediction:
    """Rows with true odds of ``odds`` times those that the model says."""
    logits = randn(ROWS, 2, seed=0) * 2
    truth = (logits.amax(-1) - logits.amin(-1) + math.log(odds)).sigmoid()
    right = torch.rand(ROWS, generator=seeded(1)) < truth
    label = logits.argmax(-1)
    return ClassPrediction(logits, torch.where(right, label, 1 - label))


def labels() -> LabelPrediction:
    logits = randn(ROWS, 3, seed=2)
    truth = (torch.rand(ROWS, 3, generator=seeded(3)) < (2 * logits).sigmoid()).double()
    return LabelPrediction(logits, truth.masked_fill(randn(ROWS, 3, seed=4) > 1, torch.nan))


def values() -> ValuePrediction:
    outputs = torch.cat([randn(ROWS, 2, seed=5), randn(ROWS, 2, seed=6)], dim=1)
    noise = 1.5 * (outputs[:, 2:] / 2).exp() * randn(ROWS, 2, seed=7)
    return ValuePrediction(outputs, outputs[:, :2] + noise)


def far(excess: float) -> torch.Tensor:
    """All rows at the usual distance, with an excess."""
    return torch.tensor([0.0, excess]).expand(ROWS, 2)


@pytest.mark.parametrize("p", [classes(1.0), classes(2.0), labels(), values()])
def test_trust_is_the_share_of_right_answers(p):
    near = torch.zeros(ROWS, 2)
    trust = Trust().fit([Evidence(p[: ROWS // 2], near[: ROWS // 2])])
    rest = p[ROWS // 2 :]
    said, right = trust(rest, near[ROWS // 2 :]), rest.is_right(trust.tolerance)
    known = ~right.isnan()
    said, right = said[known], right[known]
    assert float(said.mean()) == pytest.approx(float(right.mean()), abs=0.025)
    sure = said > said.median()
    assert float(said[sure].mean()) == pytest.approx(float(right[sure].mean()), abs=0.04)


@pytest.mark.parametrize("p", [classes(1.0), labels(), values()])
def test_trust_falls_with_distance_to_chance(p):
    trust = Trust().fit([Evidence(p, torch.zeros(ROWS, 2))])
    said = torch.stack([trust(p, far(x)) for x in (0.0, 0.1, 1.0, 5.0, 60.0)])
    assert (said.diff(dim=0) <= 0).all()
    assert said[-1] == pytest.approx(torch.full_like(said[-1], p.chance), abs=1e-6)
    assert trust(p, far(torch.inf)).isfinite().all()


def test_twice_as_far_halves_the_odds():
    p = values()
    trust = Trust().fit([Evidence(p, torch.zeros(ROWS, 2))])
    one, two = trust(p, far(0.0)), trust(p, far(math.log(2)))
    assert torch.allclose(two / (1 - two), one / (1 - one) / 2)


@pytest.mark.parametrize("sign", [-1, 1])
def test_what_distance_tells_is_fitted_and_never_raises_trust(sign):
    """The odds of rows that are four times as far are divided by 4, or multiplied."""
    p, apart = classes(1.0), torch.rand(ROWS, generator=seeded(10)) < 0.5
    wrong = apart & (torch.rand(ROWS, generator=seeded(11)) < 0.4)
    p = ClassPrediction(p.samples, torch.where(wrong, 1 - p.label, p.target))
    log = sign * apart.double() * math.log(4)
    found = torch.stack([log, torch.zeros(ROWS)], dim=1)
    said = (trust := Trust().fit([Evidence(p, found)]))(p, found)
    right = p.is_right(trust.tolerance)
    if sign > 0:
        for rows in (apart, ~apart):
            assert float(said[rows].mean()) == pytest.approx(float(right[rows].mean()), abs=0.03)
    else:
        assert float(trust.coefficients[2]) == 0.0


def test_excess_is_zero_for_most_rows_and_grows_without_end():
    train, val = randn(500, 8, seed=8), randn(400, 8, seed=9)
    novelty = Novelty().fit(train, val, seeded(0))
    excess = novelty.how_far(torch.cat([val, 5 * val, 500 * val]))[:, 1].view(3, -1)
    assert (excess[0] == 0).double().mean() == pytest.approx(0.75, abs=0.01)
    assert (excess.diff(dim=0) > 0).all()
    assert excess[2].mean() - excess[1].mean() == pytest.approx(4.6, abs=0.5)  # log 100


def test_rows_that_repeat_have_an_excess():
    rows = torch.eye(4, dtype=torch.float64).repeat(30, 1)
    novelty = Novelty().fit(rows, rows[:40], seeded(0))
    near, far = novelty.how_far(torch.cat([rows[:4], 9 * rows[:4]]))[:, 1].view(2, -1)
    assert (near == 0).all()
    assert ((far > 0) & far.isfinite()).all()


@pytest.fixture(scope="module")
def model():
    splits = gduq.data.load("motif/size/covariate", limit=300)
    model = gduq.anchor(GNN(splits.train.graphs[0].num_features, 16, 3, 2, task="graph"), seed=0)
    gduq.fit(model, splits.train, splits.id_val, epochs=2, progress=False)
    return model, splits


def test_a_fitted_model_says_it_and_keeps_it(model, tmp_path):
    model, splits = model
    known, shifted = (gduq.predict(model, s) for s in (splits.id_test, splits.ood_test))
    assert known.trust.shape == (len(known),)
    assert float(shifted.trust.mean()) < float(known.trust.mean())
    assert "trust" in known.to_pandas()
    assert gduq.predict(model, splits.id_test, novelty=False).trust is None
    gduq.save(model, tmp_path / "bundle")
    again = gduq.predict(gduq.load(tmp_path / "bundle")[0], splits.id_test)
    assert torch.equal(again.trust, known.trust)
    forged = Trust()
    forged.load_state_dict(Trust().state_dict() | {"coefficients": torch.ones(2).double()})
    assert not forged.fitted
    parts = [known[:5], known[5:]]
    assert torch.equal(gduq.Prediction.concatenate(parts).trust, known.trust)


def test_abstention_goes_by_trust(model):
    model, splits = model
    p = gduq.predict(model, splits.id_val)
    decided = Abstention(coverage=0.5).fit(p)(p)
    assert decided.p.trust[decided.kept].min() >= decided.p.trust[~decided.kept].max()
    with pytest.raises(gduq.InputError, match="trust"):
        Abstention(coverage=0.5).fit(p)(gduq.predict(model, splits.id_val, novelty=False))
