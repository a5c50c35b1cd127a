"""Exported programs say what `gduq.predict` says, for graphs of any size, without gduq and PyG."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data, HeteroData

import gduq
from gduq import InputError
from gduq.calibration import METHODS, CaGCN, DeviationScaling, make
from gduq.data import View
from gduq.data.smiles import molecules
from gduq.models import as_predictor
from gduq.nn import GNN
from gduq.nn.bond_gnn import BondGNN

# Two epochs teach a network little.
pytestmark = pytest.mark.filterwarnings("ignore:the network explains nothing")
QUIET: dict[str, Any] = {"progress": False}
DOCS = Path(__file__).parents[2] / "docs"
Run = Callable[..., dict[str, Tensor]]


def ring(size: int) -> Tensor:
    """A ring, a loop and a double edge; with fewer nodes, fewer edges."""
    ends = torch.arange(size)
    edges = torch.stack([ends, ends.roll(1)]) if size > 2 else torch.zeros(2, 0).long()
    odd = torch.tensor([[0, 0], [0, size - 1]])
    return torch.cat([edges, edges.flip(0), odd], dim=1) if size > 1 else edges


def data(count: int, seed: int, kind: str) -> list[Data]:
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        size = int(torch.randint(3, 8, (1,), generator=generator))
        x = torch.randn(size, 4, generator=generator)
        edges = ring(size)
        means = x.mean(dim=0)[:2]
        y: Any = 50 + 10 * (means[:1] if kind == "value" else means.unsqueeze(0))
        if kind == "labels":
            y = (means > 0).float().unsqueeze(0)
        elif kind == "classes":
            y = int(means[0] > 0) + int(means[1] > 0)
        attr = torch.randn(edges.size(1), 3, generator=generator)
        found.append(Data(x=x, edge_index=edges, edge_attr=attr, y=y))
    return found


def odd(kind: str) -> list[Data]:
    """Batches that were not traced: many graphs, a single one, one node, no edges."""
    lone = Data(x=torch.ones(1, 4), edge_index=torch.zeros(2, 0).long())
    lone.edge_attr = torch.zeros(0, 3)
    known = data(12, 7, kind)
    for graph in known:
        del graph.y
    return [*known, lone]


def bare(graphs: list[Data]) -> list[Data]:
    """Without features of edges, which not all networks read: then one trace is enough."""
    for graph in graphs:
        del graph.edge_attr
    return graphs


def fitted(model: nn.Module, kind: str, **options: Any) -> nn.Module:
    options = {"epochs": 2, "lr": 0.01} | options
    gduq.fit(model, data(30, 1, kind), data(25, 2, kind), **QUIET, **options)
    return model


def exported(model: nn.Module, path: Path, *args: Any, **options: Any) -> tuple[Run, Any]:
    """The exported file as a function, and what it says about itself."""
    if path.suffix == ".onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package)
    gduq.export(model, path, *args, **options)
    if path.suffix == ".pt2":
        files = {"gduq.json": ""}
        module = torch.export.load(path, extra_files=files).module()
        return module, json.loads(files["gduq.json"])
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]

    def run(**tensors: Tensor) -> dict[str, Tensor]:
        found = session.run(None, {name: value.numpy() for name, value in tensors.items()})
        return dict(zip(names, map(torch.from_numpy, found), strict=True))

    return run, json.loads(session.get_modelmeta().custom_metadata_map["gduq"])


def check(model: nn.Module, path: Path, like: Any, new: list[Data]) -> dict[str, Any]:
    """Export, and compare with `gduq.predict` on all new graphs together and one by one."""
    run, about = exported(model, path, like)
    for graphs in (new, new[:1], new[-1:], new[-2:]):
        whole = Batch.from_data_list(graphs)
        names = [entry["name"] for entry in about["inputs"]]
        given = {n: whole.ptr.diff() if n == "sizes" else whole[n] for n in names}
        compare(run(**given), gduq.predict(model, graphs))
    return about


def compare(said: dict[str, Tensor], p: Any) -> None:
    for name, value in said.items():
        if name == "weights":
            even = torch.full((p.num_samples,), 1 / p.num_samples, dtype=torch.float64)
            wanted = even if p.weights is None else p.weights
        else:
            wanted = getattr(p, name)
        torch.testing.assert_close(
            value.double().view(wanted.shape), wanted.double(), rtol=1e-5, atol=1e-5
        )
    kinds = {"values": {"mean", "std"}}.get(p.kind, {"probs", "confidence", "entropy"})
    kinds |= {"trust"} if p.trust is not None else set()
    assert {"samples", "weights", "aleatoric", "epistemic", "novelty"} | kinds == said.keys()


# -- what can be exported ------------------------------------------------------------------------


def zoo(conv: str, outputs: int = 2, **options: Any) -> GNN:
    torch.manual_seed(0)
    if conv == "pna":
        options["degree"] = [0, 0, 9, 4]
    return GNN(4, 6, outputs, num_layers=2, conv=conv, head="mlp", dropout=0.1, **options)


@pytest.mark.slow
def test_a_program_needs_neither_gduq_nor_pyg_and_the_model_stays_as_it_was(tmp_path: Path) -> None:
    model, path = head(zoo("gin"), "values").train(), tmp_path / "m.pt2"
    before = {name: value.clone() for name, value in model.state_dict().items()}
    path.write_text("something else")
    about = check(model, path, data(3, 5, "values"), odd("values"))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [file.name for file in tmp_path.iterdir()] == ["m.pt2"]
    assert "int" not in vars(sys.modules["torch_geometric.nn.aggr.base"])
    assert [entry["name"] for entry in about["inputs"]] == ["x", "edge_index", "sizes"]
    assert about["inputs"][0] == {"name": "x", "dtype": "float32", "shape": ["nodes", 4]}
    assert gduq.predict(model, odd("values")).novelty[-1] >= 0.999  # by structure: a lone node
    assert about["calibrated"] == "shifted"
    assert about["target"]["kind"] == "values"
    command = [sys.executable, "-c", ALONE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["[2,", "2]", "False"], done.stderr


ALONE = """
import sys, torch
sys.modules["gduq"] = sys.modules["torch_geometric"] = None
program = torch.export.load(sys.argv[1]).module()
said = program(x=torch.ones(5, 4), edge_index=torch.tensor([[0, 1], [1, 2]]),
               sizes=torch.tensor([2, 3]))
