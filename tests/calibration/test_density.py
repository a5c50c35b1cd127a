"""Density-aware calibration: distances against scikit-learn, temperatures that grow."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gduq.calibration import DensityAwareCalibration, TemperatureScaling
from gduq.calibration import density as module
from gduq.calibration.density import neighbour_distance
from gduq.errors import InputError
from gduq.prediction import Prediction
from tests.calibration.battery import nll, overconfident


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
    np.testing.assert_allclose(neighbour_distance(x, reference, 4), expected.mean(1), rtol=1e-5)


def test_temperature_grows_with_distance_and_helps():
    p, other = drifting(1500, 0), drifting(1500, 1)
    cal = DensityAwareCalibration(TRAIN).fit(p)
    assert (cal.state()["weights"] > 0).all()
    far = other.features.norm(dim=1).argsort()
    temperature = cal.temperature(other)[far]
    assert temperature[-100:].mean() > 1.5 * temperature[:100].mean()
    assert nll(cal(other)) < nll(TemperatureScaling().fit(p)(other)) - 0.01


def test_never_worse_than_temperature_scaling_on_its_own_rows():
    p = overconfident(rows=100, samples=1)  # features say nothing
    train = Prediction(torch.zeros(50, 4), features=torch.randn(50, 5, generator=torch.Generator()))
    ours = nll(DensityAwareCalibration(train).fit(p)(p))
    assert ours <= nll(TemperatureScaling().fit(p)(p)) + 1e-9


def test_units_of_features_do_not_matter():
    units = torch.tensor([1.0, 100.0, 0.01])
    p = drifting(300, 0)
    scaled = Prediction(p.samples, p.target, features=p.features * units)
    train = Prediction(TRAIN.samples, features=TRAIN.features * units)
    a = DensityAwareCalibration(TRAIN).fit(p)(p).samples
    b = DensityAwareCalibration(train).fit(scaled)(scaled).samples
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_constant_feature_is_harmless():
    p = drifting(200, 0)
    flat = [
        Prediction(q.samples, q.target, features=torch.cat([q.features, torch.ones(len(q), 1)], 1))
        for q in (TRAIN, p)
    ]
    a = DensityAwareCalibration(TRAIN).fit(p)(p).samples
    torch.testing.assert_close(DensityAwareCalibration(flat[0]).fit(flat[1])(flat[1]).samples, a)


def test_limit_keeps_some_training_rows():
    cal = DensityAwareCalibration(TRAIN, neighbors=3, limit=20, seed=1).fit(drifting(100, 0))
    assert cal.state()["reference"].shape == (20, 3)
    assert cal.config() == {"neighbors": 3, "limit": 20, "seed": 1}


def test_mistakes():
    p = drifting(50, 0)
    with pytest.raises(InputError, match=r"predictions of training rows.*train="):
        DensityAwareCalibration().fit(p)
    with pytest.raises(InputError, match="predictions with features"):
        DensityAwareCalibration(TRAIN).fit(Prediction(p.samples, p.target))
    with pytest.raises(InputError, match="predictions with features"):
        DensityAwareCalibration(Prediction(TRAIN.samples)).fit(p)
    with pytest.raises(InputError, match="width 3, got 2"):
        DensityAwareCalibration(TRAIN).fit(
            Prediction(p.samples, p.target, features=p.features[:, 1:])
        )
    bad = Prediction(p.samples, p.target, features=p.features / 0)
    with pytest.raises(InputError, match="finite features"):
        DensityAwareCalibration(TRAIN).fit(bad)
    with pytest.raises(InputError, match="at least 10 training rows, got 5"):
        DensityAwareCalibration(TRAIN[:5]).fit(p)
    with pytest.raises(InputError, match="neighbors"):
        DensityAwareCalibration(TRAIN, neighbors=0)
    with pytest.raises(InputError, match="limit"):
        DensityAwareCalibration(TRAIN, limit=5)
