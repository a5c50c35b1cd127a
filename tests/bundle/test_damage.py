"""Bundles that were damaged, edited or made by others: refused, and never executed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from gduq.bundle import bundle_files as files
from gduq.bundle import describe, load, load_reference, save, save_load
from gduq.errors import BundleError
from tests.bundle.cases import CASES, FITTED, GRAPH, STACKS, anchored, fitted_calibrators, gnn


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a sound bundle with a calibrator."""
    calibrator = fitted_calibrators()["VectorScaling"]
    model = anchored().fit_bank(GRAPH)
    path = save(model, tmp_path_factory.mktemp("sound") / "m", calibrator, ["a", "b", "c"])
    return {p.name: p.read_bytes() for p in sorted(path.iterdir())}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


def put(place: Path, contents: dict[str, bytes]) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, raw in contents.items():
        (place / name).write_bytes(raw)
    return place


def test_the_sound_bundle_is_sound(contents, place):
    assert load(put(place, contents))[1] is not None
    assert len(contents) == 3


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_truncated_files_are_refused(contents, place, data):
    name = data.draw(st.sampled_from(sorted(contents)))
    length = data.draw(st.integers(0, len(contents[name]) - 1))
    with pytest.raises(BundleError):
        load(put(place, {**contents, name: contents[name][:length]}))


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_flipped_bits_are_refused(contents, place, data):
    name = data.draw(st.sampled_from(sorted(contents)))
    raw = bytearray(contents[name])
    where = data.draw(st.integers(0, len(raw) - 1))
    raw[where] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BundleError):
        load(put(place, {**contents, name: bytes(raw)}))


@settings(deadline=None, max_examples=60)
@given(data=st.data(), raw=st.binary(max_size=300))
def test_any_other_bytes_are_refused(contents, place, data, raw):
    name = data.draw(st.sampled_from(sorted(contents)))
    appended = data.draw(st.booleans())
    raw = contents[name] + raw if appended and raw else raw
    with pytest.raises(BundleError):
        load(put(place, {**contents, name: raw}))


def test_a_missing_file_is_named(contents, place):
    for name in contents:
        with pytest.raises(BundleError, match=name.replace(".", r"\.")):
            load(put(place, {k: v for k, v in contents.items() if k != name}))


def test_weights_of_another_bundle_are_refused(contents, place, tmp_path):
    name = next(n for n in contents if n.startswith("weights"))
    foreign = next(save(gnn(), tmp_path / "m").glob("weights-*")).read_bytes()
    with pytest.raises(BundleError, match="bytes"):
        load(put(place, {**contents, name: foreign}))


def sealed(contents: dict[str, bytes], change: Callable[[dict], None]) -> dict[str, bytes]:
    """A bundle whose index was changed by somebody who knows how to seal it."""
    document = json.loads(contents["bundle.json"])
    del document["sha256"]
    change(document)
    return {**contents, "bundle.json": files._encode(files._sealed(document))}


@pytest.mark.parametrize("version", [3, 5, -1, None, "4", True, 4.0, [4]])
def test_another_format_is_refused(contents, place, version):
    other = put(place, sealed(contents, lambda d: d.update(version=version, model=None)))
    got = f"format {version}" if type(version) is int else "no format number"
    expected = f"expected a bundle of format 4, got {got}. Save the model again with this gduq."
    for read in (load, describe):
        with pytest.raises(BundleError) as error:
            read(other)
        assert str(error.value) == expected


def test_a_bundle_of_another_format_is_replaced_whole(contents, place):
    save(gnn(), put(place, sealed(contents, lambda d: d.update(version=3))))
    assert sorted(p.suffix for p in place.iterdir()) == [".json", ".safetensors"]
    load(place)


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


HARMLESS = [
    (("calibrator",), None),
    (("model", "recipe"), {}),  # the defaults
    (("model", "target"), None),
    (("model", "target", "names"), None),
    (("aliases",), {}),
]


@settings(deadline=None, max_examples=80)
@given(data=st.data(), value=ODD)
def test_a_sealed_bundle_that_makes_no_sense_is_refused(contents, place, data, value):
    keys = st.sampled_from(
        [
            ("model",),
            ("model", "kind"),
            ("model", "source"),
            ("model", "net"),
            ("model", "net", "config"),
            ("model", "net", "config", "conv"),
            ("model", "recipe"),
            ("model", "point"),
            ("model", "target"),
            ("model", "target", "names"),
            ("aliases",),
            ("calibrator",),
            ("calibrator", "name"),
            ("files",),
            ("files", "weights"),
            ("files", "weights", "name"),
            ("files", "weights", "sha256"),
        ]
    )
    path = data.draw(keys)

    def change(document: dict) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    if (path, value) in HARMLESS:
        return
    with pytest.raises(BundleError):
        load(put(place, sealed(contents, change)))


