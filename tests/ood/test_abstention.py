"""Thresholds for a wished accuracy or coverage, on validation and on new rows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gduq.errors import InputError, NotFittedError
from gduq.ood import Abstention, score
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction


def draw(m: int, seed: int, scale: float = 2.0, ties: bool = False) -> ClassPrediction:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(m, 3, generator=generator, dtype=torch.float64) * scale
    target = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return ClassPrediction(logits.round() if ties else logits, target=target)


@given(st.integers(1, 60), st.floats(0.01, 1.0), st.booleans(), st.integers(0, 10**6))
@settings(deadline=None, max_examples=40)
def test_coverage_is_the_smallest_that_is_enough(m, coverage, ties, seed):
    p = draw(m, seed, ties=ties)
    decision = Abstention(coverage=coverage).fit(p)(p)
    assert decision.coverage >= coverage - 1e-9
    scores = score(p, "msp")
    shares = [(scores <= s).double().mean().item() for s in scores]
    assert decision.coverage == pytest.approx(min(s for s in shares if s >= coverage - 1e-9))


@pytest.mark.parametrize("kind", ["msp", "entropy", lambda p: -p.confidence])
@pytest.mark.parametrize("ties", [False, True])
def test_accuracy_is_reached_with_the_largest_coverage(kind, ties):
    p = draw(300, 1, ties=ties)
    decision = Abstention(accuracy=0.9, score=kind).fit(p)(p)
    assert decision.accuracy >= 0.9
    if kind == "msp":
        scores = score(p, "msp")
        kept = [scores <= s for s in scores]
        enough = [k.double().mean().item() for k in kept if p.correct[k].double().mean() >= 0.9]
        assert decision.coverage == pytest.approx(max(enough))


def test_decision_without_labels_or_answers():
    p = draw(50, 0)
    rule = Abstention(coverage=0.5).fit(ClassPrediction(p.samples))  # coverage needs no labels
    decision = rule(ClassPrediction(p.samples))
    assert decision.kept.sum() == 25
    unsure = ClassPrediction(torch.zeros(5, 3, dtype=torch.float64), target=torch.zeros(5).long())
    assert rule(unsure).coverage == 0.0
    assert math.isnan(rule(unsure).accuracy)


def values(m: int, seed: int) -> ValuePrediction:
    """Deviations from 0.1 to 2 that are true."""
    generator = torch.Generator().manual_seed(seed)
    std = 0.1 + 1.9 * torch.rand(m, generator=generator, dtype=torch.float64)
    mean = torch.randn(m, generator=generator, dtype=torch.float64)
    y = mean + std * torch.randn(m, generator=generator, dtype=torch.float64)
    return ValuePrediction(torch.stack([mean, 2 * std.log()], dim=1), y)


def test_values_of_small_deviation_are_answered():
    p_val, p_test = values(2000, 1), values(2000, 2)
    decision = Abstention(coverage=0.5).fit(p_val)(p_test)
    assert decision.coverage == pytest.approx(0.5, abs=0.05)
    assert p_test.std[decision.kept].max() <= p_test.std[~decision.kept].min()
    error = p_test.mean - p_test.target
    kept = error[decision.kept]
    assert float(kept.square().mean()) < 0.5 * float(error.square().mean())


def test_bad_input():
    p, v = draw(30, 0), values(10, 0)
    wrong = ClassPrediction(p.samples, (p.label + 1) % 3)
    labels = LabelPrediction(torch.zeros(3, 2), torch.zeros(3, 2))
    half = Abstention(coverage=0.5)
    for call in [
        lambda: Abstention(),
        lambda: Abstention(0.9, 0.9),
        lambda: Abstention(accuracy=1.1),
        lambda: Abstention(coverage=0.0),
        lambda: Abstention(accuracy=0.5).fit(ClassPrediction(p.samples)),
        lambda: Abstention(accuracy=0.5).fit(wrong),
        lambda: Abstention(accuracy=0.9).fit(v),
        lambda: Abstention(coverage=0.5, score="x").fit(p),
        lambda: half.fit(p[:0]),
        lambda: half.fit(ValuePrediction(torch.zeros(3, 4), torch.zeros(3, 2))),
        lambda: half.fit(labels),
        lambda: half.fit(p)(ClassPrediction(p.samples)).accuracy,
        lambda: half.fit(v)(labels),
    ]:
        with pytest.raises(InputError):
            call()
    with pytest.raises(NotFittedError):
        Abstention(coverage=0.5)(p)
