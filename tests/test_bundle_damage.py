"""Bundles that were damaged, edited or made by others: refused, and never executed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from gduq.bundle import describe, files, load, save
from gduq.errors import BundleError
from tests.bundle_cases import GRAPH, anchored, fitted_calibrators, gnn


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


def test_a_newer_format_says_upgrade(contents, place):
    newer = sealed(
        contents, lambda d: d.update(version=files.VERSION + 1, model={"kind": "hologram"})
    )
    with pytest.raises(BundleError, match=rf"format {files.VERSION + 1}\. Upgrade gduq"):
        load(put(place, newer))
    with pytest.raises(BundleError, match="Upgrade"):
        describe(place)


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


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

    if path == ("calibrator",) and value is None:
        return
    with pytest.raises(BundleError):
        load(put(place, sealed(contents, change)))


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
