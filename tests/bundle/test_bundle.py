"""Bundles: the same samples in a fresh process, and models that cannot be saved or loaded so."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from inspect import isfunction
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from gduq._io import read_metadata
from gduq.anchoring import anchor
from gduq.bundle import describe, load, load_reference, save, save_load
from gduq.calibration import TemperatureScaling
from gduq.errors import BundleError, InputError
from gduq.models import Ensemble, MCDropout, as_predictor
from gduq.nn import GNN
from gduq.prediction import ValuePrediction, Values, predict
from gduq.training import fit
from tests.bundle.cases import (
    ALL,
    GRAPH,
    NAMES,
    NODES,
    QUICK,
    STACKS,
    TRAIN,
    VAL,
    Handmade,
    OnNodes,
    Wide,
    anchored,
    call_backwards,
    fitted_calibrator,
    gnn,
    in_process,
    made,
    on_nodes,
    said,
    seeded,
    zoo,
)  # fmt: skip


@pytest.mark.parametrize("names", [QUICK, pytest.param(tuple(ALL), marks=pytest.mark.slow)])
def test_a_fresh_process_says_the_same(tmp_path, names):
    """Many cases in one process, which loads one where only gduq was imported."""
    threads, expected = torch.get_num_threads(), {}
    torch.set_num_threads(1)
    try:
        for name in names:
            case, model = ALL[name], made(name)
            save(model, tmp_path / name)
            known = as_predictor(model, case.call)
            tensors, notes = said(predict(known, case.graph))
            expected[name] = ({**tensors, "temperature": known.temperature}, notes)
    finally:
        torch.set_num_threads(threads)
    alone = str(tmp_path / "head of two maps")
    in_process("answer", tmp_path, before=f"import gduq; gduq.load({alone!r})")
    all_notes = json.loads((tmp_path / "notes.json").read_text())
    for name, (tensors, notes) in expected.items():
        found = load_file(tmp_path / f"{name}.safetensors")
        assert all_notes[name] == notes, name
        assert found.keys() == tensors.keys(), name
        assert torch.isfinite(tensors["samples"]).all(), name
        for key, value in tensors.items():
            assert found[key].dtype == value.dtype, (name, key)
            assert torch.equal(found[key], value), (name, key)


@pytest.mark.parametrize("name", STACKS)
def test_a_loaded_stack_stands_on_one_trunk_that_is_written_once(tmp_path, name):
    case, path = STACKS[name], save(made(name), tmp_path / "m")
    again, _ = load(path, net=case.nets(), call=case.call)
    *trunks, thawed, ensemble = (member.trunk for member in again)
    assert thawed is None
    assert ensemble is None
    assert {(trunk.net, trunk.path) for trunk in trunks} == {(trunks[0].net, trunks[0].path)}
    aliases = json.loads(read_metadata(path)["document"])["aliases"]
    assert aliases
    assert not aliases.keys() & {name.removeprefix("weights/") for name in load_file(path)}


def test_a_loaded_model_goes_on_training_and_the_saved_one_stays_as_it_was(tmp_path):
    model = zoo(at=1).make().train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    again, _ = load(save(torch.compile(model), tmp_path / "m"))
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    F.cross_entropy(again.train()(GRAPH), torch.tensor([0, 2, 1, 0])).backward()
    assert all(p.grad is not None for p in again.parameters())


# -- notes and calibrators ---


def test_notes_come_back(tmp_path):
    notes = {"features": ["degree", "size"], "scale": 0.1, "nested": {"ü": None, "on": True}}
    info = describe(save(gnn(), tmp_path / "m", preprocessing=notes))
    assert info.class_names is None
    assert info.preprocessing == notes
    assert info.calibrator is None
    assert info.model["net"]["config"]["hidden_channels"] == 8
    assert info.libraries["torch"] == torch.__version__


@pytest.mark.parametrize("name", ["TemperatureScaling", "VectorScaling", "SplineCalibration"])
def test_calibrators_come_back_bit_by_bit(tmp_path, name):
    model, calibrator = anchored().fit_anchors(GRAPH), fitted_calibrator(name)
    path = save(model, tmp_path / "m", calibrator=calibrator)
    again, same = load(path)
    p = predict(model, GRAPH)
    assert describe(path).calibrator == name
    assert torch.equal(same(predict(again, GRAPH)).samples, calibrator(p).samples)


@pytest.mark.parametrize("name", ["head, a branch", "own network"])
def test_a_reference_comes_back(tmp_path, monkeypatch, name):
    model = made(name)
    p = predict(model, VAL)
    found = load_reference(save(model, tmp_path / "m", reference=p))
    for part in ("samples", "target", "novelty"):
        assert torch.equal(getattr(found, part), getattr(p, part))
    assert found.names == NAMES
    monkeypatch.setattr(save_load, "_MOST", 60)  # of many rows a random part
    few = load_reference(save(model, tmp_path / "m", reference=p))
    rows = {tuple(row) for row in p.samples[0].tolist()}
    assert {tuple(row) for row in few.samples[0].tolist()} < rows
    save(model, tmp_path / "m")
    assert load_reference(tmp_path / "m") is None


def test_a_reference_of_values_keeps_its_units(tmp_path):
    y = torch.arange(50.0)
    p = ValuePrediction(torch.stack([y, y * 0], dim=1), y)
    model = as_predictor(gnn(out_channels=2))
    model.target = Values(shift=(7.0,), scale=(3.0,), units=("nm",))
    found = load_reference(save(model, tmp_path / "m", reference=p))
    assert torch.equal(found.mean, found.target)
    assert found.units == ("nm",)


# -- models that cannot be saved, or not be loaded like this ---


Unknown = type("Unknown", (), {"config": dict, "state": dict})


class Extra(nn.Linear):
    def get_extra_state(self):
        return {"anything": 1}

    def set_extra_state(self, state):
        pass


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("adj", torch.eye(2).to_sparse_coo())


def other_head() -> GNN:
    net = gnn()
    net.head = nn.Linear(8, 7)
    return net


def of_values(_: nn.Module) -> ValuePrediction:
    return ValuePrediction(torch.zeros(1, 2, 2), torch.ones(2))


NO_JSON = [{"a": (1, 2)}, {1: "a"}, {"a": float("nan")}, {"a": {2}}, {"a": torch.ones(1)}]
NO_NAMES = ["abc", ["a", "b"], ["a", "b", "b"], ["a", "b", 3]]
UNSAVED = [
    *((gnn, {"preprocessing": notes}) for notes in NO_JSON),
    *((gnn, {"class_names": names}) for names in NO_NAMES),
    (gnn, {"calibrator": Unknown()}),
    (gnn, {"calibrator": TemperatureScaling()}),
    (lambda: made("network"), {"reference": of_values}),
    (
        lambda: made("network"),
        {"reference": lambda model: replace(predict(model, VAL), target=None)},
    ),
    (anchored, {}),
    (lambda: Ensemble([anchored()]), {}),
    (lambda: MCDropout(anchored()), {}),
    (lambda: nn.LazyLinear(3), {}),
    (lambda: Extra(2, 2), {}),
    (Sparse, {}),
    (other_head, {}),
]


@pytest.mark.parametrize(("make", "options"), UNSAVED)
def test_what_is_refused_at_saving(tmp_path, make, options):
    model = make()
    given = {name: value(model) if isfunction(value) else value for name, value in options.items()}
    with pytest.raises(InputError):
        save(model, tmp_path / "m", **given)
    assert not (tmp_path / "m").exists()


def test_a_subclass_of_gnn_is_the_users_own(tmp_path):
    class Mine(GNN):
        def forward(self, graph):
            return 2 * super().forward(graph)

    model = Mine(4, 8, 3, num_layers=2).eval()
    path = save(model, tmp_path / "m")
    with pytest.raises(BundleError):
        load(path)
    again, _ = load(path, net=Mine(4, 8, 3, num_layers=2))
    assert torch.equal(again(GRAPH), model(GRAPH))


UNLOADED = [
    ("handmade", None),
    ("handmade", Wide),
    ("handmade", OnNodes),
    ("handmade", lambda: anchor(Handmade(), "last")),
    ("handmade", lambda: Handmade),
    ("own network with a call", OnNodes),  # without call=
    ("gin", Handmade),
    ("mixed ensemble", lambda: [Handmade()]),
    ("mixed ensemble", lambda: [Handmade(), Handmade()]),
]


@pytest.mark.parametrize(("name", "net"), UNLOADED)
def test_networks_that_do_not_fit_are_refused(tmp_path, name, net):
    path, case = save(made(name), tmp_path / "m"), ALL[name]
    with pytest.raises(InputError):
        load(path, net=net and net())
    with pytest.raises(InputError):  # a call that it was made with, or none that it was not
        load(path, net=case.nets(), call=None if case.call else call_backwards)


@pytest.mark.parametrize(("make", "outputs"), [(GNN, 2), (GNN, 1), (Handmade, 3)])
def test_class_names_of_a_model_that_was_never_fitted(tmp_path: Path, make, outputs) -> None:
    net = Handmade() if make is Handmade else GNN(4, 8, outputs, num_layers=2)
    names = ("no", "yes", "perhaps")[: max(2, outputs)]
    save(net, tmp_path / "model", class_names=names)
    loaded, _ = load(tmp_path / "model", net=Handmade() if make is Handmade else None)
    assert predict(loaded, GRAPH).names == names


def test_names_given_at_saving_come_before_those_of_fit(tmp_path: Path) -> None:
    net = seeded(on_nodes)
    fit(net, TRAIN, epochs=1, class_names=NAMES, progress=False)
    for given, expected in ((None, NAMES), (("x", "y", "z"), ("x", "y", "z"))):
        path = save(net, tmp_path / "m", class_names=given)
        assert describe(path).class_names == list(expected)
        assert predict(load(path)[0], NODES).names == expected
    assert predict(net, NODES).names == NAMES  # saving changes nothing


def test_the_network_handed_in_is_copied(tmp_path: Path) -> None:
    path, net = save(OnNodes(), tmp_path / "m"), seeded(OnNodes)
    before = copy.deepcopy(net.state_dict())
    again, _ = load(path, net=net)
    assert again.net is not net
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
