"""Seeded answers of the whole library, held to files: what a rebuilding must not change.

``python -m tests.test_goldens`` writes ``tests/goldens/`` anew. A golden that changes is explained
in the CHANGELOG. Processors round differently and training magnifies it: committed answers are
held to 0.03; of an evaluation and of a whole `gduq train` only which figures there are is held.
Whoever rebuilds makes goldens on the own machine first, which are held to 1e-4:
``GDUQ_GOLDENS=/tmp/goldens python -m tests.test_goldens``, then the tests with the same variable.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv, HeteroConv, SAGEConv, global_mean_pool

import gduq
from gduq.data import Splits, View

OWN = os.environ.get("GDUQ_GOLDENS")  # made on this machine
FOLDER = Path(OWN or Path(__file__).parent / "goldens")
QUIET: dict[str, Any] = {"progress": False, "seed": 0}
ROWS = 6  # that a golden holds

# -- data ----------------------------------------------------------------------------------------


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _edges(nodes: int, count: int, generator: torch.Generator) -> Tensor:
    ends = torch.randint(nodes, (2, count), generator=generator)
    return torch.cat([ends, ends.flip(0)], dim=1)


def one_graph() -> Data:
    """150 nodes of three classes, which features and neighbours tell."""
    generator = _generator(1)
    y = torch.randint(3, (150,), generator=generator)
    x = torch.randn(150, 6, generator=generator) + y[:, None]
    return Data(x=x, edge_index=_edges(150, 300, generator), y=y)


def thirds(make: Callable[[Tensor], View], rows: int) -> list[View]:
    number = torch.arange(rows)
    return [make(number % 3 == part) for part in range(3)]


def node_parts(data: Data) -> list[View]:
    return thirds(lambda rows: View(data, rows), 150)


def many_graphs(kind: str, seed: int, count: int = 60) -> list[Data]:
    """Small graphs of two classes, with two labels (some unknown) or a value."""
    generator, found = _generator(seed), []
    for i in range(count):
        nodes = int(torch.randint(4, 12, (1,), generator=generator))
        shift = float(torch.randn((), generator=generator))
        graph = Data(x=torch.randn(nodes, 4, generator=generator) + shift)
        graph.edge_index = _edges(nodes, 2 * nodes, generator)
        noise = 0.5 * float(torch.randn((), generator=generator))
        if kind == "classes":
            graph.y = torch.tensor([int(shift + noise > 0)])
        elif kind == "labels":
            second = float("nan") if i % 5 == 0 else float(noise > 0)
            graph.y = torch.tensor([[float(shift > 0), second]])
        else:
            graph.y = torch.tensor([3.0 + 2.0 * shift + noise])
        found.append(graph)
    return found


def graph_parts(kind: str) -> list[list[Data]]:
    return [many_graphs(kind, seed) for seed in range(3)]


def edge_parts() -> list[View]:
    data, generator = one_graph(), _generator(2)
    data.edge_label_index = torch.randint(150, (2, 240), generator=generator)
    data.edge_label = (data.y[data.edge_label_index].diff(dim=0)[0] == 0).long()
    return thirds(lambda rows: View(data, edges=rows), 240)


def hetero_parts() -> list[View]:
    generator, data = _generator(3), HeteroData()
    y = torch.arange(120) // 3 % 3
    data["paper"].x, data["paper"].y = torch.randn(120, 5, generator=generator) + y[:, None], y
    data["author"].x = torch.randn(40, 5, generator=generator)
    ends = torch.stack([torch.randint(40, (300,), generator=generator), torch.arange(300) % 120])
    data["author", "writes", "paper"].edge_index = ends
    return thirds(lambda rows: View(data, rows, node_type="paper"), 120)


# -- networks as users write them ----------------------------------------------------------------


class NodeNet(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.one, self.two = GCNConv(6, 12), GCNConv(12, 12)
        self.head = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, outputs))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.one(x, edge_index).relu()
        return self.head(self.two(h, edge_index).relu())


class GraphNet(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.one, self.two = SAGEConv(4, 12), SAGEConv(12, 12)
        self.norm, self.hidden = nn.BatchNorm1d(12), nn.Linear(12, 12)
        self.out = nn.Linear(12, outputs)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.norm(self.one(x, edge_index)).relu()
        h = global_mean_pool(self.two(h, edge_index).relu(), batch)
        return self.out(self.hidden(h).relu())


class EdgeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.hidden, self.out = GCNConv(6, 12), nn.Linear(24, 12), nn.Linear(12, 2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        h = self.conv(x, edge_index).relu()
        pair = torch.cat([h[edge_label_index[0]], h[edge_label_index[1]]], dim=1)
        return self.out(self.hidden(pair).relu())


class HeteroNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = HeteroConv({("author", "writes", "paper"): SAGEConv((5, 5), 12)})
        self.hidden, self.out = nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Any) -> Tensor:
        h = self.conv(x_dict, edge_index_dict)["paper"].relu()
        return self.out(self.hidden(h).relu())


def trained(make: Callable[[], nn.Module], train: Any, val: Any) -> nn.Module:
    torch.manual_seed(0)
    net = make()
    gduq.fit(net, train, val, epochs=8, lr=0.01, calibrate=None, **QUIET)
    return net


def answer(p: Any) -> dict[str, list[float]]:
    """The first rows of a prediction."""
    names = ["mean", "std"] if hasattr(p, "std") else ["probs"]
    names += ["aleatoric", "epistemic", "novelty"]
    found = {name: getattr(p, name)[:ROWS] for name in names}
    found["samples"] = p.samples[:2, :ROWS]
    return {name: value.double().flatten().tolist() for name, value in found.items()}


# -- scenarios -----------------------------------------------------------------------------------


def _fitted(model: nn.Module, parts: Any, **options: Any) -> Any:
    gduq.fit(model, *parts[:2], **options, **QUIET)
    return gduq.predict(model, parts[2])


def _head(make: Callable[[], nn.Module], parts: Any) -> Any:
    return _fitted(gduq.anchor(trained(make, *parts[:2])), parts)


def _thawed(make: Callable[[], nn.Module], parts: Any) -> Any:
    model = gduq.anchor(trained(make, *parts[:2]), recipe="thawed", num_anchors=4)
    return _fitted(model, parts, epochs=3, lr=0.003)


def _scratch(conv: str, parts: Any) -> Any:
    torch.manual_seed(0)
    net = gduq.nn.GNN(4, 12, 2, num_layers=2, conv=conv, readout="mean")
    model = gduq.anchor(net, recipe="paper", num_anchors=4)
    return _fitted(model, parts, epochs=4, lr=0.01)


def _chosen(make: Callable[[], nn.Module], parts: Any, budget: float = 1.2) -> Any:
    net = trained(make, *parts[:2])
    model = gduq.choose(net, *parts[:2], budget=budget, epochs=8, **QUIET)
    return gduq.predict(model, parts[2])


def _values_of_nodes() -> list[View]:
    data = one_graph()
    data.y = data.x.sum(dim=1)
    return node_parts(data)


SCENARIOS: dict[str, Callable[[], Any]] = {
    "node-classes-head": lambda: _head(lambda: NodeNet(3), node_parts(one_graph())),
    "node-classes-thawed": lambda: _thawed(lambda: NodeNet(3), node_parts(one_graph())),
    "node-classes-choose": lambda: _chosen(lambda: NodeNet(3), node_parts(one_graph()), 1.5),
    "node-values-head": lambda: _head(lambda: NodeNet(1), _values_of_nodes()),
    "graph-classes-head": lambda: _head(lambda: GraphNet(2), graph_parts("classes")),
    "graph-classes-scratch": lambda: _scratch("gin", graph_parts("classes")),
    "graph-labels-head": lambda: _head(lambda: GraphNet(2), graph_parts("labels")),
    "graph-labels-choose": lambda: _chosen(lambda: GraphNet(2), graph_parts("labels")),
    "graph-values-choose": lambda: _chosen(lambda: GraphNet(1), graph_parts("values")),
    "graph-values-thawed": lambda: _thawed(lambda: GraphNet(1), graph_parts("values")),
    "edge-classes-head": lambda: _head(EdgeNet, edge_parts()),
    "hetero-classes-head": lambda: _head(HeteroNet, hetero_parts()),
}


def evaluated() -> dict[str, Any]:
    """`gduq.evaluate` of an anchored head, as numbers by name."""
    train, val, test = map(View, graph_parts("classes"))
    shifted = gduq.shifts.edge_drop(test, 4)
    model = gduq.anchor(trained(lambda: GraphNet(2), train, val))
    gduq.fit(model, train, val, **QUIET)
    splits = Splits(train, id_val=val, id_test=test, ood_test=shifted)
    table = gduq.evaluate(model, splits, calibrators=["temperature"], resamples=50).table
    keys = table[["kind", "split", "calibrator", "variant", "measure"]].astype(str)
    names = keys.agg("/".join, axis=1)
    return dict(zip(names, table["value"].astype(float), strict=True))


def signatures() -> dict[str, str]:
    """Of all public names that can be called."""
    public = {name: getattr(gduq, name) for name in gduq.__all__}
    return {name: str(inspect.signature(one)) for name, one in public.items() if callable(one)}


# -- the command line ----------------------------------------------------------------------------


def table(path: Path, rows: int = 100) -> None:
    """A small table of molecules with a value that their atoms decide."""
    generator = _generator(5)
    lines = ["id,smiles,logS"]
    for i in range(rows):
        length = int(torch.randint(3, 9, (1,), generator=generator))
        letters = torch.randint(4, (length,), generator=generator)
        text = "C" + "".join("CNOC"[k] for k in letters) + "C"
        noise = 0.2 * float(torch.randn((), generator=generator))
        lines.append(f"m{i},{text},{0.5 * text.count('C') - text.count('O') + noise:.3f}")
    path.write_text("\n".join(lines) + "\n")


def command_line(folder: Path) -> dict[str, Any]:
    """train (with its report) and predict of a small table: what predict writes."""
    import pandas as pd
    from typer.testing import CliRunner

    from gduq.cli import app

    table(folder / "in.csv")
    table(folder / "new.csv", 12)

    def run(*words: object) -> None:
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.output

    options = ("--root", folder / "runs", "--set", "training.epochs=5")
    run("train", folder / "in.csv", "--target", "logS", *options)
    chosen = next(path for path in (folder / "runs").iterdir() if "choose" in path.name)
    run("predict", chosen, folder / "new.csv", "-o", folder / "answers.csv")
    answers = pd.read_csv(folder / "answers.csv")
    numbers = answers.select_dtypes("number")
    assert (chosen / "report.html").stat().st_size > 10_000
    return {"columns": list(answers.columns), **numbers.to_dict("list")}


# -- comparing -----------------------------------------------------------------------------------


def _stored(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def _compare(found: dict[str, Any], known: dict[str, Any], elsewhere: float | None = 0.03) -> None:
    size = 1e-4 if OWN else elsewhere
    assert found.keys() == known.keys()
    for name, value in known.items():
        if isinstance(value, list) and value and isinstance(value[0], str):
            assert found[name] == value, name
        elif size is None:
            assert np.array_equal(np.isfinite(found[name]), np.isfinite(value)), name
        else:
            assert found[name] == pytest.approx(value, rel=size, abs=size, nan_ok=True), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCENARIOS)
def test_answers(name: str) -> None:
    torch.set_num_threads(1)
    _compare(answer(SCENARIOS[name]()), _stored("answers")[name])


@pytest.mark.filterwarnings("ignore")
def test_evaluation() -> None:
    _compare(evaluated(), _stored("evaluation"), None)


def test_signatures() -> None:
    assert signatures() == _stored("signatures")


@pytest.mark.filterwarnings("ignore")
def test_command_line(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    _compare(command_line(tmp_path), _stored("command_line"), None)


def main(only: str = "") -> None:
    """Write all goldens anew, or one file of them: ``python -m tests.test_goldens signatures``."""
    import tempfile
    import warnings

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    FOLDER.mkdir(exist_ok=True)
    every = {
        "signatures": signatures,
        "answers": lambda: {name: answer(make()) for name, make in SCENARIOS.items()},
        "evaluation": evaluated,
        "command_line": lambda: command_line(Path(tempfile.mkdtemp())),
    }
    for name in [only] if only else every:
        (FOLDER / f"{name}.json").write_text(json.dumps(every[name](), indent=0) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:2])
