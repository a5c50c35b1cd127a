"""Calibrators of values, by closed forms and searches; of labels, by those of two classes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from gduq import calibration
from gduq.calibration import DeviationScaling, PerLabel, TemperatureScaling
from gduq.prediction import ValuePrediction
from tests.calibration.kinds import WEIGHTS, too_narrow, too_sure


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
        state = {"temperature": torch.tensor([math.exp(log)], dtype=torch.float64)}
        sizes = {"num_values": torch.tensor(1), "num_samples": torch.tensor(3)}
        q = DeviationScaling.restore(state | sizes)(p)
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


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.floats(0.01, 100.0), st.floats(-50.0, 50.0))
def test_units_do_not_matter(seed, unit, shift):
    p = too_narrow(rows=60, values=1, seed=seed)
    means, logs = p.samples.chunk(2, dim=-1)
    samples = torch.cat([means * unit + shift, logs + 2 * math.log(unit)], dim=-1)
    other = replace(p, samples=samples, target=p.target * unit + shift)
    a, b = (DeviationScaling().fit(x).value.item() for x in (p, other))
    assert a == pytest.approx(b, rel=1e-6)


# -- labels ----------------------------------------------------------------------------------------


def test_every_label_is_a_task_of_two_classes():
    p, val = too_sure(), torch.arange(240) < 140
    q = PerLabel().fit(p, rows=val)(p)
    for t in range(3):
        alone = TemperatureScaling().fit(p[p.known[:, t] & val].column(t))
        torch.testing.assert_close(q.column(t).probs, alone(p.column(t)).probs)


def test_unknown_entries_count_nowhere():
    """What stands where a label is unknown does not matter; its rows are mapped all the same."""
    p = too_sure()
    spoilt = p.samples.clone()
    spoilt[:, p.target.isnan()] = 50.0
    a, b = PerLabel().fit(p), PerLabel().fit(p.with_samples(spoilt))
    assert torch.equal(a(p).samples, b(p).samples)
    assert torch.equal(a(replace(p, target=None)).samples, a(p).samples)


def test_a_label_of_one_answer_stays_as_it_is():
    p = too_sure(labels=4)
    target = p.target.clone()
    target[:, 1] = 1.0
    target[:, 3] = math.nan
    p = replace(p, target=target)
    with pytest.warns(UserWarning, match="label 1, label 3"):
        cal = PerLabel().fit(p)
    assert cal.value[[1, 3]].tolist() == [1.0, 1.0]
    q = cal(p)
    assert torch.equal(q.samples[..., [1, 3]], p.samples[..., [1, 3]])
    assert not torch.equal(q.samples[..., 0], p.samples[..., 0])
    again = calibration.restore("PerLabel", cal.state())
    assert torch.equal(again(p).samples, q.samples)


def test_copies_without_a_label_are_left_out_of_it():
    p = too_sure()
    copy = p.with_samples(3 * p.samples)
    target = p.target.clone()
    target[:, 0] = math.nan
    copies = ([replace(copy, target=target)], [], [copy])
    some, alone, both = (PerLabel().fit(p, corrupted=c).value.tolist() for c in copies)
    assert some == [alone[0], *both[1:]]
    assert some != alone
