"""What every calibrator for classes must do. A new one gets all of it by naming its factory:

class TestMine(CalibratorBattery):
    def make(self, case):
        return Mine()
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gduq.calibration.base import RowTemperature
from gduq.novelty import ood_scores as ood
from gduq.prediction import Prediction
from tests.calibration.any_kind import ROWS, SAMPLES, WEIGHTS, AnyBattery, Case
from tests.calibration.kinds import overconfident

__all__ = [
    "CLASSES",
    "ROWS",
    "SAMPLES",
    "WEIGHTS",
    "CalibratorBattery",
    "make_case",
    "nll",
    "overconfident",
]

CLASSES = 4


def make_case(
    classes: int = CLASSES, samples: int = SAMPLES, dtype: torch.dtype = torch.float64
) -> Case:
    return Case.of(overconfident(classes=classes, samples=samples, dtype=dtype))


def nll(p: Prediction) -> float:
    """Of the mixture."""
    return float(F.nll_loss(p.log_probs.double(), p.target))


class CalibratorBattery(AnyBattery):
    """The tests of those for classes; a subclass says how to make its calibrator."""

    kind = "classes"
    size = CLASSES

    def drawn(self, size, samples=SAMPLES, dtype=torch.float64):
        return overconfident(classes=size, samples=samples, dtype=dtype)

    def said(self, p: Prediction) -> Tensor:
        return p.samples

    def mixed(self, p: Prediction) -> Tensor:
        return p.probs

    def nll(self, p: Prediction) -> float:
        return nll(p)

    def misled(self, p: Prediction) -> Prediction:
        noise = torch.randn(p.logits.shape, generator=torch.Generator().manual_seed(3))
        return p.with_samples(p.samples + 4 * noise)

    def test_every_ood_score_still_finds_a_planted_shift(self, case, fitted):
        """Of shifted rows the logits shrink and the hypotheses differ more."""
        far = 0.4 * case.p.logits + 3 * (case.p.samples - case.p.logits)
        strange = fitted(case.p.with_samples(far), rows=case.test)
        for score in [name for name in ood.scores_for("classes") if name != "novelty"]:
            assert ood.auroc(fitted(case.p, rows=case.test), strange, score) > 0.6, score

    def test_keeps_labels_if_it_says_so(self, case, fitted):
        """Of the mixture always, or of a single hypothesis only."""
        if fitted.keeps_accuracy:
            assert torch.equal(fitted(case.p).label, case.p.label)
        alone = make_case(samples=1)
        q = self.make(alone).fit(alone.p, rows=alone.val)(alone.p)
        if fitted.keeps_order or fitted.keeps_accuracy:
            assert torch.equal(q.label, alone.p.label)
        else:
            assert not torch.equal(q.label, alone.p.label)

    def test_keeps_the_order_of_classes_if_it_says_so(self, case, fitted):
        if fitted.keeps_order:
            assert torch.equal(fitted(case.p).samples.argsort(-1), case.p.samples.argsort(-1))

    def test_keeps_labels_in_single_precision_at_near_ties(self):
        kind = type(self.make(make_case()))
        samples = SAMPLES if kind.keeps_accuracy else 1
        if not (kind.keeps_accuracy or kind.keeps_order):
            pytest.skip("may change labels")
        case = make_case(samples=samples, dtype=torch.float32)
        calibrator = self.make(case).fit(case.p, rows=case.val)
        base = case.p.samples[:, :, :1].expand_as(case.p.samples)
        ulps = torch.randint(-3, 4, base.shape, generator=torch.Generator().manual_seed(5))
        close = base * (1 + ulps * torch.finfo(torch.float32).eps)
        p = case.p.with_samples(close.contiguous())
        assert torch.equal(calibrator(p).label, p.label)

    def test_acts_on_what_it_says(self, case, fitted):
        """The mixture: a function of its probabilities. Samples: each mapped by itself."""
        p, q = case.p, fitted(case.p)
        assert fitted.acts_on in ("samples", "mixture")
        if fitted.acts_on == "mixture":
            alone = self.restored(fitted, case, samples=1)
            once = alone(p.with_samples(p.log_probs[None]))
            torch.testing.assert_close(q.probs, once.probs, rtol=1e-7, atol=1e-9)
            return
        if isinstance(fitted, RowTemperature):  # from whatever it reads, one for all hypotheses
            expected = p.samples / fitted.temperature(p)[:, None]
            torch.testing.assert_close(q.samples, expected, rtol=1e-9, atol=1e-9)
            return
        alone = self.restored(fitted, case, samples=1)
        for k in range(SAMPLES):
            once = alone(p.with_samples(p.samples[k : k + 1]))
            torch.testing.assert_close(q.samples[k], once.samples[0], rtol=1e-9, atol=1e-9)

    def test_disagreement_stays(self, case, fitted):
        """Rows that differed more before still differ more, and equal samples stay equal."""
        before, after = case.p.epistemic, fitted(case.p).epistemic
        assert torch.isfinite(after).all()
        low, high = before.argsort()[:60], before.argsort()[-60:]
        assert after[high].mean() > 2 * after[low].mean() > 0
        agreed = case.p.with_samples(case.p.logits.expand(SAMPLES, -1, -1).contiguous())
        assert fitted(agreed).spread.max() < 1e-9

    def test_a_one_logit_task_is_two_logits(self, case):
        two = make_case(classes=2)
        one = two.p.samples[:, :, 1:] - two.p.samples[:, :, :1]
        p = Prediction(one, two.p.target, features=two.p.features)
        q = self.make(two).fit(p, rows=two.val)(p)
        assert q.num_classes == 2
        assert nll(q) < nll(p)

    def test_huge_logits_stay_finite(self, case, fitted):
        p = case.p.with_samples(case.p.samples * 1e4)
        assert torch.isfinite(fitted(p).probs).all()
