"""What calibrators learn from: shares of rows, the likelihood of the mixture, its gradient."""

from __future__ import annotations

import torch

from gduq.calibration.affine import nll_and_slope
from gduq.calibration.lesson import Lesson
from gduq.calibration.optimise import autograd
from gduq.prediction import Prediction
from tests.calibration.battery import WEIGHTS, nll, overconfident


def test_half_of_the_weight_is_the_copies():
    p = overconfident(rows=6)
    assert Lesson(p).share.tolist() == [1 / 6] * 6
    lesson = Lesson(p, copies=[p[:1], p[:3]])
    assert lesson.share.tolist() == [1 / 12] * 6 + [1 / 8] * 4
    assert lesson.rows == 6
    assert torch.equal(lesson.target, torch.cat([p.target, p.target[:1], p.target[:3]]))


def test_nll_is_that_of_the_mixture_and_its_slope_autograds():
    p = overconfident(rows=30)
    p = Prediction(p.samples, p.target, weights=WEIGHTS)
    lesson = Lesson(p)
    value, slope = nll_and_slope(p.samples.clone(), lesson)
    assert abs(value - nll(p)) < 1e-12

    def loss(flat):
        each = flat.view_as(p.samples).softmax(-1)
        mixed = torch.einsum("k,knc->nc", WEIGHTS, each).log()
        return torch.nn.functional.nll_loss(mixed, p.target)

    expected = autograd(loss)(p.samples.flatten())[1]
    torch.testing.assert_close(slope.flatten(), expected, rtol=1e-9, atol=1e-12)
