"""Predicted accuracies against definitions, and on data where they should come true."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from gduq import metrics
from gduq.errors import InputError
from gduq.metrics.resampling import interval, resample_counts
from gduq.ood import predict_accuracy
from gduq.ood.generalization import METHODS, estimate_interval
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
    assert min(gaps) == pytest.approx(0, abs=1e-12)  # no ties: a threshold fits exactly
    expected = (p_new.confidence >= best).double().mean().item()
    assert predict_accuracy(p_val, p_new) == pytest.approx(expected)


@pytest.mark.parametrize("score", ["msp", "entropy", lambda p: p.energy])
def test_threshold_on_validation_itself_is_its_accuracy(score):
    p = calibrated(500, 2.0, 3)
    assert predict_accuracy(p, p, score=score) == pytest.approx(p.correct.double().mean().item())


def test_confidences_equal_their_definitions():
    p_val, p_new = calibrated(100, 2.0, 0), calibrated(80, 1.0, 1)
    gap = p_new.confidence.mean() - p_val.confidence.mean()
    expected = (p_val.correct.double().mean() + gap).item()
    for method, value in [
        ("confidence_difference", expected),
        ("average_confidence", p_new.confidence.mean().item()),
    ]:
        predicted = predict_accuracy(p_val, p_new, method)
        assert predicted == pytest.approx(value)


def test_disagreement_equals_pairs():
    p = calibrated(70, 2.0, 0, samples=5)
    votes = p.samples.argmax(-1)
    agree = [(votes[i] == votes[j]).double() for i, j in itertools.combinations(range(5), 2)]
    expected = torch.stack(agree).mean().item()
    assert predict_accuracy(p, p, "disagreement") == pytest.approx(expected)


def test_disagreement_of_weighted_hypotheses_is_that_of_draws():
    p = calibrated(70, 2.0, 0, samples=3)
    w = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    p = ClassPrediction(p.samples, p.target, weights=w)
    votes = p.samples.argmax(-1)
    pairs = list(itertools.permutations(range(3), 2))
    agree = sum(float(w[i] * w[j] * (votes[i] == votes[j]).double().mean()) for i, j in pairs)
    expected = agree / sum(float(w[i] * w[j]) for i, j in pairs)
    assert predict_accuracy(p, p, "disagreement") == pytest.approx(expected)


@pytest.mark.parametrize("method", ["confidence_difference", "average_confidence"])
def test_predictions_come_true_for_a_calibrated_model_under_shift(method):
    p_val, p_new = calibrated(5000, 3.0, 0), calibrated(5000, 1.0, 1)
    actual = metrics.accuracy(p_new)
    assert abs(predict_accuracy(p_val, p_new, method) - actual) < 0.03
    assert abs(metrics.accuracy(p_val) - actual) > 0.25  # the shift is large


def both(p_val: ClassPrediction, p_new: ClassPrediction, method: str) -> tuple[float, float]:
    """The predicted accuracy and its error."""
    predicted = predict_accuracy(p_val, p_new, method)
    return predicted, abs(predicted - metrics.accuracy(p_new))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ties", [False, True])
def test_intervals_equal_a_loop_over_resamples(method, ties):
    p_val, p_new = calibrated(60, 2.0, 0, 3), calibrated(40, 1.0, 1, 3)
    if ties:
        p_val, p_new = (ClassPrediction(p.samples.round(), p.target) for p in (p_val, p_new))
    predicted, error = estimate_interval(p_val, p_new, method, resamples=30, seed=5)
    loop = []
    for n, k in zip(resample_counts(60, 30, 5, beside=40), resample_counts(40, 30, 6, beside=60),
                    strict=True):  # fmt: skip
        for a, b in zip(n.long(), k.long(), strict=True):
            rows = torch.arange(60).repeat_interleave(a), torch.arange(40).repeat_interleave(b)
            loop.append(both(p_val[rows[0]], p_new[rows[1]], method))
    for i, measured in enumerate((predicted, error)):
        draws = torch.tensor([values[i] for values in loop], dtype=torch.float64)
        expected = interval(both(p_val, p_new, method)[i], draws, 0.95, 0.0, 1.0)
        assert measured == pytest.approx(expected, abs=1e-9)
    bare = ClassPrediction(p_new.samples)  # labels of the target are not looked at
    assert estimate_interval(p_val, bare, method, resamples=30, seed=5) == (predicted, None)


def test_bad_input():
    p = calibrated(20, 2.0, 0)
    bare = ClassPrediction(p.samples)
    for call in [
        lambda: predict_accuracy(p, p, "atc"),
        lambda: predict_accuracy(bare, p),
        lambda: predict_accuracy(bare, p, "confidence_difference"),
        lambda: predict_accuracy(p, p, "disagreement"),
        lambda: predict_accuracy(p, p[:0]),
        lambda: predict_accuracy(p, p, score="nope"),
        lambda: estimate_interval(p, p, resamples=0),
        lambda: estimate_interval(p, p, level=2.0),
    ]:
        with pytest.raises(InputError):
            call()
    empty = calibrated(20, 2.0, 0, 2)[:0]
    with pytest.raises(InputError):
        predict_accuracy(p, empty, "disagreement")


def test_values_and_several_labels_are_refused_one_label_is_not():
    values = ValuePrediction(torch.zeros(4, 2), torch.zeros(4))
    labels = LabelPrediction(torch.randn(40, 2), torch.ones(40, 2))
    with pytest.raises(InputError):
        predict_accuracy(values, values)
    with pytest.raises(InputError):
        predict_accuracy(labels, labels)
    one = labels.column(0)
    assert predict_accuracy(one, one) == pytest.approx(metrics.accuracy(one))
