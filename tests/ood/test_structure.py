"""Novelty that reads structure: a row is novel by what it is like or by how large it is."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor

from gduq.errors import InputError
from gduq.ood import distances as module
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
    known = one[order[:size]]
    assert torch.equal(novelty.structure, known)

    def odd(structure: Tensor, itself: bool = False) -> Tensor:
        far = apart(structure, known)
        if itself:
            far[torch.arange(len(known)), torch.arange(len(known))] = torch.inf
        return far.sort(dim=1).values[:, :3].mean(dim=1)

    def near(h: Tensor) -> Tensor:
        return plain._far(h, plain.reference)

    if with_val:
        near_val, odd_val = near(val), odd(two)
    else:  # each training row without itself, those that are not kept first
        near_val = plain._own_distances(train, order, plain.reference)
        odd_val = torch.cat([odd(one[order[size:]]), odd(known, itself=True)])
    torch.testing.assert_close(novelty.structure_distances, odd_val.sort().values)
    wanted = by_hand(near(rows), odd(three), near_val, odd_val)
    torch.testing.assert_close(novelty(rows, three), wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("with_val", [True, False])
def test_rows_of_the_training_distribution_are_uniform(with_val: bool) -> None:
    """Over seeds, although counts are often equal: what is like breaks their ties."""
    statistics = []
    for seed in range(20):
        train, val, new = (clusters(400, 3 * seed + i) for i in range(3))
        one, two, three = (sizes(400, 3 * seed + i) for i in range(3))
        novelty = Novelty(size=300)
        novelty.fit(train, val if with_val else None, seeded(seed), one, two)
        statistics.append(stats.kstest(novelty(new, three).numpy(), "uniform").statistic)
    scaled = torch.tensor(statistics) * (400 / 2) ** 0.5
    assert scaled.max() < 2.2
    assert 0.6 < scaled.mean() < 1.15


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
        assert found.unique().numel() > 20
    assert 0.35 < float(novelty(rows, sizes(50, 2)).mean()) < 0.65
    rows[:2] = torch.tensor([torch.nan, torch.inf]).unsqueeze(1)
    assert (novelty(rows, large)[:2] == 1.0).all()


def test_it_rises_with_size_and_with_features() -> None:
    novelty, rows, structure = fitted(600, 300), clusters(300, 2), sizes(300, 2)
    noise = torch.randn(rows.shape, generator=seeded(5))
    steps = (0.0, 0.25, 0.5, 1.0, 2.0)
    by_size = [float(novelty(rows, structure + s).mean()) for s in steps]
    by_features = [float(novelty(rows + s * noise, structure).mean()) for s in steps]
    for means in (by_size, by_features):
        assert means == sorted(means)
        assert means[-1] > means[0] + 0.3


def test_without_structure_it_is_what_it_was() -> None:
    train, val, rows = clusters(200, 0), clusters(100, 1), clusters(50, 2)
    plain, known = Novelty().fit(train, val, seeded(0)), fitted()
    assert not plain.reads_structure
    assert known.reads_structure
    assert torch.equal(known(rows), plain(rows))
    assert torch.equal(plain(rows, sizes(50, 2)), plain(rows))
    half = Novelty().fit(train, val, seeded(0), sizes(200, 0), None)
    assert not half.reads_structure
    again = fitted().fit(train, val, seeded(0))  # fitted anew, it forgets
    assert not again.reads_structure
    assert not torch.equal(known(rows, sizes(50, 2)), plain(rows))


def test_batches_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    novelty, rows, structure = fitted(), clusters(50, 2), sizes(50, 2, 3, 80)
    wanted = novelty(rows, structure)
    alone = [novelty(h[None], one[None]) for h, one in zip(rows, structure, strict=True)]
    assert torch.equal(torch.cat(alone), wanted)
    monkeypatch.setattr(module, "_BLOCK", 700)
    assert torch.equal(novelty(rows, structure), wanted)


def test_single_precision_knows_a_known_structure() -> None:
    """A cast of the model moves logarithms by more than a count of nodes does not."""
    novelty, rows, structure = fitted(), clusters(80, 2), sizes(80, 2, 3, 80)
    wide = novelty(rows, structure)
    torch.testing.assert_close(novelty.float()(rows, structure), wide, rtol=0, atol=1e-6)


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
