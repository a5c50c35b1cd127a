"""`at="auto"`: the place is chosen on validation data, and the choice changes nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

import gduq
from gduq import InputError, NotFittedError, metrics, shifts
from gduq.data import View
from gduq.experiments.config import RunConfig
from gduq.experiments.run import run as run_experiment
from gduq.nn import GNN
from gduq.training import checkpoint as checkpoint_module
from gduq.training import halving
from gduq.training.halving import EXTRA, SEVERITY, Judge, kept, ranked, rounds
from gduq.training.run import Run
from tests.conftest import tiny_graph

EPOCHS = 10  # rounds end after epochs 1 and 4
OPTIONS: dict[str, Any] = {"lr": 1e-2, "batch_size": 8, "seed": 5, "progress": False}


def graphs(count: int, seed: int = 0) -> list[Data]:
    """Graphs whose label shows in the first feature."""
    found = [tiny_graph(3 + i % 4, seed + i, classes=2) for i in range(count)]
    for i, graph in enumerate(found):
        graph.y = torch.tensor([i % 2])
        graph.x[:, 0] += 2.0 * (i % 2)
    return found


TRAIN, VAL = graphs(16), graphs(12, seed=100)


def network(task: str = "graph", layers: int = 3, **options: Any) -> GNN:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GNN(4, 8, 2, num_layers=layers, task=task, **options).double()


def auto(net: nn.Module | None = None, **options: Any) -> gduq.AutoAnchored:
    model = gduq.anchor(net or network(), at="auto", num_anchors=3, **options)
    assert isinstance(model, gduq.AutoAnchored)
    return model


def fitted(**options: Any) -> gduq.AutoAnchored:
    model = auto()
    gduq.fit(model, TRAIN, VAL, epochs=EPOCHS, **OPTIONS, **options)
    return model


def same(one: nn.Module, two: nn.Module) -> bool:
    a, b = one.state_dict(), two.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# -- the schedule --------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [1, 2, 3, 4, 5, 6, 9])
@pytest.mark.parametrize("epochs", [50, 77, 100, 400])
def test_choosing_costs_less_than_a_second_training(places: int, epochs: int) -> None:
    left, spent, before = places, 0, 0
    for end in rounds(places, epochs):
        assert before < end < epochs
        spent += left * (end - before)
        left, before = -(-left // 2), end
    assert left == 1
    total = spent + epochs - before
    assert total <= (1 + EXTRA) * epochs < 2 * epochs


def test_few_epochs_are_enough_to_choose() -> None:
    for epochs in (1, 2, 3):
        assert max(rounds(4, epochs)) <= epochs
        model = auto()
        history = gduq.fit(model, TRAIN, VAL, epochs=epochs, **OPTIONS)
        assert len(history) == epochs
        assert model.at in network().points


# -- the choice ----------------------------------------------------------------------------------


def test_the_score_is_the_mean_nll_on_clean_and_corrupted_rows() -> None:
    model = gduq.anchor(network(), at=1, num_anchors=3).fit_bank(TRAIN)
    view = View(VAL)
    changes = (shifts.edge_drop, shifts.edge_rewire, shifts.feature_noise, shifts.feature_mask)
    views = [view, *(change(view, SEVERITY) for change in changes)]
    expected = sum(metrics.nll(gduq.predict(model, v)) for v in views) / 5
    found = Judge(view, 256).losses(model)
    assert len(found) == len(VAL)
    assert sum(found) / len(found) == pytest.approx(expected)


def test_an_earlier_place_has_to_be_clearly_better() -> None:
    noise = torch.randn(400, generator=torch.Generator().manual_seed(0))
    noise = (noise - noise.mean()) / noise.std()  # so a standard error of it is 1 / 20
    readout = torch.rand(400, generator=torch.Generator().manual_seed(1))

    def order(errors: float) -> list[int | str]:
        """If the earlier place is better by so many standard errors."""
        earlier = readout - errors / 20 + noise
        return ranked({1: earlier.tolist(), "readout": readout.tolist()})

    assert order(3.0) == order(2.1) == [1, "readout"]
    assert order(1.9) == order(0.0) == order(-3.0) == ["readout", 1]
    assert ranked({1: readout.tolist(), "readout": readout.tolist()}) == ["readout", 1]


def test_what_looks_best_is_not_given_up_for_its_equals_before_the_end() -> None:
    rows = torch.rand(50, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(50, generator=torch.Generator().manual_seed(1))
    noise -= noise.mean()
    found = {"input": (rows - 0.01 + noise).tolist(), 1: rows.tolist(), 2: rows.tolist(),
             "readout": rows.tolist()}  # fmt: skip
    assert ranked(found)[0] == "readout"
    assert kept(found) == ["input", "readout"]
    assert kept({at: found[at] for at in kept(found)}) == ["readout"]


def test_what_is_clearly_worse_is_ranked_by_its_loss() -> None:
    rows = {"input": [3.0, 3.1], 1: [2.0, 2.1], 2: [float("nan"), 0.0], "readout": [1.0, 1.1]}
    assert ranked(rows) == ["readout", 1, "input", 2]
    assert ranked({"input": [0.2], 1: [0.3]}) == ["input", 1]  # one row: no idea of chance
    lost = [float("nan"), 1.0]
    assert ranked({"input": lost, 1: lost, "readout": lost})[0] == "readout"


def test_graphs_without_features_are_judged_by_their_edges() -> None:
    bare = [Data(edge_index=g.edge_index, num_nodes=g.num_nodes, y=g.y) for g in VAL]
    whole = [Data(x=torch.ones(g.num_nodes, 1).long(), edge_index=g.edge_index) for g in VAL]
    assert len(Judge(View(bare), 256).views) == len(Judge(View(whole), 256).views) == 3


def test_a_place_that_cannot_learn_is_not_chosen() -> None:
    """One candidate starts dead: no gradient passes its zero layers."""
    for dead in ("input", 2):
        candidates = {at: gduq.anchor(network(), at=at, num_anchors=3) for at in ("input", 2)}
        with torch.no_grad():
            for p in candidates[dead].parameters():
                p.zero_()
        model = gduq.AutoAnchored(candidates.values())
        gduq.fit(model, TRAIN, VAL, epochs=30, **OPTIONS)
        assert model.at != dead
        assert model.scores[model.at][0] < model.scores[dead][0]


PLANTED: dict[int | str, list[float]] = {
    "input": [0.4, 0.3],
    1: [0.2, 0.9],
    2: [0.5, 0.0],  # would win, but for its first round
    "readout": [0.6, 0.0],
}


def test_the_worse_half_goes_after_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    left = {at: list(scores) for at, scores in PLANTED.items()}
    monkeypatch.setattr(Judge, "losses", lambda _, model: [left[model.at].pop(0)])
    model = auto()
    history = gduq.fit(model, TRAIN, VAL, epochs=EPOCHS, **OPTIONS)
    assert model.at == "input"
    assert model.scores == {"input": (0.4, 0.3), 1: (0.2, 0.9), 2: (0.5,), "readout": (0.6,)}
    first, second = rounds(4, EPOCHS)
    assert sorted(len(other) for other in history.given_up) == [first, first, second]
    assert history.seconds > sum(record.seconds for record in history.records)


@pytest.mark.parametrize("select", ["best", "last"])
@pytest.mark.parametrize("task", ["graph", "node"])
def test_the_chosen_model_is_the_one_trained_alone(task: str, select: Any) -> None:
    train: Any = TRAIN
    val: Any = VAL
    if task == "node":
        graph = tiny_graph(40, seed=3)
        graph.y = (graph.x[:, 0] > 0).long()
        train, val = (View(graph, torch.arange(40) % 2 == i) for i in range(2))
    options = {**OPTIONS, "epochs": EPOCHS, "select": select, "draws": 2, "mask": 0.2}
    model = auto(network(task), scope="graph", seed=4)
    random = torch.random.get_rng_state()
    history = gduq.fit(model, train, val, **options)
    assert torch.equal(random, torch.random.get_rng_state())
    alone = gduq.anchor(network(task), at=model.at, num_anchors=3, scope="graph", seed=4)
    expected = gduq.fit(alone, train, val, **options)
    assert same(model.chosen, alone)
    assert [r.loss for r in history.records] == [r.loss for r in expected.records]
    assert history.kept_epoch == expected.kept_epoch


def test_same_seed_same_choice() -> None:
    one, two = fitted(), fitted()
    assert one.scores == two.scores
    assert same(one, two)


def test_frozen_candidates() -> None:
    model = auto(freeze=True)
    assert model.places == ("input", 1, 2, "readout")
    assert [c.frozen for c in model.candidates] == [False, True, True, True]
    assert [c.init for c in model.candidates] == ["identity", "random", "random", "random"]
    gduq.fit(model, TRAIN, VAL, epochs=EPOCHS, **OPTIONS)
    first = model.at == "input"
    options = {"freeze": not first, "init": "identity" if first else "random"}
    alone = gduq.anchor(network(), at=model.at, num_anchors=3, **options)
    gduq.fit(alone, TRAIN, VAL, epochs=EPOCHS, **OPTIONS)
    assert same(model.chosen, alone)


# -- before and after ----------------------------------------------------------------------------


def test_nothing_works_before_the_choice(tmp_path: Path) -> None:
    model = auto()
    assert model.at == "auto"
    dropping = gduq.MCDropout(auto())
    for act in (
        lambda: model(VAL[0]),
        lambda: model.sample(VAL[0]),
        lambda: model.represent(VAL[0]),
        lambda: model.fit_bank(TRAIN),
        lambda: gduq.predict(model, VAL),
        lambda: gduq.save(model, tmp_path / "a"),
        lambda: gduq.save(dropping, tmp_path / "b"),
    ):
        with pytest.raises(NotFittedError, match=r"chosen place.*gduq\.fit"):
            act()
    assert not list(tmp_path.iterdir())


def test_afterwards_it_is_the_chosen_model(tmp_path: Path) -> None:
    model = fitted()
    assert not model.training
    assert len(model.candidates) == 1
    graph = VAL[0]
    assert torch.equal(model(graph), model.chosen(graph))
    assert torch.equal(model.represent(graph), model.chosen.represent(graph))
    p = gduq.predict(model, VAL, features=True)
    q = gduq.predict(model.chosen, VAL, features=True)
    assert torch.equal(p.samples, q.samples)
    assert torch.equal(p.features, q.features)
    again, _ = gduq.load(gduq.save(model, tmp_path / "model"))
    assert type(again) is gduq.Anchored
    assert again.at == model.at
    assert torch.equal(gduq.predict(again, VAL).samples, p.samples)
    assert model.fit_bank(TRAIN, k=5).sample(graph).size(0) == 5


def test_fitting_again_goes_on_with_the_chosen_model() -> None:
    model, alone = fitted(), fitted().chosen
    for one in (model, alone):
        gduq.fit(one, TRAIN, VAL, epochs=2, **OPTIONS)
    assert same(model.chosen, alone)


@pytest.mark.parametrize("processes", [1, 2])
def test_inside_of_ensembles_and_dropout(processes: int, tmp_path: Path) -> None:
    nets = [network(), gduq.anchor(network(dropout=0.1), num_anchors=3, seed=1)]
    model = gduq.Ensemble([auto(nets[0]), gduq.MCDropout(nets[1], 2)])
    gduq.fit(model, TRAIN, VAL, epochs=EPOCHS, processes=processes, **OPTIONS)
    assert same(model.members[0], fitted().chosen)
    again, _ = gduq.load(gduq.save(model, tmp_path / "ensemble"))
    assert torch.equal(gduq.predict(again, VAL).samples, gduq.predict(model, VAL).samples)
    dropping = gduq.MCDropout(auto(), 2)
    gduq.fit(dropping, TRAIN, VAL, epochs=EPOCHS, **OPTIONS)
    again, _ = gduq.load(gduq.save(dropping, tmp_path / "dropout"))
    assert torch.equal(gduq.predict(again, VAL).samples, gduq.predict(dropping, VAL).samples)


# -- interrupted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [0, 3, 6, 8, 12])
def test_an_interrupted_choice_ends_as_the_whole(
    epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after so many epochs over all candidates: in round 1, in round 2, near the end."""
    left, whole = [epochs], Run._epoch

    def dying(self: Run, epoch: int) -> Any:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return whole(self, epoch)

    monkeypatch.setattr(checkpoint_module, "_RARELY", 10**9)  # checkpoints only where they must be
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_epoch", dying)
        with pytest.raises(KeyboardInterrupt):
            fitted(resume=tmp_path)
    model, expected = auto(), fitted()
    history = gduq.fit(model, TRAIN, VAL, epochs=EPOCHS, resume=tmp_path, **OPTIONS)
    assert model.scores == expected.scores
    assert same(model, expected)
    ends = rounds(len(model.scores), EPOCHS)
    dropped = [len(scores) for scores in model.scores.values()]
    dropped.remove(max(dropped))  # the winner's
    assert sorted(map(len, history.given_up)) == sorted(ends[n - 1] for n in dropped)
    monkeypatch.setattr(Run, "_epoch", lambda *_: pytest.fail("it was finished"))
    assert same(fitted(resume=tmp_path), expected)


