"""Temperatures, against scipy, netcal and scikit-learn; distance and disagreement heat."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar

from gduq.calibration import (
    METHODS,
    AnchorAwareTemperature,
    DensityAwareCalibration,
    EnsembleTemperatureScaling,
    TemperatureScaling,
)
from gduq.calibration import temperatures as module
from gduq.calibration.optimise import autograd, fit_module, minimise
from gduq.errors import InputError
from gduq.prediction import Prediction
from tests.calibration.battery import nll, overconfident

P = overconfident(rows=300, samples=1)


def test_temperature_is_scipys_minimum():
    def loss(log_t):
        return float(F.cross_entropy(P.logits / np.exp(log_t), P.target))

    expected = np.exp(minimize_scalar(loss, bounds=(-4, 4), method="bounded").x)
    assert float(TemperatureScaling().fit(P).value) == pytest.approx(expected, rel=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # netcal's own, of pyro
def test_temperature_equals_netcals():
    scaling = pytest.importorskip("netcal.scaling", reason="netcal is not installed")
    theirs = scaling.TemperatureScaling()
    theirs.fit(P.probs.numpy(), P.target.numpy())
    ours = TemperatureScaling().fit(P)
    assert 1 / float(ours.value) == pytest.approx(theirs.temperature.item(), rel=1e-4)
    np.testing.assert_allclose(ours(P).probs.numpy(), theirs.transform(P.probs.numpy()), atol=1e-5)


def test_temperature_equals_scikit_learns():
    from sklearn import calibration

    if not hasattr(calibration, "_TemperatureScaling"):
        pytest.skip("this scikit-learn has no temperature scaling")
    theirs = calibration._TemperatureScaling().fit(P.logits.numpy(), P.target.numpy())
    assert float(TemperatureScaling().fit(P).value) == pytest.approx(1 / theirs.beta_, rel=1e-3)


def test_several_hypotheses_have_the_temperature_of_their_mixture():
    """Scipy's minimum of the mixture's loss, which is not that of the mean logits."""
    p = overconfident(rows=400, samples=5)
    p = p.with_samples(p.logits + 6 * (p.samples - p.logits))

    def loss(log_t):
        return nll(p.with_samples(p.samples / np.exp(log_t)))

    expected = np.exp(minimize_scalar(loss, bounds=(-4, 4), method="bounded").x)
    found = float(TemperatureScaling().fit(p).value)
    assert found == pytest.approx(expected, rel=1e-4)
    assert found < 0.9 * float(TemperatureScaling().fit(p.mean_logits()).value)


def test_a_temperature_may_move_the_label_of_a_mixture():
    """So ``keeps_accuracy`` is false: the surest hypothesis loses most of its vote."""
    samples = torch.tensor([[6.0, 0.0], [-0.4, 0.0], [-0.4, 0.0]], dtype=torch.float64)
    p = Prediction(samples.unsqueeze(1))
    cold = TemperatureScaling().neutral(2, 3)
    cold._state["temperature"] = torch.tensor(0.1, dtype=torch.float64)
    assert p.label.item() == 0
    assert cold(p).label.item() == 1
    assert not TemperatureScaling.keeps_accuracy


def separable(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(3, (rows,), generator=generator)
    noise = torch.randn(rows, 3, generator=generator)
    return Prediction((4 * F.one_hot(target, 3) + noise).double(), target)


@pytest.mark.parametrize(
    "name", ["temperature", "ensemble_temperature", "vector", "matrix", "dirichlet",
             "order_invariant", "anchor_aware"]
)  # fmt: skip
def test_validation_rows_that_are_all_right_do_not_make_it_sure_of_everything(name):
    p, other = separable(60, 0), separable(5000, 1)
    assert bool(p.correct.all())
    assert not bool(other.correct.all())
    assert nll(METHODS[name]().fit(p)(other)) < nll(other) + 0.02


def test_ensemble_weights_beat_a_grid():
    """Rows with random labels mixed in: a uniform part is needed."""
    noisy = torch.randint(4, (100,), generator=torch.Generator().manual_seed(3))
    target = torch.cat([noisy, P.target[100:]])
    p = Prediction(P.samples, target)
    cal = EnsembleTemperatureScaling().fit(p)
    state = cal.state()
    weights = state["weights"]
    assert weights.min() >= 0
    assert float(weights.sum()) == pytest.approx(1)
    parts = torch.stack(
        [(p.logits / state["temperature"]).softmax(1), p.probs, torch.full_like(p.probs, 0.25)]
    )
    grid = [
        torch.tensor([a, b, 1 - a - b], dtype=torch.float64)
        for a in np.linspace(0, 1, 41)
        for b in np.linspace(0, 1 - a, 41)
    ]
    best = min(float(F.nll_loss(torch.einsum("k,kmc->mc", w, parts).log(), target)) for w in grid)
    assert nll(cal(p)) <= best + 1e-9
    assert float(weights[2]) > 0.01
    assert nll(cal(p)) < nll(TemperatureScaling().fit(p)(p))


def test_minimise_respects_bounds():
    found = minimise(autograd(lambda v: ((v - 3) ** 2).sum()), torch.zeros(2), [(0, 1), (None, 9)])
    torch.testing.assert_close(found, torch.tensor([1.0, 3.0]).double())


def test_the_prior_of_a_module_fades_with_rows():
    def slope(rows):
        layer = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
        fit_module(layer, lambda: (layer.weight - 2).square().sum() / 2, rows, prior=1.0, steps=50)
        return layer.weight.item()

    assert slope(1) == pytest.approx(1.0)  # halfway between the prior's 0 and the data's 2
    assert slope(10_000) == pytest.approx(2.0, abs=1e-3)


def drifting(rows: int, seed: int) -> Prediction:
    """Rows that are worse the farther they lie from the origin, where training rows are."""
    generator = torch.Generator().manual_seed(seed)
    p = overconfident(rows=rows, samples=1, seed=seed)
    distance = 8 * torch.rand(rows, 1, generator=generator)
    direction = torch.nn.functional.normalize(torch.randn(rows, 3, generator=generator))
    wrong = torch.rand(rows, generator=generator) < distance.squeeze(1) / 12
    target = torch.where(wrong, (p.target + 1) % 4, p.target)
    return Prediction(p.samples, target, features=distance * direction)


TRAIN = Prediction(
    torch.zeros(300, 4), features=0.5 * torch.randn(300, 3, generator=torch.Generator())
)


def test_distances_are_scikit_learns(monkeypatch):
    from sklearn.neighbors import NearestNeighbors

    monkeypatch.setattr(module, "_CHUNK", 1000)  # several chunks
    generator = torch.Generator().manual_seed(0)
    x, reference = torch.randn(57, 6, generator=generator), torch.randn(200, 6, generator=generator)
    expected = NearestNeighbors(n_neighbors=4).fit(reference.numpy()).kneighbors(x.numpy())[0]
    np.testing.assert_allclose(
        module.neighbour_distance(x, reference, 4), expected.mean(1), rtol=1e-5
    )


def test_temperature_grows_with_distance_and_helps():
    p, other = drifting(1500, 0), drifting(1500, 1)
    cal = DensityAwareCalibration(TRAIN).fit(p)
    assert (cal.state()["weights"] > 0).all()
    far = other.features.norm(dim=1).argsort()
    temperature = cal.temperature(other)[far]
    assert temperature[-100:].mean() > 1.5 * temperature[:100].mean()
    assert nll(cal(other)) < nll(TemperatureScaling().fit(p)(other)) - 0.01


def test_units_of_features_and_a_constant_one_do_not_matter():
    def changed(q):
        scaled = q.features * torch.tensor([1.0, 100.0, 0.01])
        return Prediction(q.samples, q.target, features=F.pad(scaled, (0, 1), value=1.0))

    p = drifting(300, 0)
    a = DensityAwareCalibration(TRAIN).fit(p)(p).samples
    b = DensityAwareCalibration(changed(TRAIN)).fit(changed(p))(changed(p)).samples
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_limit_keeps_some_training_rows():
    cal = DensityAwareCalibration(TRAIN, neighbors=3, limit=20, seed=1).fit(drifting(100, 0))
    assert cal.state()["reference"].shape == (20, 3)
    assert cal.config() == {"neighbors": 3, "limit": 20, "seed": 1}


@pytest.mark.parametrize(
    ("train", "features", "match"),
    [
        (None, lambda h: h, r"predictions of training rows.*train="),
        (TRAIN, lambda h: None, "predictions with features"),
        (Prediction(TRAIN.samples), lambda h: h, "predictions with features"),
        (TRAIN, lambda h: h[:, 1:], "width 3, got 2"),
        (TRAIN, lambda h: h / 0, "finite features"),
        (TRAIN[:5], lambda h: h, "at least 10 training rows, got 5"),
    ],
)
def test_features_that_cannot_be_used(train, features, match):
    p = drifting(50, 0)
    with pytest.raises(InputError, match=match):
        DensityAwareCalibration(train).fit(
            Prediction(p.samples, p.target, features=features(p.features))
        )


def disagreeing(rows: int, seed: int, worst: float = 1.0) -> Prediction:
    """Rows whose hypotheses differ more are wrong more often, at the same confidence."""
    generator = torch.Generator().manual_seed(seed)
    p = overconfident(rows=rows, samples=1, seed=seed)
    doubt = worst * torch.rand(rows, generator=generator)
    wrong = torch.rand(rows, generator=generator) < 0.6 * doubt
    target = torch.where(wrong, (p.target + 1) % 4, p.target)
    jitter = torch.randn(8, rows, 4, generator=generator, dtype=torch.float64)
    jitter = jitter - jitter.mean(dim=0)
    return Prediction(p.samples + 2 * doubt[:, None] * jitter, target)


def test_disagreement_heats_and_helps():
    p, other = disagreeing(1500, 0), disagreeing(1500, 1)
    cal = AnchorAwareTemperature().fit(p)
    assert cal.state()["weights"][1] > 0.1
    assert nll(cal(other)) < nll(TemperatureScaling().fit(p)(other)) - 0.01


def test_temperature_is_monotone_in_disagreement():
    p = disagreeing(800, 0)
    cal = AnchorAwareTemperature().fit(p)
    assert (cal.state()["weights"][1:] >= 0).all()
    mean = p.logits
    heats = [
        cal.temperature(p.with_samples(mean + s * (p.samples - mean))) for s in (0.0, 0.5, 1, 2)
    ]
    for cool, hot in pairwise(heats):
        assert (hot >= cool - 1e-9).all()
    assert heats[-1].max() <= 100 + 1e-9


@pytest.mark.parametrize("copies", [1, 4])
def test_equal_hypotheses_are_temperature_scaling(copies):
    p = overconfident(samples=1)
    p = p.with_samples(p.samples.repeat(copies, 1, 1))
    ours, plain = AnchorAwareTemperature().fit(p), TemperatureScaling().fit(p)
    torch.testing.assert_close(ours(p).samples, plain(p).samples, rtol=1e-5, atol=1e-6)


def test_never_worse_than_temperature_scaling_on_its_own_rows():
    p = overconfident(rows=150)  # features say nothing
    train = Prediction(torch.zeros(50, 4), features=torch.randn(50, 5, generator=torch.Generator()))
    plain = nll(TemperatureScaling().fit(p)(p))
    for cal in (AnchorAwareTemperature(), DensityAwareCalibration(train)):
        assert nll(cal.fit(p)(p)) <= plain + 1e-9


def test_corrupted_copies_teach_the_slope():
    """Clean rows hardly disagree; only the copies show what disagreement means."""
    clean, copy, shifted = disagreeing(600, 0, 0.05), disagreeing(600, 1), disagreeing(600, 2)
    alone = AnchorAwareTemperature().fit(clean)
    taught = AnchorAwareTemperature().fit(clean, corrupted=[copy])
    assert nll(taught(shifted)) < nll(alone(shifted)) - 0.05
    assert nll(taught(clean)) < nll(alone(clean)) + 0.1