def edit(*path: object, value: object) -> Callable[[dict], None]:
    """Sets one entry of a document."""

    def change(document: dict) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return change


def nested(depth: int) -> dict:
    spec: dict = {"kind": "Network", "target": None}
    for _ in range(depth):
        spec = {"kind": "MCDropout", "num_samples": 1, "seed": 0, "model": spec, "target": None}
    return spec


CONFIG = ("model", "net", "config")
FORGED = {
    "layers": (edit(*CONFIG, "num_layers", value=10**9), "num_layers=2"),
    "one layer more": (edit(*CONFIG, "num_layers", value=3), "tensors that fit GNN"),
    "no number of layers": (edit(*CONFIG, "num_layers", value="many"), "a whole number"),
    "width": (edit(*CONFIG, "hidden_channels", value=10**9), "hidden_channels of"),
    "inputs": (edit(*CONFIG, "in_channels", value=10**9), "in_channels of"),
    "outputs": (edit(*CONFIG, "out_channels", value=10**9), "out_channels of"),
    "categories": (edit(*CONFIG, "categories", value=[10**12]), "as large as its tensors"),
    "many categories": (edit(*CONFIG, "categories", value=[1] * 10**5), "as large as"),
    "anchors": (
        edit("model", "source", value={"kind": "fixed", "shape": [10**6, 10**6]}),
        "as large as its tensors",
    ),
    "gaussian": (
        edit(
            "model",
            "source",
            value={"kind": "gaussian", "channels": 10**11, "momentum": None, "floor": 0.1},
        ),
        "as large as its tensors",
    ),
    "names, a text": (edit("model", "target", "names", value="abc"), "a list of texts"),
    "names, numbers": (edit("model", "target", "names", value=[1, 2, 3]), "a list of texts"),
    "names, nested": (edit("model", "target", "names", value=[["a"]] * 3), "a list of texts"),
    "names, equal": (edit("model", "target", "names", value=["a"] * 3), "that differ"),
    "names, too many": (
        edit("model", "target", "names", value=list("abcd")),
        "names, one per class",
    ),
    "names, a surrogate": (
        edit("model", "target", "names", value=["a", "b", "\ud800"]),
        "whole letters",
    ),
    "classes": (edit("model", "target", "num_classes", value="3"), "names, one per class"),
    "models in models": (edit("model", value=nested(9)), "at most 8 models deep"),
    "deep": (edit("model", value=nested(200)), "at most 8 models deep"),
    "seed": (edit("model", "seed", value=2**64), "seed, a whole number"),
    "no seed": (edit("model", "seed", value="0"), "seed, a whole number"),
    "alias of nothing": (edit("aliases", value={"a": "nothing"}), "nothing"),
    "alias of a tensor": (edit("aliases", value={"bank": "temperature"}), "of their own"),
    "unknown kind": (edit("model", "kind", value="hologram"), "a kind of model"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_index_is_refused_in_one_sentence_and_no_time(contents, place, name):
    change, words = FORGED[name]
    start = time.perf_counter()
    with pytest.raises(BundleError, match=words) as error:
        load(put(place, sealed(contents, change)))
    assert time.perf_counter() - start < 5
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def forged_weights(
    contents: dict[str, bytes], change: Callable[[dict[str, torch.Tensor]], None]
) -> dict[str, bytes]:
    """A bundle whose tensors were changed by somebody who knows how to seal it."""
    name = next(n for n in contents if n.startswith("weights"))
    tensors = safetensors.torch.load(contents[name])
    change(tensors)
    raw = safetensors.torch.save(tensors)
    seal = {"size": len(raw), "sha256": files._digest(raw)}
    return {**sealed(contents, lambda d: d["files"]["weights"].update(seal)), name: raw}


@pytest.mark.parametrize(
    "tensor", ["linear.weight", "bank", "point.net.layers.0.linear.weight", "_calibration"]
)
def test_mixed_dtypes_are_refused(contents, place, tensor):
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[tensor] = tensors[tensor].double()

    with pytest.raises(BundleError, match=r"of torch\."):
        load(put(place, forged_weights(contents, change)))


def test_a_calibration_nobody_knows_is_refused(contents, place):
    bad = forged_weights(contents, lambda t: t.update(_calibration=torch.tensor(7)))
    with pytest.raises(BundleError, match="a model in"):
        load(put(place, bad))


def test_a_bank_without_anchors_is_refused(contents, place):
    bad = forged_weights(contents, lambda t: t.update(bank=torch.zeros(0, 8)))
    with pytest.raises(BundleError, match="bank of anchors"):
        load(put(place, bad))


def test_more_members_than_tensors_are_refused(tmp_path, place):
    model = CASES["ensemble"].make()
    raw = {p.name: p.read_bytes() for p in save(model, tmp_path / "m").iterdir()}

    def change(document: dict) -> None:
        document["model"]["members"] *= 1000

    with pytest.raises(BundleError, match="as large as its tensors"):
        load(put(place, sealed(raw, change)))


def test_more_heads_than_tensors_are_refused(tmp_path, place):
    model = FITTED["heads"].make()
    raw = {p.name: p.read_bytes() for p in save(model, tmp_path / "m").iterdir()}
    with pytest.raises(BundleError, match="as large as its tensors"):
        load(put(place, sealed(raw, edit("model", "size", value=10**9))))


def test_members_share_networks_of_one_kind_only(tmp_path, place):
    model = STACKS["stack"].make()
    raw = {p.name: p.read_bytes() for p in save(model, tmp_path / "m").iterdir()}
    assert len(load(put(place, raw))[0].members) == 6
    for shared in ([0] * 6, [3] * 6, [-1] * 6, ["0"] * 6, [0], 7):
        with pytest.raises(BundleError):
            load(put(place, sealed(raw, edit("model", "shared", value=shared))))


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"samples": torch.zeros(1, 4, 3)},
        {"samples": torch.zeros(4), "target": torch.zeros(4)},
        {"samples": torch.zeros(1, 4, 3), "target": torch.full((4,), 7)},
        {"samples": torch.zeros(1, 4, 3), "target": torch.zeros(5)},
        {"samples": torch.zeros(1, 4, 3), "target": torch.zeros(4), "novelty": torch.ones(1)},
        {"samples": torch.zeros(1, 4, 3), "target": torch.zeros(4), "kind": torch.ones(1)},
    ],
)
def test_a_reference_that_makes_no_sense_is_refused(tmp_path, monkeypatch, tensors):
    monkeypatch.setattr(save_load, "reference_tensors", lambda *_: tensors)
    path = save(gnn(), tmp_path / "m", class_names=["a", "b", "c"], reference=object())
    with pytest.raises(BundleError):
        load_reference(path)
    assert load(path)[1] is None, "the model is sound"