def test_another_choice_is_not_gone_on_with(tmp_path: Path) -> None:
    fitted(resume=tmp_path)
    with pytest.raises(InputError, match=r"'epochs': 10.*got .*'epochs': 11.*start afresh"):
        gduq.fit(auto(), TRAIN, VAL, epochs=EPOCHS + 1, resume=tmp_path, **OPTIONS)
    for other in (VAL[:-1], VAL[1:] + VAL[:1]):  # fewer rows; the same ones in another order
        with pytest.raises(InputError, match=r"'val': .*start afresh"):
            gduq.fit(auto(), TRAIN, other, epochs=EPOCHS, resume=tmp_path, **OPTIONS)
    (tmp_path / "places.json").write_text("[]")
    with pytest.raises(InputError, match="the losses of places"):
        fitted(resume=tmp_path)


# -- mistakes ------------------------------------------------------------------------------------


def test_a_choice_needs_validation_data() -> None:
    for val, words in ((None, "got none"), (DataLoader(VAL), "got a loader")):
        with pytest.raises(InputError, match=f"to choose the place by, {words}"):
            gduq.fit(auto(), TRAIN, val, epochs=EPOCHS, **OPTIONS)


def test_other_networks_must_name_their_places() -> None:
    net = torch_geometric.nn.GCN(4, 8, 2, out_channels=2).double()
    with pytest.raises(InputError, match=r"gduq\.AutoAnchored\(.*'input'.*'convs\.1'"):
        gduq.anchor(net, at="auto")
    graph = tiny_graph(40, seed=3)
    graph.y = (graph.x[:, 0] > 0).long()
    train, val = (View(graph, torch.arange(40) % 2 == i) for i in range(2))
    places = ("input", "convs.1")
    model = gduq.AutoAnchored(gduq.anchor(net, at=at, num_anchors=3) for at in places)
    gduq.fit(model, train, val, epochs=EPOCHS, **OPTIONS)
    assert model.at in places
    assert len(gduq.predict(model, val)) == 20


def test_candidates_must_differ() -> None:
    for models in ([], [gduq.anchor(network(), at=1)] * 2):
        with pytest.raises(InputError, match="different places"):
            gduq.AutoAnchored(models)
    with pytest.raises(InputError, match="a place from 'input', 1, 2, 'readout', got 7"):
        auto().settle(7, {})


# -- through the command line's door -------------------------------------------------------------


def test_a_run_with_an_automatic_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halving, "EXTRA", 0.5)
    config = RunConfig(
        data={"name": "cbas/color/concept"},
        model={"conv": "gcn", "hidden_channels": 8},
        method={"kind": "anchored", "at": "auto", "num_anchors": 3},
        training={"epochs": 6},
        calibrators=(),
    )
    folder = run_experiment(config, tmp_path, progress=False, evaluate=False)
    model, _ = gduq.load(folder.bundle)
    assert model.at in ("input", 1, 2, "readout")
    alone = run_experiment(
        config.with_({"method.at": model.at}), tmp_path, progress=False, evaluate=False
    )
    one, two = (f.predictions()["ood_test"].samples for f in (folder, alone))
    assert torch.equal(one, two)
    assert folder.info["parameters"] == alone.info["parameters"]
