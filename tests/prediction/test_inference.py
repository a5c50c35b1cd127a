"""One ``y`` has one meaning, wherever it comes from."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gduq
from gduq.cli.request import Request
from gduq.data import save
from gduq.errors import InputError
from gduq.models import as_predictor
from gduq.nn import GNN
from gduq.prediction import Classes, Target, infer_target
from gduq.runs.config import RunConfig
from gduq.runs.folder import data_of

NAN = math.nan
ROWS = 60
READ_AS = {
    "0, 1": ([0, 1], "classes", None, 2),
    "-1, 1": ([-1, 1], "classes", ("-1", "1"), 2),
    "1, 2": ([1, 2], "classes", ("1", "2"), 2),
    "-1, 0, 1": ([-1, 0, 1], "classes", ("-1", "0", "1"), 3),
    "0 to 4": ([*range(5)], "classes", None, 5),
    "0, 1, 3": ([0, 1, 3], "classes", ("0", "1", "3"), 3),
    "0 to 29": ([*range(30)], "values", None, 1),
    "fractions": ([0.5, 1, 2, -3], "values", None, 1),
    "labels with gaps": ([[0, 1], [1, NAN], [1, 1], [0, 0]], "labels", None, 2),
    "several values": ([[0, 1], [2, 5], [1, 1.5]], "values", None, 2),
}
REFUSED = {
    "-1 and 1 in columns": [[-1, 1], [1, 1], [1, -1]],
    "one-hot": [[0, 1], [1, 0]],
}
SOURCES = ("table", "config", "float graph file", "list", "float list")


def graphs(entries: list[Any], dtype: torch.dtype | None) -> list[Data]:
    """Molecules by their look, so that a table can hold the same."""
    found = []
    for i in range(ROWS):
        nodes = 3 + i % 9
        entry, ring = entries[i % len(entries)], torch.arange(nodes)
        y = torch.tensor([entry], dtype=dtype)
        edges = torch.stack([ring, ring.roll(1)])
        found.append(Data(x=torch.randn(nodes, 2), edge_index=edges, y=y))
    return found


def inferred(source: str, entries: list[Any], outputs: int, folder: Path) -> Target:
    width = len(entries[0]) if isinstance(entries[0], list) else 1
    flat = [e for entry in entries for e in (entry if width > 1 else [entry])]
    whole = all(float(e).is_integer() for e in flat)
    dtype = torch.int64 if whole and "float" not in source else torch.float64
    if "list" in source:
        net = GNN(2, 4, outputs, num_layers=2)
        gduq.fit(net, graphs(entries, dtype), epochs=1, progress=False)
        return as_predictor(net).target
    if "graph file" in source:
        data = {"source": str(save(graphs(entries, dtype), folder / "g.safetensors"))}
        return data_of(RunConfig(data={**data, "by": "random"})).target
    names = [f"t{i}" for i in range(width)]
    lines = [",".join(["smiles", *names])]
    for i in range(ROWS):
        entry = entries[i % len(entries)]
        cells = ["" if c != c else f"{c:g}" for c in (entry if width > 1 else [entry])]
        lines.append(",".join(["C" * (1 + i % 9) + "O", *cells]))
    path = folder / "t.csv"
    path.write_text("\n".join(lines))
    if source == "table":
        return data_of(RunConfig(data={"source": str(path), "targets": names})).target
    (folder / "c.toml").write_text(f'[data]\nsource = "{path}"\ntargets = {names}\n')
    return data_of(RunConfig.read(folder / "c.toml")).target


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("case", READ_AS)
def test_every_source_infers_the_same(case: str, source: str, tmp_path: Path) -> None:
    entries, kind, names, outputs = READ_AS[case]
    found = inferred(source, entries, outputs, tmp_path)
    assert found.kind == kind
    if isinstance(found, Classes):
        assert found.names == names
        assert found.num_classes == outputs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("case", REFUSED)
def test_every_source_refuses_the_same(case: str, source: str, tmp_path: Path) -> None:
    entries = REFUSED[case]
    with pytest.raises(InputError) as error:
        inferred(source, entries, len(entries[0]), tmp_path)
    assert "\n" not in str(error.value)


def test_what_has_two_readings_is_said() -> None:
    with pytest.warns(UserWarning, match="as values"):
        assert infer_target(torch.arange(30)).kind == "values"
    for numbers in ([3, 5, 100], [*range(-5, 6)], [-1, 0, 1]):
        with pytest.warns(UserWarning, match="taken as"):
            assert infer_target(torch.tensor(numbers)).names == tuple(map(str, numbers))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert infer_target(torch.arange(30), outputs=30).kind == "classes"
        assert infer_target(torch.arange(30), task="values").kind == "values"
        assert infer_target(torch.arange(30), task="classes").num_classes == 30
        assert infer_target(torch.tensor([1e30, 2e30, 3e30])).kind == "values"
        assert infer_target(torch.tensor([True, False, True]), outputs=2).kind == "classes"


@pytest.mark.parametrize("outputs", [1, 2])
def test_classes_keep_their_names(outputs: int, tmp_path: Path) -> None:
    data = graphs([-1, 1], None)
    for graph in data:
        graph.x = graph.x + 3 * graph.y
    net = GNN(2, 8, outputs, num_layers=2, dropout=0.0)
    gduq.fit(net, data[:40], data[40:], epochs=5, lr=0.02, progress=False)
    model = gduq.anchor(net, num_anchors=3)
    gduq.fit(model, data[:40], data[40:], progress=False)
    gduq.save(model, tmp_path / "m")
    for found in (net, model, gduq.load(tmp_path / "m")[0]):
        p = gduq.predict(found, data[:6])
        assert p.names == ("-1", "1")
        assert p.target.tolist() == [0, 1, 0, 1, 0, 1]
        assert p.to_pandas()["class"].tolist() == ["-1", "1"] * 3
    strange = [data[0].clone()]
    strange[0].y = torch.tensor([0])
    with pytest.raises(InputError):
        gduq.predict(model, strange)


def test_files_are_judged_by_the_names(tmp_path: Path) -> None:
    """Of a table, of the file made from it, and of one whose classes carry names."""
    pytest.importorskip("rdkit", reason="needs the molecules extra")
    path = tmp_path / "t.csv"
    rows = [f"{'C' * (1 + i % 9)}{'ON'[i % 2]},{1 - 2 * (i % 2)}" for i in range(60)]
    path.write_text("smiles,y\n" + "\n".join(rows))
    data = list(gduq.data.read(path, targets=["y"]))
    net = GNN(9, 4, 2, num_layers=1)
    gduq.fit(net, data[:40], data[40:], epochs=1, progress=False)
    gduq.save(net, tmp_path / "m")
    scores = gduq.evaluate(net, {"test": data[:30]}).predictions["test"].target.tolist()
    plain, named = tmp_path / "plain.safetensors", tmp_path / "named.safetensors"
    save(data[:30], plain)
    numbered = [Data.from_dict(g.to_dict() | {"y": (g.y + 1) // 2}) for g in data[:30]]
    save(numbered, named, class_names=["-1", "1"])
    (tmp_path / "few.csv").write_text("smiles,y\n" + "\n".join(rows[:30]))
    request = Request(bundle=tmp_path / "m")
    for file in ("few.csv", "plain.safetensors", "named.safetensors"):
        options = replace(request, target=["y"]) if file == "few.csv" else request
        found, _ = options.labelled(options.service(), tmp_path / file)
        assert found.target.tolist() == scores
