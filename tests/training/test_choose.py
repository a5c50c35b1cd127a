"""`choose`: what competes, how it is weighed, and that it does no harm."""

from __future__ import annotations

import copy
import functools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN, Sequential

import gduq
from gduq import InputError
from gduq.data import View
from gduq.nn import GNN
from gduq.training.choosing import fit_mixture_weights, mixture_weights
from tests.training.cases import Net, graphs
from tests.training.test_calibrated_fit import noisy

QUIET: dict[str, Any] = {"progress": False}
COLUMNS = ["candidate", "weight", "score", "standard_error", "training_seconds", "prediction_cost"]
CHEAP = {"plain", "anchored head", "neighbours"}  # with every budget
ON, ON_ROWS = "trained on, anchors at input, one anchor per graph", "trained on, anchors at input"


ANEW = {"network 2", "neighbours, network 2"}


@functools.cache
def _trained(layers: int, head: str) -> GNN:
    torch.manual_seed(0)
    found = GNN(4, 8, 3, num_layers=layers, conv="gin", head=head, dropout=0.1).double()
    gduq.fit(found, noisy(60, 1), epochs=40, lr=0.02, **QUIET)
    return found


def net(layers: int = 2, head: str = "mlp") -> GNN:
    return copy.deepcopy(_trained(layers, head))


def choose(model: nn.Module, train: Any = None, val: Any = None, **options: Any) -> gduq.Stack:
    train = View(noisy(60, 1)) if train is None else train
    val = View(noisy(60, 2)) if val is None else val
    return gduq.choose(model, train, val, **{**QUIET, **options})


# -- the weights ---------------------------------------------------------------------------------


def test_weights_fulfil_the_conditions_of_a_maximum() -> None:
    """By every model's slope, no gain is left: of models that are alike, too (there EM is slow)."""
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(1, 5, 200, generator=generator, dtype=torch.float64)
    noise = torch.randn(8, 5, 200, generator=generator, dtype=torch.float64)
    prior = np.array([2.0, *[0.0] * 7])
    share = torch.tensor([0.5, *[0.125] * 4], dtype=torch.float64).view(1, 5, 1)
    for scale in (0.003, 0.05, 1.0):
        odds = (base + scale * noise).exp()
        weights = torch.from_numpy(mixture_weights(base + scale * noise, prior))
        assert weights.sum().item() == pytest.approx(1.0)
        mixed = (weights.view(-1, 1, 1) * odds).sum(dim=0)
        slope = (share * odds / mixed).sum(dim=(1, 2)) + torch.from_numpy(prior) / weights
        total = float(share.sum()) * 200 + 2.0
        assert slope.max().item() - total < 1e-4


# -- what competes -------------------------------------------------------------------------------


@functools.cache
def chosen() -> gduq.Stack:
    return choose(net(), class_names=["a", "b", "c"])


def test_the_leaderboard() -> None:
    model = chosen()
    board = model.leaderboard
    assert board is not None
    assert list(board.columns) == COLUMNS
    assert set(board["candidate"]) == CHEAP
    assert list(board["score"]) == sorted(board["score"])
    assert board["weight"].sum() == pytest.approx(1.0)
    assert (board["weight"] >= 0).all()
    assert (board["standard_error"] > 0).all()
    assert (board["training_seconds"] >= 0).all()
    plain = board.set_index("candidate").loc["plain"]
    assert plain["prediction_cost"] == 1.0
    assert model.shares.sum().item() == pytest.approx(1.0)
    assert len(model.members) == (board["weight"] > 0).sum()
    assert sorted(model.shares.tolist()) == pytest.approx(sorted(w for w in board["weight"] if w))