print(list(said["mean"].shape), "gduq" in str(sorted(m for m in sys.modules if sys.modules[m])))
"""


class Net(nn.Module):
    """A user's network."""

    def __init__(self, conv: Callable[[int, int], nn.Module], pool: Any, norm: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.norm, self.pool = conv(4, 6), conv(6, 6), norm, pool
        self.head = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        reads = isinstance(self.one, (pyg.GINEConv, pyg.TransformerConv))
        more = {"edge_attr": edge_attr} if reads else {}
        h = self.one(x, edge_index, **more).relu()
        h = h if self.norm is None else self.norm(h, batch)
        return self.head(self.pool(self.two(h, edge_index, **more), batch))


NETS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: Net(pyg.GCNConv, pyg.global_mean_pool),
    "gat": lambda: Net(pyg.GATv2Conv, pyg.global_max_pool, pyg.GraphNorm(6)),
    "transformer": lambda: Net(
        lambda i, o: pyg.TransformerConv(i, o, edge_dim=3), pyg.SumAggregation(), pyg.LayerNorm(6)
    ),
    "gine": lambda: Net(
        lambda i, o: pyg.GINEConv(nn.Linear(i, o), edge_dim=3), pyg.global_add_pool
    ),
    "attention": lambda: Net(pyg.SAGEConv, pyg.AttentionalAggregation(nn.Linear(6, 1))),
}


