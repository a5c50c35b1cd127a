"""The mixture: matching wanted probabilities, and the temperature of many hypotheses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gduq.calibration.base import match
from gduq.errors import InputError
from gduq.prediction.mixture import best_temperature, disagreement, log_mixture

few = settings(deadline=None, max_examples=40)


def randn(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# -- match -------------------------------------------------------------------------------------


@few
@given(st.integers(0, 10_000), st.floats(0.1, 30), st.floats(0.1, 30), st.booleans())
def test_matched_hypotheses_mix_to_what_is_wanted(seed, apart, other, weighted):
    """Whether they nearly agree or exclude each other, whatever is wanted; row by row."""
    samples = apart * randn(4, 20, 3, seed=seed)
    wanted = (other * randn(20, 3, seed=seed + 1)).log_softmax(-1)
    weights = torch.tensor([0.1, 0.2, 0.0, 0.7]).double() if weighted else None
    moved = match(samples, wanted, weights)
    torch.testing.assert_close(log_mixture(moved, weights), wanted, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(moved.logsumexp(-1), torch.zeros(4, 20).double())
    assert torch.equal(match(samples[:, 3:4], wanted[3:4], weights), moved[:, 3:4])


def test_matching_its_own_mixture_changes_nothing():
    samples = 5 * randn(5, 30, 4)
    moved = match(samples, log_mixture(samples))
    assert torch.equal(moved, samples.log_softmax(-1))


def test_hypotheses_keep_their_distances_where_there_is_room():
    samples = 0.1 * randn(5, 30, 4)
    wanted = (2 * log_mixture(samples)).log_softmax(-1)
    moved, before = match(samples, wanted).exp(), samples.softmax(-1)
    torch.testing.assert_close(moved - moved[0], before - before[0])
    sure = torch.tensor([[[60.0, 0.0]], [[0.0, 60.0]]], dtype=torch.float64)  # one must give in
    wanted = torch.tensor([[0.9, 0.1]], dtype=torch.float64).log()
    assert 0.05 < float(disagreement(match(sure, wanted), wanted)) < math.log(2)


# -- temperature -------------------------------------------------------------------------------


def rows(count: int, samples: int, factor: float = 3.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Labels drawn from known probabilities; logits too large, hypotheses apart."""
    generator = torch.Generator().manual_seed(seed)
    truth = 1.5 * torch.randn(count, 4, generator=generator, dtype=torch.float64)
    target = torch.multinomial(truth.softmax(1), 1, generator=generator).squeeze(1)
    noise = torch.randn(samples, count, 4, generator=generator, dtype=torch.float64)
    return factor * (truth + noise), target


def loss(parts, weights, temperature: float) -> float:
    total = 0.0
    for samples, target, share in parts:
        mixed = log_mixture(samples / temperature, weights)
        total += share * float(torch.nn.functional.nll_loss(mixed, target))
    return total


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("count", [300, 3000])  # of many rows some are tried
def test_best_temperature_beats_a_dense_grid(count, weighted):
    weights = torch.tensor([0.5, 0.3, 0.2, 0.0]).double() if weighted else None
    parts = [(*rows(80, 4, 3.0, 0), 0.5), (*rows(count, 4, 5.0, 9), 0.5)]
    grid = np.geomspace(0.01, 100, 200)
    best = min(loss(parts, weights, t) for t in grid)
    assert loss(parts, weights, best_temperature(parts, weights)) <= best + 1e-12


@pytest.mark.parametrize("share", [0.4, 0.8])
def test_of_two_valleys_the_deeper_one_is_found(share):
    """One hypothesis is mildly right, the other sure and wrong: cold or hot, not in between."""
    samples = torch.tensor([[[0.5, 0.0]], [[-50.0, 0.0]]], dtype=torch.float64)
    weights = torch.tensor([share, 1 - share], dtype=torch.float64)
    parts = [(samples, torch.tensor([0]), 1.0)]
    cold, mild, hot = (loss(parts, weights, t) for t in (0.01, 3.0, 100.0))
    assert mild > max(cold, hot)
    assert loss(parts, weights, 1.0) < loss(parts, weights, 1.1)  # downhill from 1 is colder
    found = best_temperature(parts, weights)
    assert found == 100.0 if hot < cold else found <= 1.0
    assert (hot < cold) == (share == 0.4)


def test_a_part_counts_by_its_weight_not_its_rows():
    one, two = rows(100, 2, 1.0, 0), rows(300, 2, 9.0, 1)
    cool, hot = best_temperature([(*one, 1.0)]), best_temperature([(*two, 1.0)])
    assert cool < hot
    assert best_temperature([(*one, 1.0), (*two, 0.0)]) == cool
    both = best_temperature([(*one, 0.5), (*two, 0.5)])
    assert cool < both < hot
    thrice = [(*one, 0.5)] + [(*two, 0.5 / 3)] * 3
    assert best_temperature(thrice) == pytest.approx(both, rel=1e-6)


def test_where_there_is_no_best_it_stays_in_bounds():
    z = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]], dtype=torch.float64)
    assert best_temperature([(z, torch.tensor([1, 0]), 1.0)]) == 100.0  # all wrong
    flat = torch.ones(3, 3, 2).double()
    assert best_temperature([(flat, torch.tensor([0, 1, 0]), 1.0)]) == 1.0  # says nothing
    huge = 1e30 * z
    assert best_temperature([(huge, torch.tensor([0, 0]), 1.0)]) == 100.0


@pytest.mark.parametrize("samples", [1, 4])
def test_few_rows_that_are_all_right_do_not_freeze_it(samples):
    z = 4 * torch.eye(3, dtype=torch.float64).repeat(samples, 3, 1)
    target = torch.arange(3).repeat(3)
    assert loss([(z, target, 1.0)], None, 0.01) < 1e-30  # what the rows alone ask for
    assert 0.5 < best_temperature([(z, target, 1.0)]) <= 1.0
    one = best_temperature([(z[:, :1], target[:1], 1.0)])
    assert 0.5 < one <= 1.0


def test_it_needs_rows():
    z, target = rows(5, 2)
    for parts in ([], [(z, target, 0.0)], [(z[:, :0], target[:0], 1.0)]):
        with pytest.raises(InputError):
            best_temperature(parts)
