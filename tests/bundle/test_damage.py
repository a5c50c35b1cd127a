"""Bundles that were damaged, edited or made by others: refused, and never executed."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from warnings import catch_warnings, simplefilter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import gduq
from gduq.bundle import describe, load, load_reference, save, save_load
from gduq.errors import BundleError
from gduq.models import Ensemble, LastLayerLaplace
from gduq.nn import GNN
from gduq.prediction import Labels, Values
from tests.bundle.cases import GRAPH, anchored, fitted_calibrator, gnn, made
from tests.cli.cases import ring
from tests.cli.hostile import ODD, budget
from tests.tampering import rewritten

Change = Callable[[dict], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A sound bundle with a calibrator."""
    path = tmp_path_factory.mktemp("sound") / "m"
    model, calibrator = anchored().fit_anchors(GRAPH), fitted_calibrator()
    save(model, path, calibrator, ["a", "b", "c"])
    assert load(path)[1] is not None
    return path.read_bytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "m"


def put(place: Path, raw: bytes) -> Path:
    place.write_bytes(raw)
    return place


def forged(place: Path, raw: bytes, change: Change) -> Path:
    """A bundle whose document was changed by somebody who knows how to seal it."""

    def words(texts: dict[str, str]) -> None:
        document = json.loads(texts["document"])
        change(document)
        texts["document"] = json.dumps(document)

    return rewritten(place, raw, words)


def edit(*path: object, value: object) -> Change:
    """Sets one entry of a document."""

    def change(document: dict) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return change


# -- damage ---


@budget(30)
@given(data=st.data())
def test_truncated_files_are_refused(sound, place, data):
    with pytest.raises(BundleError):
        load(put(place, sound[: data.draw(st.integers(0, len(sound) - 1))]))


@budget(30)
@given(data=st.data())
def test_flipped_bits_are_refused_or_another_weight(sound, place, data):
    raw = bytearray(sound)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(BundleError):  # and nothing else
        load(put(place, bytes(raw)))


@pytest.mark.parametrize("other", ["gduq bundle 7", "gduq bundle 10", ""])
def test_another_format_is_refused(sound, place, other):
    path = rewritten(place, sound, lambda words: words.update(format=other))
    for read in (load, describe, load_reference):
        with pytest.raises(BundleError):
            read(path)


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and devices")
def test_files_of_others_are_refused(tmp_path, sound):
    save_file({"a": torch.ones(1)}, tmp_path / "foreign")
    os.mkfifo(tmp_path / "pipe")
    os.symlink("/dev/zero", tmp_path / "device")
    inside = put(tmp_path / "m", sound) / "inside"
    for path in (
        tmp_path,
        *map(tmp_path.joinpath, ("nothing", "foreign", "pipe", "device")),
        inside,
    ):
        with pytest.raises(BundleError):
            load(path)


@pytest.mark.parametrize("text", ["null", "[]", "[" * 100_000, "{", ""])
def test_a_document_that_is_none_is_refused(sound, place, text):
    with pytest.raises(BundleError):
        load(rewritten(place, sound, lambda words: words.update(document=text)))


class _Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.target),)


def test_pickle_is_never_opened(tmp_path):
    bomb = _Bomb(tmp_path / "exploded")
    (tmp_path / "model.pt").write_bytes(pickle.dumps(bomb))
    torch.save({"a": bomb}, tmp_path / "weights.pt")
    for file in ("model.pt", "weights.pt"):
        with pytest.raises(BundleError):
            load(tmp_path / file)
    assert not (tmp_path / "exploded").exists()


# -- sealed by somebody who knows how ---


def everywhere(document: object, at: tuple = ()) -> Iterator[tuple]:
    """The place of every entry of a document."""
    entries = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in entries:
        yield (*at, key)
        if isinstance(value, (dict, list)):
            yield from everywhere(value, (*at, key))


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory, sound: bytes) -> list[bytes]:
    """Bundles of models about classes, values and labels, and one of several networks."""
    found, folder = [sound], tmp_path_factory.mktemp("kinds")
    for kind, target in (("values", Values(("size",), ("nm",))), ("labels", Labels(("big",)))):
        graphs = [ring(3 + i % 8, i) for i in range(60)]
        for graph in graphs:
            graph.y = torch.tensor([[graph.num_nodes / 3.0 if kind == "values" else graph.y * 1.0]])
        nets = [GNN(3, 8, 1, num_layers=1, head="mlp") for _ in range(2)]
        for model in (Ensemble(nets), LastLayerLaplace(nets[0])):
            with catch_warnings():
                simplefilter("ignore")  # it explains little after one epoch
                gduq.fit(model, graphs[:40], graphs[40:], epochs=1, target=target, progress=False)
            notes = {"targets": ["size"], "smiles": "smiles"}
            found.append(save(model, folder / "m", preprocessing=notes).read_bytes())
    return found


