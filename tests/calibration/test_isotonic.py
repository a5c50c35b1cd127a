"""Multi-class isotonic regression, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gduq.calibration import IsotonicCalibration
from gduq.calibration.isotonic import _isotonic
from gduq.prediction import Prediction
from tests.calibration.battery import overconfident


@pytest.mark.parametrize("decimals", [1, 2, 12])
def test_the_function_is_scikit_learns(decimals):
    """Also with many equal inputs, inside and outside the range seen."""
    from sklearn.isotonic import IsotonicRegression

    generator = np.random.default_rng(0)
    x = generator.random(500).round(decimals) * 0.8 + 0.1
    hit = generator.random(500) < x**2
    theirs = IsotonicRegression(out_of_bounds="clip").fit(x, hit)
    ours = _isotonic(x, hit)
    grid = np.linspace(0, 1, 1001)
    np.testing.assert_allclose(np.interp(grid, *ours), theirs.predict(grid), atol=1e-9)


def test_calibrated_probabilities_are_the_normalised_fit():
    from sklearn.isotonic import IsotonicRegression

    p = overconfident(rows=400, samples=1)
    hit = torch.nn.functional.one_hot(p.target, 4).flatten().numpy()
    theirs = IsotonicRegression(out_of_bounds="clip").fit(p.probs.flatten().numpy(), hit)
    raw = theirs.predict(p.probs.flatten().numpy()).reshape(-1, 4) + 1e-9 * p.probs.numpy()
    expected = raw / raw.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(IsotonicCalibration().fit(p)(p).probs, expected, atol=1e-9)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000))
def test_the_order_of_all_classes_stays(seed):
    p = overconfident(rows=100, samples=1, seed=seed)
    new = IsotonicCalibration().fit(p)(p).logits
    ordered = new.gather(1, p.logits.argsort(dim=1))
    assert (ordered.diff(dim=1) >= 0).all()


def test_one_row_is_enough_for_a_function():
    p = Prediction(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    assert IsotonicCalibration().fit(p)(p).label.tolist() == [0]