class _PyGMiddle(nn.Module):
    """A linear map of PyG's between a convolution and the head; one output comes as a vector."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(4, 8)
        self.mid, self.head = pyg.Linear(8, 8), nn.Linear(8, outputs)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = pyg.global_mean_pool(self.conv(x, edge_index).relu(), batch)
        out = self.head(self.mid(h).relu())
        return out.squeeze(-1) if out.size(-1) == 1 else out


def chosen(conv: str) -> nn.Module:
    train, val = data(30, 1, "classes"), data(25, 2, "classes")
    net = fitted(zoo(conv, 3), "classes")
    return gduq.choose(net, train, val, budget=1.5, epochs=9, **QUIET)


def head(net: nn.Module, kind: str) -> nn.Module:
    return fitted(gduq.anchor(fitted(net, kind), num_anchors=3), kind)


def layer(net: nn.Module, kind: str, at: int | str = 1) -> nn.Module:
    """Copies of the graph, one per anchor, share its edges."""
    return fitted(gduq.anchor(net, at=at, init="random", num_anchors=2), kind)


ENDINGS = (".pt2", ".onnx")
CONVS = ("gin", "gcn", "pna", "gated_gcn")
MODELS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    **{f"head of {c}": ("values", lambda c=c: head(zoo(c), "values")) for c in CONVS[1:]},
    **{f"layer of {c}": ("labels", lambda c=c: layer(zoo(c), "labels")) for c in CONVS},
    **{f"choose of {c}": ("classes", lambda c=c: chosen(c)) for c in CONVS},
    **{f"net of {n}": ("labels", lambda n=n: head(NETS[n](), "labels")) for n in NETS},
    "squeezed": ("value", lambda: head(_PyGMiddle(1), "value")),
    "map of pyg": ("classes", lambda: layer(_PyGMiddle(3), "classes", "mid")),
    "layer of a net": ("values", lambda: layer(NETS["gcn"](), "values", "two")),
}


QUICK_MODEL = ("squeezed", ".onnx")  # values: onnxruntime knows erf in single precision only
SLOW_MODELS = [c for c in product(MODELS, ENDINGS) if c != QUICK_MODEL]


@pytest.mark.parametrize(
    ("name", "ending"),
    [QUICK_MODEL, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_MODELS)],
)
def test_models(name: str, ending: str, tmp_path: Path) -> None:
    kind, make = MODELS[name]
    *known, lone = odd(kind)
    # onnxruntime refuses attention over no edge at all
    new = [*known, lone, *known] if name.startswith("net") else [*known, lone]
    check(make(), tmp_path / f"m{ending}", data(3, 5, kind), new)


@cache
def mixture(kind: str) -> gduq.Stack:
    """Three hypotheses of weights that differ."""
    plain = as_predictor(fitted(zoo("gin", 3 if kind == "classes" else 2), kind))
    heads = fitted(gduq.HeadEnsemble(plain.trunk, 2), kind)
    stack = gduq.Stack([plain, heads], [0.4, 0.6]).eval()  # type: ignore[list-item]
    stack.novelty = heads.novelty  # type: ignore[assignment]
    return stack


EXPORTED = [(n, e) for n, cls in METHODS.items() if not cls.needs_graph for e in ENDINGS]
QUICK = ("deviation", ".pt2")  # all of them take minutes together
LATER = [pytest.param(*case, marks=pytest.mark.slow) for case in EXPORTED if case != QUICK]


@pytest.mark.filterwarnings("ignore:.*stay as they are")
@pytest.mark.parametrize(("name", "ending"), [QUICK, *LATER])
def test_a_calibrator_is_in_the_program(name: str, ending: str, tmp_path: Path) -> None:
    kind = METHODS[name].kind
    model, path = mixture(kind), tmp_path / f"m{ending}"
    calibrator = make(name).fit(gduq.predict(model, data(60, 11, kind)))
    run, about = exported(model, path, bare(data(3, 5, kind)), calibrator)
    assert about["calibrator"] == type(calibrator).__name__
    for graphs in (odd(kind), odd(kind)[-1:]):
        whole, p = Batch.from_data_list(graphs), gduq.predict(model, graphs)
        said = run(x=whole.x, edge_index=whole.edge_index, sizes=whole.ptr.diff())
        compare(said, calibrator(p))
    assert not torch.allclose(calibrator(p).samples, p.samples, atol=1e-4)


def test_a_calibrator_that_no_program_can_hold_or_that_does_not_fit(tmp_path: Path) -> None:
    model, like = mixture("values"), bare(data(3, 5, "values"))
    with pytest.raises(InputError):
        gduq.export(model, tmp_path / "m.pt2", like, CaGCN().neutral(2, 3))
    with pytest.raises(InputError):
        gduq.export(model, tmp_path / "m.pt2", like, DeviationScaling().neutral(2, 7))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def one_graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 40, (2, 120), generator=generator)
    x = torch.randn(40, 4, generator=generator)
    return Data(x=x, edge_index=edges, y=(x[:, 0] > 0).long(), train_mask=torch.arange(40) < 20)


@pytest.mark.parametrize("weighted", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_nodes_of_one_graph(one_graph: Data, weighted: bool, tmp_path: Path) -> None:
    """GCN's own operator; loops, weights of edges and nodes without a neighbour count."""
    if weighted:
        one_graph.edge_weight = torch.rand(120, generator=torch.Generator().manual_seed(1))
    net = GNN(4, 6, 2, num_layers=2, conv="gcn", task="node")
    train, val = View(one_graph, torch.arange(20)), View(one_graph, torch.arange(20, 40))
    gduq.fit(net, train, val, epochs=2, **QUIET)
    run, about = exported(net, tmp_path / "m.pt2", one_graph)
    assert "sizes" not in [entry["name"] for entry in about["inputs"]]
    small = one_graph.subgraph(torch.arange(15))
    for graph in (one_graph, small):
        said = run(**{entry["name"]: graph[entry["name"]] for entry in about["inputs"]})
        del graph.train_mask
        compare(said, gduq.predict(net, graph))