@pytest.mark.parametrize(
    ("budget", "names"),
    [
        (1.0, {"plain", "neighbours"}),
        (1.4, CHEAP),
        (1.5, CHEAP | {ON, ON_ROWS}),
        (2.5, CHEAP | {ON, ON_ROWS} | ANEW),
    ],
)
def test_the_budget_decides_who_competes(budget: float, names: set[str]) -> None:
    board = choose(net(), budget=budget, epochs=1).leaderboard
    assert board is not None
    assert set(board["candidate"]) == names
    assert board["candidate"].is_unique


@pytest.mark.parametrize(
    ("layers", "places"),
    [(1, {"the last layer"}), (3, {"the last layer", "layer 1"})],
)
def test_nodes_have_anchors_at_layers(layers: int, places: set[str]) -> None:
    ring = torch.arange(40)
    x = F.one_hot(ring % 3, 3) + 0.3 * torch.randn(40, 3, generator=torch.manual_seed(0))
    graph = Data(x=x, edge_index=torch.stack([ring, ring.roll(1)]), y=ring % 3)
    own = GNN(3, 8, 3, num_layers=layers, task="node", head="mlp")
    views = View(graph, ring < 20), View(graph, ring >= 20)
    gduq.fit(own, *views, epochs=2, **QUIET)
    board = choose(own, *views, budget=1.5, epochs=4).leaderboard
    assert board is not None
    on = {f"trained on, anchors at {place}" for place in places}
    assert set(board["candidate"]) == CHEAP | on


def test_networks_of_ones_own() -> None:
    """With a head that is found, with outputs beside its last layer, and with nothing."""
    data = Net()
    gduq.fit(data, noisy(60, 1), epochs=20, lr=0.02, **QUIET)
    board = choose(data, budget=1.5, epochs=1).leaderboard
    assert board is not None
    assert set(board["candidate"]) == CHEAP | {ON, ON_ROWS}
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 3
    x = F.one_hot(y, 3) + torch.randn(120, 3, generator=generator)
    graph = Data(x=x, edge_index=torch.randint(120, (2, 100), generator=generator), y=y)
    order = torch.randperm(120, generator=generator)
    train, val = View(graph, order[:60]), View(graph, order[60:])
    headless = GCN(3, 8, 2, out_channels=3)
    gduq.fit(headless, train, epochs=5, **QUIET)
    model = choose(headless, train, val)
    assert model.leaderboard is not None
    assert set(model.leaderboard["candidate"]) == CHEAP
    p = gduq.predict(model, val)
    assert p.novelty is not None
    assert p.calibrated == "shifted"
    mixing = Sequential("x", [(torch.nn.Linear(3, 3), "x -> x"), (lambda x: x.cumsum(0), "x -> x")])
    with pytest.warns(UserWarning, match="only the calibrated network .*pass epochs="):
        alone = choose(mixing, train, val)
    assert len(alone.members) == 1


def test_what_cannot_be_made_is_left_out_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: gduq.Neighbours, *args: Any) -> None:
        raise InputError("a head that reads rows", "another")

    monkeypatch.setattr(gduq.Neighbours, "_build", refuse)
    with pytest.warns(UserWarning, match="choose leaves out 'neighbours': expected a head"):
        board = choose(net()).leaderboard
    assert board is not None
    assert set(board["candidate"]) == CHEAP - {"neighbours"}


# -- what wins -----------------------------------------------------------------------------------


def test_a_clearly_better_candidate_wins_and_equals_share_the_weight() -> None:
    """A tenth of the rows speaks for all alike: chance in the rest does not decide who is in."""
    good, bad = torch.full((9, 40), 0.3), torch.full((9, 40), 1.1)
    found = fit_mixture_weights(torch.stack([bad, good, bad + 1]))
    assert found[1] > 0.8
    assert 2 not in found  # what hardly counts is dropped
    assert sum(found.values()) == pytest.approx(1.0)
    generator = torch.Generator().manual_seed(0)
    base = torch.rand(9, 400, generator=generator)
    near = base + 0.02 * torch.randn(3, 9, 400, generator=generator)
    assert min(fit_mixture_weights(torch.stack([base, *near])).values()) > 0.1


