"""Fuzzers: whatever a table, a folder, a graph file, a config or a run holds, one sentence says it.

`make test` tries a few of each, `make test-all` many and new ones. Bundles have tests of their own
(bundle/test_damage.py), HTTP requests too (serve/test_http.py).
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gduq.data import save, stream
from gduq.data.outputs import Reject
from gduq.errors import InputError
from gduq.graphs import check_graph
from gduq.report import subject_from_run
from gduq.runs.config import RunConfig
from gduq.runs.folder import RunFolder
from tests.cli.cases import rings
from tests.cli.hostile import ODD, budget, changed, run_folder
from tests.tampering import joined, split_up

pytest.importorskip("rdkit")
TABLE = b'smiles,name,y\nCCO,"a, b",1\nc1ccccc1,"two\nlines",0\nCC(=O)O,x,1\n'
CONFIG = b'seed = 3\n[data]\nname = "cbas/color/concept"\n[training]\nepochs = 4\nlr = 1e-3\n'


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


def read_all(path: Path, **options) -> None:
    """Every row is a sound graph or a reject, unless the file as a whole is refused."""
    try:
        for _, item in stream(path, **options):
            if isinstance(item, Reject):
                assert item.reason
            else:
                check_graph(item)
    except InputError as error:
        one_sentence(error)


def one_sentence(error: InputError) -> None:
    text = str(error)
    assert "\n" not in text
    assert len(text) < 2000


# -- graphs --------------------------------------------------------------------------------------


@budget(30)
@given(data=st.data())
@pytest.mark.filterwarnings(
    "ignore:'.*' holds .* different whole numbers",
    "ignore:t.* is no UTF-8",
    "ignore:In column .* one class",
)
def test_tables(place, data):
    path = place / data.draw(st.sampled_from(("t.csv", "t.tsv")))
    raw = data.draw(st.sampled_from((b"", b"smiles\n", b"smiles,y\n")))
    anything = raw + data.draw(st.binary(max_size=200))
    path.write_bytes(data.draw(st.sampled_from((changed(TABLE, data), anything))))
    read_all(path, targets=data.draw(st.sampled_from(((), ("y",), ("y", "name")))))


@pytest.fixture(scope="module")
def graph_file(place: Path) -> bytes:
    graphs = rings(4)
    for i, graph in enumerate(graphs):
        graph.smiles = "C" * (i + 1)
    return save(graphs, place / "sound.safetensors", ["small", "large"]).read_bytes()


@budget(60)
@given(data=st.data(), value=ODD)
def test_graph_files(place, graph_file, data, value):
    """Other bytes anywhere, another body behind the same header, or odd words in the header."""
    header, body = split_up(graph_file)
    words, path = header["__metadata__"], place / "g.safetensors"
    how = data.draw(st.sampled_from(("bytes", "body", "header")))
    if how == "header":
        key = data.draw(st.sampled_from(sorted({*words, *header} - {"__metadata__", "seal"})))
        if key in words:
            words[key] = data.draw(st.sampled_from((json.dumps(value), str(value), "[" * 9000)))
        else:
            header[key] = value
    spoilt = changed(body, data)[: len(body)].ljust(len(body), b"\0") if how == "body" else body
    path.write_bytes(changed(graph_file, data) if how == "bytes" else joined(header, spoilt))
    read_all(path)


# -- configs and runs ----------------------------------------------------------------------------

KEYS = ("data", "data.name", "data.source", "data.targets", "data.by", "model", "model.conv",
        "model.hidden_channels", "model.num_layers", "model.dropout", "method", "method.kind",
        "method.at", "method.mask", "method.size", "method.passes", "method.draws",
        "training", "training.epochs", "training.lr", "training.milestones", "training.batch_size",
        "calibrators", "resamples", "seed", "extra")  # fmt: skip


@budget(70)
@given(data=st.data(), value=ODD)
def test_configs(place, data, value):
    path = place / "run.toml"
    path.write_bytes(changed(CONFIG, data))
    try:
        if data.draw(st.booleans()):
            config = RunConfig.read(path)
        else:
            values = {"data": {"name": "cbas/color/concept"}}
            config = RunConfig.from_values(values, {data.draw(st.sampled_from(KEYS)): value})
    except InputError as error:
        one_sentence(error)
        return
    assert len(config.hash) == 16
    assert config.training.epochs <= 10**7
    assert config.seed < 2**63


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    return run_folder(place / "run")


def test_the_sound_run_is_sound(run):
    assert subject_from_run(run).predictions.keys() == {"id_val", "id_test", "ood_test"}
    assert RunFolder(run).history.seconds == 0


FILES = ("config.json", "info.json", "metrics.json", "history.json", "predictions/id_val.npz")


def everywhere(content, at=()):
    """The place of every entry of a document, of lists the first few."""
    yield at
    if isinstance(content, (dict, list)):
        entries = content.items() if isinstance(content, dict) else enumerate(content[:5])
        for key, value in entries:
            yield from everywhere(value, (*at, key))


def other_arrays(path: Path, data: st.DataObject) -> None:
    """One array of a file of predictions is missing, or of another type, shape or content."""
    with np.load(path) as file:
        arrays = dict(file)
    name = data.draw(st.sampled_from(sorted(arrays)))
    found = arrays.pop(name)
    changes = {
        "missing": lambda: None,
        "type": lambda: found.astype(data.draw(st.sampled_from(["i8", "f2", "?", "c8", "U3"]))),
        "shape": lambda: found.reshape(-1),
        "deep": lambda: found[None],
        "short": lambda: found[..., :1],
        "nan": lambda: np.full(found.shape, np.nan),
        "odd": lambda: np.asarray(data.draw(st.sampled_from([0, 1.5, "x", [1, 2], True]))),
    }
    with suppress(ValueError, IndexError):  # NumPy itself refuses it
        other = changes[data.draw(st.sampled_from(sorted(changes)))]()
        arrays |= {} if other is None else {name: other}
    np.savez(path, **arrays)


def other_values(path: Path, data: st.DataObject) -> None:
    """One entry of a JSON document is something odd."""
    content = json.loads(path.read_bytes())
    found, place, value = content, data.draw(st.sampled_from(list(everywhere(content)))), ODD
    for key in place[:-1]:
        found = found[key]
    if place:
        found[place[-1]] = data.draw(value)
    else:
        content = data.draw(value)
    path.write_text(json.dumps(content))


@budget(70)
@given(data=st.data())
def test_runs(run, data):
    """Other bytes, other arrays or other values in any file that report and evaluate read."""
    path = run / data.draw(st.sampled_from(FILES))
    before = path.read_bytes()
    try:
        if data.draw(st.booleans()):
            path.write_bytes(changed(before, data))
        else:
            (other_arrays if path.suffix == ".npz" else other_values)(path, data)
        found = RunFolder(run)
        _ = found.history
        assert subject_from_run(found).result.to_json()
    except InputError as error:
        one_sentence(error)
    finally:
        path.write_bytes(before)
