"""Calibrators of values: the battery, closed forms, searches by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Tensor

from gduq.calibration import DeviationScaling, methods_for
from gduq.prediction import ValuePrediction
from tests.calibration.battery import SAMPLES, WEIGHTS, AnyBattery
from tests.calibration.kinds import too_narrow


class ValueBattery(AnyBattery):
    kind = "values"
    size = 2

    def drawn(self, size, samples=SAMPLES, dtype=torch.float64):
        return too_narrow(values=size, samples=samples, dtype=dtype)

    def answers(self, p: ValuePrediction) -> Tensor:
        ends = p.interval(0.8)
        return torch.stack([p.mean, p.std, *ends, p.log_prob(0.3), p.cdf(0.3)])

    def mixed(self, p: ValuePrediction) -> Tensor:
        return self.answers(p)

    def nll(self, p: ValuePrediction) -> float:
        return -float(p.log_prob(p.target).mean())

    def misled(self, p: ValuePrediction) -> ValuePrediction:
        noise = torch.randn(p.mean.shape, generator=torch.Generator().manual_seed(3))
        moved = p.means + 8 * noise * p.std
        return p.with_samples(torch.cat([moved, p.samples[..., p.num_values :]], dim=-1))

    def test_huge_deviations_stay_finite(self, case, fitted):
        far = case.p.samples * torch.tensor([1e4, 1e4, 1.0, 1.0])
        assert torch.isfinite(self.answers(fitted(case.p.with_samples(far)))).all()

    def test_an_empty_prediction_comes_back_empty(self, case, fitted):
        assert fitted(case.p[:0]).samples.shape == (SAMPLES, 0, 4)


MAKERS = {name: lambda case, cls=cls: cls() for name, cls in methods_for("values").items()}


class TestValues(ValueBattery):
    makers = MAKERS


def test_one_hypothesis_has_a_closed_form():
    p = too_narrow(values=3, samples=1)
    z = (p.target - p.mean) / p.std
    expected = ((z.square().sum(dim=0) + 1) / (len(p) + 1)).sqrt()
    cal = DeviationScaling().fit(p)
    torch.testing.assert_close(cal.value, expected)
    torch.testing.assert_close(cal(p).std, p.std * expected)
    torch.testing.assert_close(cal(p).mean, p.mean)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("factor", [0.05, 0.4, 1.0, 7.0])
def test_several_hypotheses_by_hand(weights, factor):
    """The same bottom as that of a fine grid and golden section, on what users see."""
    p = replace(too_narrow(values=1), weights=weights)
    means, logs = p.samples.chunk(2, dim=-1)
    p = p.with_samples(torch.cat([means, logs + 2 * math.log(factor)], dim=-1))

    def loss(log: float) -> float:
        state = {"scale": torch.tensor([math.exp(log)], dtype=torch.float64)}
        sizes = {"num_values": torch.tensor(1), "num_samples": torch.tensor(3)}
        q = DeviationScaling.restore({}, state | sizes)(p)
        extra = log + 0.5 * math.exp(-2 * log)
        return -float(q.log_prob(p.target).mean()) + extra / len(p)

    start = min(np.linspace(math.log(0.02), math.log(50), 200), key=loss)
    ends = start - 0.05, start + 0.05
    hand = minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-9})
    found = DeviationScaling().fit(p).value.log().item()
    assert loss(found) <= hand.fun + 1e-9
    if factor >= 0.4:  # narrow hypotheses make several bottoms of nearly equal depth
        assert found == pytest.approx(hand.x, abs=1e-5)


@pytest.mark.parametrize("samples", [1, 2])
def test_a_few_exact_answers_are_not_certainty(samples):
    p = ValuePrediction(torch.zeros(samples, 3, 2), target=torch.zeros(3))
    assert DeviationScaling().fit(p).value.item() == pytest.approx(0.5, abs=1e-6)
    far = replace(p, target=torch.full((3,), 1e9))
    assert DeviationScaling().fit(far).value.item() == pytest.approx(100.0)


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.floats(0.01, 100.0), st.floats(-50.0, 50.0))
def test_units_do_not_matter(seed, unit, shift):
    p = too_narrow(rows=60, values=1, seed=seed)
    means, logs = p.samples.chunk(2, dim=-1)
    samples = torch.cat([means * unit + shift, logs + 2 * math.log(unit)], dim=-1)
    other = replace(p, samples=samples, target=p.target * unit + shift)
    a, b = (DeviationScaling().fit(x).value.item() for x in (p, other))
    assert a == pytest.approx(b, rel=1e-6)
