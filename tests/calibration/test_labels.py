"""One calibrator per label: the battery, the same map as for two classes, labels left alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gduq import calibration
from gduq.calibration import PerLabel, TemperatureScaling, methods_for
from gduq.prediction import LabelPrediction
from tests.calibration.battery import SAMPLES, AnyBattery
from tests.calibration.kinds import too_sure


class LabelBattery(AnyBattery):
    kind = "labels"
    size = 3

    def drawn(self, size, samples=SAMPLES, dtype=torch.float64):
        return too_sure(labels=size, samples=samples, dtype=dtype)

    def answers(self, p: LabelPrediction) -> Tensor:
        return p.samples

    def mixed(self, p: LabelPrediction) -> Tensor:
        return p.probs

    def nll(self, p: LabelPrediction) -> float:
        known = p.known
        return float(F.binary_cross_entropy(p.probs[known].double(), p.target[known].double()))

    def misled(self, p: LabelPrediction) -> LabelPrediction:
        noise = torch.randn(p.probs.shape, generator=torch.Generator().manual_seed(3))
        return p.with_samples(p.samples + 4 * noise)

    def test_disagreement_stays(self, case, fitted):
        before, after = case.p.epistemic.flatten(), fitted(case.p).epistemic.flatten()
        low, high = before.argsort()[:120], before.argsort()[-120:]
        assert after[high].mean() > 2 * after[low].mean() > 0

    def test_every_label_is_a_task_of_two_classes(self, case, fitted):
        q = fitted(case.p)
        for t in range(self.size):
            pair = case.p.column(t)
            rows = case.p.known[:, t] & case.val
            alone = TemperatureScaling().fit(case.p[rows].column(t))
            torch.testing.assert_close(q.column(t).probs, alone(pair).probs)

    def test_huge_logits_stay_finite(self, case, fitted):
        assert torch.isfinite(fitted(case.p.with_samples(case.p.samples * 1e4)).probs).all()

    def test_an_empty_prediction_comes_back_empty(self, case, fitted):
        assert fitted(case.p[:0]).samples.shape == (SAMPLES, 0, 3)


MAKERS = {name: lambda case, cls=cls: cls() for name, cls in methods_for("labels").items()}


class TestLabels(LabelBattery):
    makers = MAKERS


def test_unknown_entries_count_nowhere():
    """What stands where a label is unknown does not matter; its rows are mapped all the same."""
    p = too_sure()
    spoilt = p.samples.clone()
    spoilt[:, p.target.isnan()] = 50.0
    a, b = PerLabel().fit(p), PerLabel().fit(p.with_samples(spoilt))
    assert torch.equal(a(p).samples, b(p).samples)
    hot = a(p).samples / p.samples
    torch.testing.assert_close(hot, hot[:1, :1].expand_as(hot))
    assert (hot < 0.6).all()
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
    again = calibration.restore("PerLabel", cal.config(), cal.state())
    assert torch.equal(again(p).samples, q.samples)


def test_copies_without_a_label_are_left_out_of_it():
    p = too_sure()
    copy = p.with_samples(3 * p.samples)
    target = p.target.clone()
    target[:, 0] = math.nan
    cal = PerLabel().fit(p, corrupted=[replace(copy, target=target)])
    alone, both = PerLabel().fit(p), PerLabel().fit(p, corrupted=[copy])
    values = [c.value.tolist() for c in (cal, alone, both)]
    assert values[0] == [values[1][0], *values[2][1:]]
    assert values[0] != values[1]