@budget(60)
@given(data=st.data(), value=ODD)
def test_any_entry_of_a_document_may_be_forged(kinds, place, data, value):
    raw = data.draw(st.sampled_from(kinds))

    def change(document: dict) -> None:
        where = data.draw(st.sampled_from(sorted(everywhere(document), key=str)))
        edit(*where, value=value)(document)

    path = forged(place, raw, change)
    for read in (describe, load):
        with suppress(BundleError):  # and nothing else
            read(path)


CONFIG, NAMES = ("model", "net", "config"), ("model", "target", "names")
FORGED = {
    "layers": edit(*CONFIG, "num_layers", value=10**9),
    "one layer more": edit(*CONFIG, "num_layers", value=3),
    "no number of layers": edit(*CONFIG, "num_layers", value="many"),
    "width": edit(*CONFIG, "hidden_channels", value=10**9),
    "categories": edit(*CONFIG, "categories", value=[10**12]),
    "many categories": edit(*CONFIG, "categories", value=[1] * 10**5),
    "anchors": edit("model", "recipe", "anchors", value=[10**7] * 2),
    "names, too many": edit(*NAMES, value=list("abcd")),
    "classes": edit("model", "target", "num_classes", value="3"),
    "alias of nothing": edit("aliases", value={"a": "nothing"}),
    "unknown kind": edit("model", "kind", value="hologram"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_document_is_refused_in_one_sentence(sound, place, name):
    with pytest.raises(BundleError) as error:
        load(forged(place, sound, FORGED[name]))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_calibration", torch.tensor(7)),
        ("_calibration", torch.tensor(0.0)),
        ("bank", torch.zeros(0, 8)),
        ("linear.bias", torch.full((3,), float("nan"))),
    ],
)
def test_tensors_that_make_no_sense_are_refused(sound, place, name, value):
    with pytest.raises(BundleError):
        load(rewritten(place, sound, tensors=lambda t: t.update({f"weights/{name}": value})))


@pytest.mark.parametrize("case", ["ensemble", "heads"])
def test_more_parts_than_tensors_are_refused(place, case):
    def change(document: dict) -> None:
        document["model"]["members"] *= 1000

    raw = save(made(case), place).read_bytes()
    many = change if case == "ensemble" else edit("model", "size", value=10**9)
    with pytest.raises(BundleError):
        load(forged(place, raw, many))


def test_members_share_networks_of_one_kind_only(place):
    raw = save(made("stack"), place).read_bytes()
    assert len(load(place)[0].members) == 7
    for shared in ([0] * 7, [3] * 7, [-1] * 7, ["0"] * 7, [0], 7):
        with pytest.raises(BundleError):
            load(forged(place, raw, edit("model", "shared", value=shared)))


FOUR = torch.zeros(1, 4, 3)


@pytest.mark.parametrize(
    "tensors",
    [
        {"samples": FOUR},
        {"samples": torch.zeros(4), "target": torch.zeros(4)},
        {"samples": FOUR, "target": torch.full((4,), 7)},
        {"samples": FOUR, "target": torch.zeros(5)},
        {"samples": FOUR, "target": torch.zeros(4), "novelty": torch.ones(1)},
        {"samples": FOUR, "target": torch.zeros(4), "kind": torch.ones(1)},
    ],
)
def test_a_reference_that_makes_no_sense_is_refused(tmp_path, monkeypatch, tensors):
    monkeypatch.setattr(save_load, "_reference_tensors", lambda *_: tensors)
    path = save(gnn(), tmp_path / "m", class_names=["a", "b", "c"], reference=object())
    with pytest.raises(BundleError):
        load_reference(path)
    assert load(path)[1] is None, "the model is sound"
