"""Predicted accuracies against definitions, and on data where they should come true."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gduq import metrics
from gduq.errors import InputError
from gduq.metrics.resampling import interval, resample_counts
from gduq.ood import predict_accuracy
from gduq.ood.generalization import estimate_interval
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction


def calibrated(m: int, scale: float, seed: int, samples: int = 1) -> ClassPrediction:
    """Rows whose labels follow their softmax; ``samples`` hypotheses around them."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(m, 4, generator=generator, dtype=torch.float64) * scale
    target = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    noise = torch.randn(samples, m, 4, generator=generator, dtype=torch.float64)
    return ClassPrediction(logits + (noise if samples > 1 else 0), target=target)


def test_threshold_equals_a_search_over_all_thresholds():
    p_val, p_new = calibrated(60, 2.0, 0), calibrated(40, 1.0, 1)
    accuracy = p_val.correct.double().mean()
    confidences = [*p_val.confidence.tolist(), math.inf]
    gaps = [abs(((p_val.confidence >= t).double().mean() - accuracy).item()) for t in confidences]
    best = confidences[int(np.argmin(gaps))]
    expected = (p_new.confidence >= best).double().mean().item()
    assert predict_accuracy(p_val, p_new) == pytest.approx(expected)
    for score in ("msp", "entropy", lambda p: p.energy):
        assert predict_accuracy(p_val, p_val, by=score) == pytest.approx(accuracy.item())


def both(p_val: ClassPrediction, p_new: ClassPrediction) -> tuple[float, float]:
    """The predicted accuracy and its error."""
    predicted = predict_accuracy(p_val, p_new)
    return predicted, abs(predicted - metrics.accuracy(p_new))


@pytest.mark.parametrize("ties", [False, True])
def test_intervals_equal_a_loop_over_resamples(ties):
    p_val, p_new = calibrated(60, 2.0, 0, 3), calibrated(40, 1.0, 1, 3)
    if ties:
        p_val, p_new = (ClassPrediction(p.samples.round(), p.target) for p in (p_val, p_new))
    predicted, error = estimate_interval(p_val, p_new, resamples=30, seed=5)
    loop = []
    for n, k in zip(resample_counts(60, 30, 5, beside=40), resample_counts(40, 30, 6, beside=60),
                    strict=True):  # fmt: skip
        for a, b in zip(n.long(), k.long(), strict=True):
            rows = torch.arange(60).repeat_interleave(a), torch.arange(40).repeat_interleave(b)
            loop.append(both(p_val[rows[0]], p_new[rows[1]]))
    for i, measured in enumerate((predicted, error)):
        draws = torch.tensor([values[i] for values in loop], dtype=torch.float64)
        expected = interval(both(p_val, p_new)[i], draws, 0.95, 0.0, 1.0)
        assert measured == pytest.approx(expected, abs=1e-9)
    bare = ClassPrediction(p_new.samples)  # labels of the target are not looked at
    assert estimate_interval(p_val, bare, resamples=30, seed=5) == (predicted, None)


def test_bad_input():
    p = calibrated(20, 2.0, 0)
    bare = ClassPrediction(p.samples)
    values = ValuePrediction(torch.zeros(4, 2), torch.zeros(4))
    labels = LabelPrediction(torch.randn(40, 2), torch.ones(40, 2))
    for call in [
        lambda: predict_accuracy(p, p, "atc"),
        lambda: predict_accuracy(bare, p),
        lambda: predict_accuracy(p, p[:0]),
        lambda: predict_accuracy(p, p, by="nope"),
        lambda: predict_accuracy(values, values),
        lambda: predict_accuracy(labels, labels),
        lambda: estimate_interval(p, p, resamples=0),
        lambda: estimate_interval(p, p, level=2.0),
    ]:
        with pytest.raises(InputError):
            call()
    one = labels.column(0)
    assert predict_accuracy(one, one) == pytest.approx(metrics.accuracy(one))
