"""Recalibrated distributions of values: levels per value, exact moments, quantiles."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gduq.errors import InputError
from gduq.prediction import Hypotheses, ValuePrediction

LINES = torch.tensor(
    [
        [[0.0, 0.0], [0.1, 0.3], [0.5, 0.4], [1.0, 1.0]],
        [[0.0, 0.0], [0.4, 0.1], [0.9, 0.8], [1.0, 1.0]],
    ],
    dtype=torch.float64,
)


def mixture(rows: int = 5, values: int = 2, seed: int = 0) -> ValuePrediction:
    generator = torch.Generator().manual_seed(seed)
    samples = torch.randn(3, rows, 2 * values, generator=generator, dtype=torch.float64)
    return ValuePrediction(samples, weights=torch.tensor([0.5, 0.2, 0.3]))


def test_moments_equal_numeric_integration():
    p = replace(mixture(rows=3), levels=LINES)
    y = torch.linspace(-25, 25, 200_001, dtype=torch.float64)
    for row in range(3):
        every = p[torch.full((len(y),), row)]
        density = every.log_prob(y.unsqueeze(1).expand(-1, 2)).exp()  # [points, 2]
        grid = y.unsqueeze(1).expand(-1, 2)
        total, mean, square = (torch.trapezoid(density * grid**n, grid, dim=0) for n in range(3))
        torch.testing.assert_close(total, torch.ones(2).double(), rtol=0, atol=1e-4)
        torch.testing.assert_close(p.mean[row], mean, rtol=0, atol=1e-3)
        torch.testing.assert_close(p.variance[row], square - mean**2, rtol=1e-3, atol=0)


def test_the_identity_changes_nothing():
    p = mixture()
    line = torch.tensor([[0.0, 0.0], [0.3, 0.3], [1.0, 1.0]])
    q = replace(p, levels=line)
    for name in ("mean", "std", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(q, name), getattr(p, name))
    torch.testing.assert_close(q.log_prob(0.2), p.log_prob(0.2))
    torch.testing.assert_close(q.quantile(0.3), p.quantile(0.3))


def test_every_value_has_its_line():
    p = replace(mixture(), levels=LINES)
    for t in range(2):
        one = p.column(t)
        assert torch.equal(one.levels, LINES[t])
        for q in (0.05, 0.35, 0.9):
            torch.testing.assert_close(p.quantile(q)[:, t], one.quantile(q))
            torch.testing.assert_close(one.cdf(one.quantile(q)), torch.full((5,), q).double())
        torch.testing.assert_close(p.mean[:, t], one.mean)
        torch.testing.assert_close(p.std[:, t], one.std)
        torch.testing.assert_close(p.log_prob(0.1)[:, t], one.log_prob(0.1))
    same = replace(mixture(), levels=LINES[0])  # one line for both
    torch.testing.assert_close(same.mean[:, 0], p.mean[:, 0])
    assert same.column(1).levels.shape == (4, 2)


def test_lines_travel(tmp_path):
    p = replace(mixture(), levels=LINES)
    p.to_npz(tmp_path / "p.npz")
    again = Hypotheses.from_npz(tmp_path / "p.npz")
    assert torch.equal(again.mean, p.mean)
    parts = ValuePrediction.concatenate([p[:2], p[2:]])
    assert torch.equal(parts.mean, p.mean)
    assert replace(mixture(values=1), levels=LINES[:1]).levels.shape == (4, 2)


@pytest.mark.parametrize(
    "levels",
    [
        LINES[:, :1],
        LINES[:, 1:],
        LINES.flip(1),
        LINES.repeat(2, 1, 1),
        LINES[..., :1],
        torch.tensor([[0.0, 0.0], [0.5, 0.5], [0.5, 0.6], [1.0, 1.0]]),
    ],
)
def test_lines_that_are_none(levels):
    with pytest.raises(InputError, match=r"levels \[n, 2\] or \[T, n, 2\] that rise"):
        replace(mixture(), levels=levels)


@settings(max_examples=60)
@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.floats(1e-9, 1 - 1e-9),
    st.sampled_from([0.0, 1.0, 50.0]),
    st.sampled_from([1e-4, 1.0, 30.0]),
)
def test_quantiles_are_found_in_any_mixture(seed, hypotheses, level, apart, spread):
    """Also between hypotheses far from each other, where the density is 0 to the eye."""
    generator = torch.Generator().manual_seed(seed)
    means = apart * torch.randn(hypotheses, 8, 1, generator=generator, dtype=torch.float64)
    logs = torch.randn(hypotheses, 8, 1, generator=generator, dtype=torch.float64)
    p = ValuePrediction(torch.cat([means, logs + 2 * math.log(spread)], dim=-1))
    found = p.quantile(level)
    step = 1e-9 * (1 + found.abs() + apart)
    assert (p.cdf(found - step) <= level + 1e-12).all()
    assert (p.cdf(found + step) >= level - 1e-12).all()
