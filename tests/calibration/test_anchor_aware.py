"""Anchor-aware temperature: disagreement heats, corrupted copies teach how much."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from gduq.calibration import AnchorAwareTemperature, TemperatureScaling
from gduq.errors import InputError
from gduq.prediction import Prediction
from tests.calibration.battery import nll, overconfident


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


def test_one_hypothesis_is_temperature_scaling():
    p = overconfident(samples=1)
    ours, plain = AnchorAwareTemperature().fit(p), TemperatureScaling().fit(p)
    torch.testing.assert_close(ours(p).samples, plain(p).samples, rtol=1e-5, atol=1e-6)


def test_equal_hypotheses_are_temperature_scaling():
    p = overconfident(samples=1)
    same = p.with_samples(p.samples.repeat(4, 1, 1))
    ours, plain = AnchorAwareTemperature().fit(same), TemperatureScaling().fit(same)
    torch.testing.assert_close(ours(same).probs, plain(same).probs, rtol=1e-5, atol=1e-6)


def test_never_worse_than_temperature_scaling_on_its_own_rows():
    p = overconfident(rows=150)
    plain = nll(TemperatureScaling().fit(p)(p))
    assert nll(AnchorAwareTemperature().fit(p)(p)) <= plain + 1e-9


def test_corrupted_copies_teach_the_slope():
    """Clean rows hardly disagree; only the copies show what disagreement means."""
    clean, copy, shifted = disagreeing(600, 0, 0.05), disagreeing(600, 1), disagreeing(600, 2)
    alone = AnchorAwareTemperature().fit(clean)
    taught = AnchorAwareTemperature().fit(clean, corrupted=[copy])
    assert nll(taught(shifted)) < nll(alone(shifted)) - 0.05
    assert nll(taught(clean)) < nll(alone(clean)) + 0.1


def test_copies_weigh_half_however_many():
    clean, copy = disagreeing(300, 0, 0.05), disagreeing(300, 1)
    once = AnchorAwareTemperature().fit(clean, corrupted=[copy]).state()
    thrice = AnchorAwareTemperature().fit(clean, corrupted=[copy] * 3).state()
    torch.testing.assert_close(once["weights"], thrice["weights"], rtol=1e-3, atol=1e-4)


def test_rows_and_copies_together():
    p, copy = disagreeing(300, 0), disagreeing(100, 1)
    a = AnchorAwareTemperature().fit(p, rows=slice(0, 200), corrupted=[copy])
    b = AnchorAwareTemperature().fit(p[:200], corrupted=[copy])
    assert torch.equal(a.state()["weights"], b.state()["weights"])


def test_mistakes():
    p = disagreeing(60, 0)
    cal = AnchorAwareTemperature().fit(p)
    before = cal.state()["weights"]
    with pytest.raises(InputError, match="targets"):
        cal.fit(p, corrupted=[Prediction(p.samples)])
    with pytest.raises(InputError, match="penalty"):
        AnchorAwareTemperature(penalty=-1.0)
    assert torch.equal(cal.state()["weights"], before)