def test_a_sealed_index_cannot_have_other_files_deleted(contents, place):
    treasure = place.parent / "treasure.txt"
    treasure.write_text("gold")
    bad = sealed(contents, lambda d: d["files"]["weights"].update(name="../treasure.txt"))
    save(gnn(), put(place, bad))
    assert treasure.read_text() == "gold"


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and devices")
@pytest.mark.parametrize("which", ["bundle", "weights"])
def test_pipes_and_devices_are_not_read(contents, place, which):
    name = next(n for n in contents if n.startswith(which))
    for make in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
        (put(place, contents) / name).unlink()
        make(place / name)
        with pytest.raises(BundleError, match="a regular file"):
            load(place)


def test_sealed_names_do_not_lead_out_of_the_folder(contents, place):
    secret = place.parent / "secret.safetensors"
    save_file({"a": torch.ones(1)}, secret)
    bad = sealed(contents, lambda d: d["files"]["weights"].update(name="../secret.safetensors"))
    with pytest.raises(BundleError, match="none"):
        load(put(place, bad))


class _Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.target),)


def test_pickle_is_never_opened(contents, place, tmp_path):
    bomb = pickle.dumps(_Bomb(tmp_path / "exploded"))
    (tmp_path / "model.pt").write_bytes(bomb)
    torch.save({"a": _Bomb(tmp_path / "exploded")}, tmp_path / "weights.pt")
    for file in ("model.pt", "weights.pt"):
        with pytest.raises(BundleError, match="can run code"):
            load(tmp_path / file)
    for name in contents:
        for raw in (bomb, (tmp_path / "weights.pt").read_bytes()):
            with pytest.raises(BundleError):
                load(put(place, {**contents, name: raw}))
    name = next(n for n in contents if n.startswith("weights"))
    digest = files._digest(bomb)
    trusted = sealed(
        contents, lambda d: d["files"]["weights"].update(size=len(bomb), sha256=digest)
    )
    with pytest.raises(BundleError):
        load(put(place, {**trusted, name: bomb}))
    assert not (tmp_path / "exploded").exists()


def test_other_programs_folders_are_refused(tmp_path):
    with pytest.raises(BundleError, match="no such folder"):
        load(tmp_path / "nothing")
    with pytest.raises(BundleError, match="without it"):
        load(tmp_path)
    for text in (
        "{}",
        "[]",
        "null",
        '{"format": "other"}',
        "[" * 100_000,
        "\ud800".encode("utf-8", "surrogatepass"),
    ):
        raw = text if isinstance(text, bytes) else text.encode()
        (tmp_path / "bundle.json").write_bytes(raw)
        with pytest.raises(BundleError, match=r"written by gduq\.save"):
            load(tmp_path)


def test_a_hand_edited_index_is_refused(contents, place):
    edited = contents["bundle.json"].replace(b'"at": "readout"', b'"at": "input"  ')
    assert edited != contents["bundle.json"]
    with pytest.raises(BundleError, match="damaged or edited"):
        load(put(place, {**contents, "bundle.json": edited}))
