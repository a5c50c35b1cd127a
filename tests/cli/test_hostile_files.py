"""Fuzzers: whatever a table, a folder, a graph file, a config or a run holds, one sentence says it.

`make test` tries a few of each, `make test-all` many and new ones. Bundles have tests of their own
(bundle/test_damage.py), HTTP requests too (deploy/test_http.py).
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
from gduq.evaluation import Evaluation
from gduq.graphs import check_graph
from gduq.report import subject_from_run
from gduq.runs.config import RunConfig
from gduq.runs.folder import RunFolder
from gduq.serve.files import InputTable
from tests.cli.cases import rings
from tests.cli.hostile import ODD, budget, changed, run_folder
from tests.tampering import joined, split_up

TABLE = b'smiles,name,y\nCCO,"a, b",1\nc1ccccc1,"two\nlines",0\nCC(=O)O,x,1\n'


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


@budget(20)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore:'.*' holds .* different whole numbers")
def test_tables(place, data):
    pytest.importorskip("rdkit")
    path = place / data.draw(st.sampled_from(("t.csv", "t.tsv")))
    path.write_bytes(changed(TABLE, data))
    read_all(path, targets=data.draw(st.sampled_from(((), ("y",), ("y", "name")))))


@budget(15)
@given(raw=st.binary(max_size=200), text=st.text(max_size=80))
def test_tables_of_anything(place, raw, text):
    pytest.importorskip("rdkit")
    path = place / "any.csv"
    for content in (raw, b"smiles\n" + raw, ("smiles,y\n" + text).encode(errors="surrogatepass")):
        path.write_bytes(content)
        read_all(path)


@budget(15)
@given(data=st.data())
def test_kept_columns_stay_with_their_rows(place, data):
    pytest.importorskip("rdkit")
    path = place / "kept.csv"
    path.write_bytes(changed(TABLE, data))
    try:
        places = InputTable.of([path], keep=["name"])
        rows = [item for part in places.read(path, 2) for item in part]
    except InputError:
        return
    again = [index for index, _ in stream(path)]
    assert [item.row for item in rows] == again
    assert all(len(item.kept) == 1 for item in rows)


@pytest.fixture(scope="module")
def graph_file(place: Path) -> bytes:
    graphs = rings(4)
    for i, graph in enumerate(graphs):
        graph.smiles = "C" * (i + 1)
    return save(graphs, place / "sound.safetensors", ["small", "large"]).read_bytes()


@budget(33)
@given(data=st.data())
def test_graph_files(place, graph_file, data):
    path = place / "g.safetensors"
    path.write_bytes(changed(graph_file, data))
    read_all(path)


@budget(26)
@given(data=st.data(), value=ODD)
def test_graph_files_with_another_header(place, graph_file, data, value):
    header, body = split_up(graph_file)
    words = header["__metadata__"]
    key = data.draw(st.sampled_from(sorted({*words, *header} - {"__metadata__", "seal"})))
    if key in words:
        words[key] = data.draw(st.sampled_from((json.dumps(value), str(value), "[" * 9000)))
    else:
        header[key] = value
    path = place / "h.safetensors"
    path.write_bytes(joined(header, body))
    read_all(path)


@budget(20)
@given(data=st.data())
def test_graph_files_whose_checksums_were_made_again(place, graph_file, data):
    header, body = split_up(graph_file)
    spoilt = changed(body, data)[: len(body)].ljust(len(body), b"\0")
    path = place / "r.safetensors"
    path.write_bytes(joined(header, spoilt))
    read_all(path)


# -- configs and runs ----------------------------------------------------------------------------

KEYS = ("data", "data.name", "data.source", "data.targets", "data.by", "model", "model.conv",
        "model.hidden_channels", "model.num_layers", "model.dropout", "method", "method.kind",
        "method.at", "method.mask", "method.size", "method.passes", "method.pretrained_from",
        "training", "training.epochs", "training.lr", "training.milestones", "training.batch_size",
        "calibrators", "resamples", "seed", "extra")  # fmt: skip
CONFIG = b'seed = 3\n[data]\nname = "cbas/color/concept"\n[training]\nepochs = 4\nlr = 1e-3\n'


@budget(50)
@given(data=st.data(), value=ODD)
def test_configs(data, value):
    values = {"data": {"name": "cbas/color/concept"}}
    try:
        config = RunConfig.from_values(values, {data.draw(st.sampled_from(KEYS)): value})
    except InputError as error:
        one_sentence(error)
        return
    assert len(config.hash) == 16
    assert config.training.epochs <= 10**7
    assert config.seed < 2**63


@budget(26)
@given(data=st.data())
def test_config_files(place, data):
    path = place / "run.toml"
    path.write_bytes(changed(CONFIG, data))
    try:
        assert RunConfig.read(path).hash
    except InputError as error:
        one_sentence(error)


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    return run_folder(place / "run")


def use(folder: Path) -> None:
    """Read all of a run that `gduq report` and `gduq evaluate` read."""
    found = RunFolder(folder)
    try:
        _ = found.history
        subject = subject_from_run(found, data=False)
        assert subject.result.to_markdown()
    except InputError as error:
        one_sentence(error)


def test_the_sound_run_is_sound(run):
    assert subject_from_run(run, data=False).predictions.keys() == {"id_val", "id_test", "ood_test"}
    assert RunFolder(run).history.seconds == 0


@pytest.mark.parametrize("table", [[[], None], {"split": []}, "text", [1]])
def test_tables_of_figures_without_names(table):
    with pytest.raises(InputError):
        Evaluation.from_json(json.dumps({"settings": {}, "table": table}))
    with pytest.raises(InputError):
        Evaluation.from_json(json.dumps({"settings": {}, "table": [{"kind": 1.5}]}))


def test_predictions_that_are_missing(run):
    path = run / "info.json"
    before = path.read_text()
    path.write_text(before.replace('"id_test"', '"+d_test"'))
    with pytest.raises(InputError):
        RunFolder(run).predictions()
    path.write_text(before)


FILES = ("config.json", "info.json", "metrics.json", "history.json", "predictions/id_val.npz")


@budget(26)
@given(data=st.data())
def test_runs_with_other_bytes(run, data):
    path = run / data.draw(st.sampled_from(FILES))
    before = path.read_bytes()
    try:
        path.write_bytes(changed(before, data))
        use(run)
    finally:
        path.write_bytes(before)


def everywhere(content, at=()):
    """The place of every entry of a document, of lists the first few."""
    yield at
    if isinstance(content, (dict, list)):
        entries = content.items() if isinstance(content, dict) else enumerate(content[:5])
        for key, value in entries:
            yield from everywhere(value, (*at, key))


@budget(20)
@given(data=st.data())
def test_runs_with_other_arrays(run, data):
    path = run / "predictions" / "id_val.npz"
    before = path.read_bytes()
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
    try:
        np.savez(path, **arrays)
        use(run)
    finally:
        path.write_bytes(before)


@budget(26)
@given(data=st.data(), value=ODD)
def test_runs_with_other_values(run, data, value):
    path = run / data.draw(st.sampled_from(FILES[:4]))
    before = path.read_bytes()
    content = json.loads(before)
    try:
        place, found = data.draw(st.sampled_from(list(everywhere(content)))), content
        for key in place[:-1]:
            found = found[key]
        if place:
            found[place[-1]] = value
        else:
            content = value
        path.write_text(json.dumps(content))
        use(run)
    finally:
        path.write_bytes(before)
