"""Novelty: uniform on rows like those of validation, higher on others, and nothing else matters."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from gduq.errors import InputError, NotFittedError
from gduq.ood import nearest as module
from gduq.ood.nearest import Novelty


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clusters(n: int, seed: int, d: int = 8) -> Tensor:
    """Rows around four directions, some tighter than others; float32 as networks have it."""
    generator = seeded(seed)
    centres = torch.randn(4, d, generator=seeded(99))
    which = torch.randint(4, (n,), generator=generator)
    width = 0.2 * (1 + which).unsqueeze(1)
    return centres[which] + width * torch.randn(n, d, generator=generator)


def pairs(rows: Tensor, train: Tensor) -> Tensor:
    """Distances of every pair: directions, and lengths at half weight."""
    one, two = rows.double().unsqueeze(1), train.double().unsqueeze(0)
    cosine = nn.functional.cosine_similarity(one, two, dim=2)
    found: Tensor = 1 - cosine + (one.norm(dim=2) / two.norm(dim=2) - 1) ** 2 / 8
    return found


def by_hand(rows: Tensor, train: Tensor, val: Tensor, k: int) -> Tensor:
    """The definition, with all rows in one matrix and every pair compared."""

    def far(rows: Tensor) -> Tensor:
        return pairs(rows, train).sort(dim=1).values[:, :k].mean(dim=1)

    mine, theirs = far(rows).unsqueeze(1), far(val).unsqueeze(0)
    return ((theirs < mine).double() + 0.5 * (theirs == mine).double()).mean(dim=1)


@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_the_definition(k: int, dtype: torch.dtype) -> None:
    train, val, rows = (clusters(n, s).to(dtype) for n, s in ((60, 0), (40, 1), (30, 2)))
    found = Novelty(k).fit(train, val, seeded(0))(rows)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), by_hand(rows, train, val, k), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["noise", "rotation", "mixing", "offset", "longer", "shorter"])
def test_it_rises_with_the_severity_of_a_corruption(kind: str) -> None:
    train, val, rows = clusters(600, 0), clusters(300, 1), clusters(300, 2)
    novelty = Novelty().fit(train, val, seeded(0))
    noise, other = torch.randn(rows.shape, generator=seeded(5)), torch.randn(8, generator=seeded(6))
    means = []
    for s in (0.0, 0.25, 0.5, 1.0, 2.0):
        corrupted = {
            "noise": rows + 2 * s * noise,
            "rotation": rows * torch.cos(torch.tensor(s)) + rows.roll(1, 1) * s,
            "mixing": rows + s / 2 * rows.flip(0),  # half and half at most: beyond, it is the other
            "offset": rows + 2 * s * other,
            "longer": rows * (1 + s),
            "shorter": rows * (1 - s / 2),
        }[kind]
        means.append(float(novelty(corrupted).mean()))
    assert means == sorted(means)
    assert 0.4 < means[0] < 0.6 < means[0] + 0.2 < means[-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_state_round_trip_is_bit_identical(dtype: torch.dtype) -> None:
    train, val, rows = (clusters(n, s).to(dtype) for n, s in ((60, 0), (40, 1), (30, 2)))
    fitted = Novelty(k=4).fit(train, val, seeded(0))
    holder = nn.ModuleDict({"novelty": Novelty(k=4)})
    holder.load_state_dict({f"novelty.{k}": v for k, v in fitted.state_dict().items()})
    for other in (holder["novelty"], copy.deepcopy(fitted)):
        assert torch.equal(other(rows), fitted(rows))
    holder["novelty"].load_state_dict(Novelty().state_dict())
    assert not holder["novelty"].fitted


@pytest.mark.parametrize("chunk", [1, 700, 10**9])
def test_blocks_and_batch_mates_do_not_matter(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    train, val, rows = clusters(300, 0), clusters(200, 1), clusters(64, 2)
    rows[5:9] = rows[4]  # ties
    wanted = Novelty().fit(train, val, seeded(0))(rows)
    own = Novelty().fit(train, None, seeded(0))(rows)
    monkeypatch.setattr(module, "_BLOCK", chunk)
    novelty = Novelty().fit(train, val, seeded(0))
    torch.testing.assert_close(novelty(rows), wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(Novelty().fit(train, None, seeded(0))(rows), own, rtol=0, atol=1e-6)
    single = torch.cat([novelty(row[None]) for row in rows])
    torch.testing.assert_close(single, wanted, rtol=0, atol=1e-6)
    assert single[4:9].unique().numel() == 1


def test_rounding_breaks_no_ties() -> None:
    """Many equal graphs: what rounding adds to their rows decides nothing."""
    base = clusters(6, 0)
    noise = 1 + 1e-7 * torch.randn(300, 8, generator=seeded(1))
    train, val = base.repeat(100, 1), base.repeat(50, 1) * noise
    novelty = Novelty(k=10).fit(train, val, seeded(0))
    assert (novelty(base) == 0.5).all()  # all are at distance 0, as all validation rows are
    assert (novelty(base * (1 + 1e-7 * torch.randn(6, 8, generator=seeded(2)))) == 0.5).all()


def test_sparse_rows_are_dense_rows() -> None:
    train, val, rows = (
        clusters(n, s) * (torch.rand(n, 8, generator=seeded(s)) < 0.5)
        for n, s in ((60, 0), (40, 1), (30, 2))
    )
    wanted = Novelty().fit(train, val, seeded(0))
    found = Novelty().fit(train.to_sparse_csr(), val.to_sparse_csr(), seeded(0))
    assert torch.equal(found(rows.to_sparse_csr()), wanted(rows))
    own = Novelty(size=20).fit(train.to_sparse_csr(), None, seeded(0))
    assert torch.equal(own.distances, Novelty(size=20).fit(train, None, seeded(0)).distances)


def test_sums_over_more_nodes_than_in_training_are_novel() -> None:
    """All point the same way, so that direction alone sees nothing."""
    nodes = 1 + 0.5 * torch.rand(3000, 8, generator=seeded(0))
    sizes = torch.tensor([4, 5, 6, 7, 8, 9])

    def graphs(start: int, counts: Tensor) -> Tensor:
        ends = start + counts.cumsum(0)
        return torch.stack([nodes[e - n : e].sum(0) for e, n in zip(ends, counts, strict=True)])

    train, val, same = (graphs(s, sizes.repeat(20)) for s in (0, 800, 1600))
    larger = graphs(0, sizes.repeat(20) + 10)
    novelty = Novelty().fit(train, val, seeded(0))
    assert 0.35 < float(novelty(same).mean()) < 0.65
    assert float(novelty(larger).min()) == 1.0
    train, val, larger = (nn.functional.normalize(x, dim=1) for x in (train, val, larger))
    assert float(Novelty().fit(train, val, seeded(0))(larger).mean()) < 0.5


def test_zero_rows_are_as_far_from_all() -> None:
    train = clusters(50, 0)
    val = torch.cat([torch.zeros(1, 8), train[:9]])
    novelty = Novelty(k=3).fit(train, val, seeded(0))
    assert float(novelty.distances[-1]) == 1.125
    assert novelty(torch.zeros(2, 8)).tolist() == pytest.approx([0.95, 0.95])
    zeros = Novelty().fit(torch.zeros(5, 3), torch.zeros(4, 3), seeded(0))
    assert zeros(torch.zeros(2, 3)).tolist() == [0.5, 0.5]
    assert zeros(torch.ones(2, 3)).tolist() == [1.0, 1.0]
    some = Novelty(k=1).fit(torch.cat([train, torch.zeros(1, 8)]), train, seeded(0))
    assert torch.equal(some(train), Novelty(k=1).fit(train, train, seeded(0))(train))


@pytest.mark.parametrize("scale", [1e-30, 1e30, 1e-200, 1e200])
def test_units_do_not_matter_and_lengths_may_be_extreme(scale: float) -> None:
    train, val, rows = (clusters(n, s).double() for n, s in ((60, 0), (40, 1), (30, 2)))
    novelty = Novelty().fit(train, val, seeded(0))
    same = Novelty().fit(scale * train, scale * val, seeded(0))(scale * rows)
    torch.testing.assert_close(same, novelty(rows), rtol=0, atol=1e-6)
    far = novelty(scale * rows)
    assert (far == 1.0).all() if scale > 1 else (far > novelty(rows)).double().mean() > 0.9


def test_bad_input() -> None:
    rows = clusters(30, 0)
    for call in (
        lambda: Novelty().fit(rows, None, seeded(0))(rows[:, :3]),
        lambda: Novelty().fit(rows, rows[:, :3], seeded(0)),
        *(lambda bad=bad: Novelty().fit(bad, None, seeded(0)) for bad in (rows / 0, rows[:1])),
        lambda: Novelty().fit(rows[0], None, seeded(0)),
        lambda: Novelty(k=0),
        lambda: Novelty(size=0),
    ):
        with pytest.raises(InputError):
            call()
    with pytest.raises(NotFittedError):
        Novelty()(rows)