# -- ONNX ----------------------------------------------------------------------------------------


SMILES = ("CCO", "c1ccccc1O", "CC(=O)[O-].[Na+]", "F/C=C/F", "C[C@H](N)C(=O)O", "C#N", "[2H]O", "O")


def test_onnx_from_smiles_by_the_lines_of_the_docs(tmp_path: Path) -> None:
    """A table of SMILES needs RDKit and what the file says about itself, and nothing of ours."""
    pytest.importorskip("rdkit")
    graphs = molecules(SMILES * 5)
    for i, graph in enumerate(graphs):
        graph.y = torch.tensor([i % 2])
    torch.manual_seed(0)
    net = BondGNN(2, hidden_channels=6, num_layers=2)
    gduq.fit(net, graphs[:20], graphs[20:], epochs=1, class_names=("no", "yes"), **QUIET)
    path, notes = tmp_path / "model.onnx", {"targets": ["toxic"]}
    _, about = exported(net, path, graphs, notes=notes)
    assert about["target"]["columns"] == ["toxic"]
    assert about["target"]["names"] == ["no", "yes"]
    assert [entry["dtype"] for entry in about["inputs"]] == ["float32", "int64", "float32", "int64"]
    assert len(about["smiles"]["x"]["atomic_num"]) == 119
    (code,) = (b for b in (DOCS / "export.md").read_text().split("```python\n") if "ATOM" in b)
    code = code.partition("```")[0].replace('["CCO", "c1ccccc1O"]', repr(list(SMILES)))
    code = f"import sys\nsys.modules |= dict.fromkeys(('torch', 'torch_geometric', 'gduq'))\n{code}"
    code += "print(json.dumps({name: value.tolist() for name, value in said.items()}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    said = {name: torch.tensor(value) for name, value in json.loads(done.stdout).items()}
    compare(said, gduq.predict(net, molecules(SMILES)))


# -- what stands in the way ----------------------------------------------------------------------


class _Peeking(_PyGMiddle):
    """Does what the features decide."""

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return super().forward(x if bool(x.sum() > 0) else -x, edge_index, batch)


@pytest.mark.parametrize(
    "make", [lambda: gduq.MCDropout(zoo("gin", 2), 2), lambda: _Peeking(2)], ids=["draws", "peeks"]
)
def test_what_no_program_can_hold_is_not_exported(make: Any, tmp_path: Path) -> None:
    model = fitted(make(), "values")
    with pytest.raises(InputError):
        gduq.export(model, tmp_path / "m.pt2", bare(data(3, 5, "values")))
    assert not list(tmp_path.iterdir())


def test_mistakes(tmp_path: Path) -> None:
    like = data(3, 5, "values")
    net = fitted(zoo("gin", 2), "values")
    (tmp_path / "folder.pt2").mkdir()
    for call in (
        (net, tmp_path / "m.pt", like),
        (net, tmp_path / "folder.pt2", like),
        (zoo("gin", 2), tmp_path / "m.pt2", like),  # not fitted
        (net, tmp_path / "m.pt2", HeteroData()),
        (net, tmp_path / "m.pt2", [odd("values")[-1]]),  # one node
        (net, tmp_path / "m.pt2", []),
    ):
        with pytest.raises(InputError):
            gduq.export(*call)


def test_without_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gduq.bundle.exporting.find_spec", lambda name: None)
    with pytest.raises(InputError):
        gduq.export(zoo("gin", 2), tmp_path / "m.onnx", data(3, 5, "values"))