# -- the model -----------------------------------------------------------------------------------


def test_the_mixture_is_calibrated_and_knows_what_is_new() -> None:
    model, val = chosen(), View(noisy(60, 2))
    p = gduq.predict(model, val)
    assert p.calibrated == "shifted"
    assert p.names == ("a", "b", "c")
    assert p.weights is not None
    assert p.weights.sum().item() == pytest.approx(1.0)
    assert p.novelty is not None
    assert (p.novelty.sort().values - (torch.arange(60) + 0.5) / 60).abs().max() < 0.05
    assert not model.training
    assert not any(member.novelty.fitted for member in model.members)  # once is enough


def test_the_same_seed_gives_the_same_bits_and_the_network_stays() -> None:
    own = net().train()
    state, random = copy.deepcopy(own.state_dict()), torch.get_rng_state()
    models = [choose(own, budget=2.5, epochs=1, seed=s) for s in (0, 0, 1)]
    assert torch.equal(random, torch.get_rng_state())
    assert own.training
    assert all(torch.equal(v, state[k]) for k, v in own.state_dict().items())
    assert all(p.requires_grad for p in own.parameters())
    one, two = (model.state_dict() for model in models[:2])
    assert one.keys() == two.keys()
    assert all(torch.equal(one[k], two[k]) for k in one)
    boards = [model.leaderboard.set_index("candidate")["score"] for model in models]
    assert boards[0].equals(boards[1])
    assert not boards[0].sort_index().equals(boards[2].sort_index())


def joined(data: list[Data], **options: Any) -> torch.utils.data.DataLoader:
    """A loader of ready batches, whose graphs gduq cannot see."""
    batches = [Batch.from_data_list(data[i : i + 10]) for i in range(0, len(data), 10)]
    return torch.utils.data.DataLoader(batches, batch_size=None, **options)


def test_loaders_that_hide_their_graphs_have_no_copies() -> None:
    with pytest.warns(UserWarning, match="without shifted copies.*pass graphs or a View"):
        model = choose(net(), DataLoader(noisy(60, 1), 30), joined(noisy(60, 2)))
    assert gduq.predict(model, noisy(5, 3)).calibrated == "clean"


def test_a_loader_of_graphs_is_as_good_as_the_graphs() -> None:
    val = noisy(60, 2)
    found = [chosen(), choose(net(), val=DataLoader(val, 7, shuffle=True))]
    boards = [model.leaderboard[["candidate", "weight", "score"]] for model in found]
    pd.testing.assert_frame_equal(*boards)
    assert gduq.predict(found[1], noisy(5, 3)).calibrated == "shifted"


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 1.5},
        {"budget": 0.5},
        {"budget": math.nan},
        {"budget": "1.2"},
        {"epochs": 0},
        {"lr": -1.0},
        {"weight_decay": "0.1"},
        {"class_names": ["a"]},
    ],
)
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        choose(net(), **options)


def test_wrong_networks_and_data() -> None:
    with pytest.raises(InputError):
        gduq.choose(net(), noisy(9, 1), None)
    with pytest.raises(InputError):
        choose(gduq.anchor(net()))
    with pytest.raises(InputError):
        choose("net")
    with pytest.raises(InputError):
        choose(net(), val=View(graphs(24, classes=5)))
    with pytest.raises(InputError):
        choose(net(), View(graphs(24, classes=1)))


def test_the_candidates_of_a_head_share_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """All training rows, validation rows and their 8 copies go through the network once; then each
    candidate answers once, to be timed."""
    seen, network, forward = [], Net(), Net.forward

    def counted(self: Net, x: Any, edge_index: Any, batch: Any) -> Any:
        seen.append(batch)
        return forward(self, x, edge_index, batch)

    monkeypatch.setattr(Net, "forward", counted)
    choose(network)
    assert len(seen) <= 10 + 8
