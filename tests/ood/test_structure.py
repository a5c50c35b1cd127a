"""Novelty that reads structure: a row is novel by what it is like or by how large it is."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor

from gduq.errors import InputError
from gduq.ood import nearest as module
from gduq.ood.nearest import Novelty
from tests.ood.test_nearest import clusters, seeded


def sizes(n: int, seed: int, low: int = 5, high: int = 30) -> Tensor:
    """Logarithms of counts: of nodes, and of edges per node."""
    generator = seeded(1000 + seed)
    nodes = torch.randint(low, high, (n,), generator=generator).double()
    edges = torch.randint(2, 5, (n,), generator=generator).double()
    return torch.stack([nodes.log1p(), (edges / 2).log1p()], dim=1)


def apart(rows: Tensor, known: Tensor) -> Tensor:
    """The largest difference, of every pair."""
    return (rows.unsqueeze(1) - known).abs().amax(dim=2)


def fitted(train: int = 200, val: int = 100, **options: int) -> Novelty:
    h, structure = (clusters(train, 0), clusters(val, 1)), (sizes(train, 0), sizes(val, 1))
    return Novelty(**options).fit(*h, seeded(0), *structure)


def by_hand(near: Tensor, odd: Tensor, near_val: Tensor, odd_val: Tensor) -> Tensor:
    """The definition: the larger of two shares, ranked among those of the validation rows."""

    def share(known: Tensor, far: Tensor, ties: float = 0.5) -> Tensor:
        smaller, equal = known < far[:, None] - 1e-9, (known - far[:, None]).abs() <= 1e-9
        return (smaller.double() + ties * equal.double()).mean(dim=1)

    def larger(near: Tensor, odd: Tensor) -> Tensor:
        return torch.maximum(share(near_val, near), share(odd_val, odd, ties=0.0))

    ranked = share(larger(near_val, odd_val), larger(near, odd))
    return 0.999 * ranked + 0.001 * share(near_val, near)


@pytest.mark.parametrize("with_val", [True, False])
@pytest.mark.parametrize("size", [40, 2048])
def test_it_is_the_definition(with_val: bool, size: int) -> None:
    train, val, rows = (clusters(n, s).double() for n, s in ((90, 0), (70, 1), (60, 2)))
    one, two, three = sizes(90, 0), sizes(70, 1), sizes(60, 2, 3, 60)
    novelty = Novelty(k=4, size=size)
    novelty.fit(train, val if with_val else None, seeded(0), one, two if with_val else None)
    plain = Novelty(k=4, size=size).fit(train, val if with_val else None, seeded(0))
    assert torch.equal(plain.distances, novelty.distances)
    order = torch.randperm(90, generator=seeded(0))
    kept, rest = order[:size], None
    if not with_val:  # half of the training rows are held back
        kept, rest = order[: min(size, 45)], order[min(size, 45) :]
        val, two = train[rest], one[rest]
    known = one[kept]
    assert torch.equal(novelty.structure, known)

    def odd(structure: Tensor) -> Tensor:
        return apart(structure, known).sort(dim=1).values[:, :3].mean(dim=1)

    near_val, odd_val = plain._far(val), odd(two)
    torch.testing.assert_close(novelty.structure_distances, odd_val.sort().values)
    wanted = by_hand(plain._far(rows), odd(three), near_val, odd_val)
    torch.testing.assert_close(novelty(rows, three), wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("structured", [True, False])
@pytest.mark.parametrize("with_val", [True, False])
@pytest.mark.parametrize("size", [100, 4096])
def test_rows_of_the_training_distribution_are_uniform(size, with_val, structured) -> None:
    """Over seeds: the distance of Kolmogorov and Smirnov is that of two equal samples, although
    counts are often equal: what is like breaks their ties."""
    statistics = []
    for seed in range(20):
        train, val, new = (clusters(500, 3 * seed + i) for i in range(3))
        one, two, three = (sizes(500, 3 * seed + i) if structured else None for i in range(3))
        novelty = Novelty(size=size)
        novelty.fit(train, val if with_val else None, seeded(seed), one, two)
        statistics.append(stats.kstest(novelty(new, three).numpy(), "uniform").statistic)
    scaled = torch.tensor(statistics) * (500 / 2) ** 0.5
    assert scaled.max() < 2.2  # p = 1e-4 for each of 20
    assert 0.6 < scaled.mean() < 1.15  # .87 in theory


def test_a_size_never_seen_is_as_novel_as_can_be() -> None:
    """Whatever the features say; these order such rows."""
    novelty, rows = fitted(), clusters(50, 2)
    large, small, dense = sizes(50, 2, 60, 90), sizes(50, 2, 0, 2), sizes(50, 2)
    dense[:, 1] += 1.0
    alone = novelty(rows).argsort()
    for structure in (large, small, dense):
        found = novelty(rows, structure)
        assert ((found >= 0.999) & (found <= 1.0)).all()
        assert (found[alone].diff() >= 0).all()
    assert 0.35 < float(novelty(rows, sizes(50, 2)).mean()) < 0.65
    rows[:2] = torch.tensor([torch.nan, torch.inf]).unsqueeze(1)
    assert (novelty(rows, large)[:2] == 1.0).all()


def test_without_structure_it_is_what_it_was() -> None:
    train, val, rows = clusters(200, 0), clusters(100, 1), clusters(50, 2)
    plain, known = Novelty().fit(train, val, seeded(0)), fitted()
    assert known.reads_structure
    assert torch.equal(known(rows), plain(rows))
    assert torch.equal(plain(rows, sizes(50, 2)), plain(rows))
    half = Novelty().fit(train, val, seeded(0), sizes(200, 0), None)
    again = fitted().fit(train, val, seeded(0))  # fitted anew, it forgets
    assert not any(one.reads_structure for one in (plain, half, again))
    assert not torch.equal(known(rows, sizes(50, 2)), plain(rows))


def test_batches_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    novelty, rows, structure = fitted(), clusters(50, 2), sizes(50, 2, 3, 80)
    wanted = novelty(rows, structure)
    alone = [novelty(h[None], one[None]) for h, one in zip(rows, structure, strict=True)]
    assert torch.equal(torch.cat(alone), wanted)
    monkeypatch.setattr(module, "_BLOCK", 700)
    assert torch.equal(novelty(rows, structure), wanted)


def test_bad_input() -> None:
    novelty, h, ones = fitted(), clusters(10, 2), torch.ones
    for call in (
        lambda: novelty(h, ones(10, 1)),
        lambda: novelty(h, ones(9, 2)),
        lambda: Novelty().fit(h, None, seeded(0), ones(9, 2)),
        lambda: Novelty().fit(h, h, seeded(0), ones(10, 2), ones(10, 1)),
        lambda: Novelty().fit(h, None, seeded(0), ones(10, 2) / 0),
    ):
        with pytest.raises(InputError):
            call()
