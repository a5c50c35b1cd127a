"""Models of every kind to save, and what runs in fresh processes, for the tests of bundles."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, GINConv, GraphNorm, global_mean_pool

from gduq import calibration
from gduq.anchoring import Anchored, Recipe, anchor
from gduq.bundle import load, save
from gduq.calibration import Calibrator
from gduq.data import View
from gduq.errors import BundleError
from gduq.models import (
    Ensemble,
    HeadEnsemble,
    LastLayerLaplace,
    MCDropout,
    Neighbours,
    Network,
    Stack,
)  # fmt: skip
from gduq.nn import GNN
from gduq.prediction import ClassPrediction, predict
from gduq.training import choose, fit

ROOT = Path(__file__).parents[2]


def make_graph() -> Batch:
    """Graphs without labels."""
    generator = torch.Generator().manual_seed(7)
    graphs = []
    for nodes in (3, 5, 4, 6):
        ring = torch.arange(nodes)
        edges = torch.stack([ring, ring.roll(1)])
        edges = torch.cat([edges, edges.flip(0)], dim=1)
        graphs.append(
            Data(
                x=torch.randn(nodes, 4, generator=generator),
                edge_index=edges,
                edge_attr=torch.rand(edges.size(1), 2, generator=generator),
                pe=torch.randn(nodes, 2, generator=generator),
            )
        )
    return Batch.from_data_list(graphs)


def make_nodes(count: int = 160) -> Data:
    """Nodes of three classes that their features tell, on a ring of neighbours."""
    generator = torch.Generator().manual_seed(2)
    y = torch.arange(count) % 3
    x = torch.randn(3, 4, generator=generator)[y] + torch.randn(count, 4, generator=generator)
    ring = torch.arange(count)
    edges = torch.stack([ring, ring.roll(3)])
    pe = torch.randn(count, 2, generator=generator)
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], dim=1), pe=pe, y=y)


GRAPH = make_graph()
NODES = make_nodes()
ORDER = torch.randperm(NODES.num_nodes, generator=torch.Generator().manual_seed(4))
TRAIN, VAL = View(NODES, ORDER[:60]), View(NODES, ORDER[60:130])


class Handmade(nn.Module):
    """Takes ``(x, edge_index, batch)``; has buffers, tied weights and a norm over graphs."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.conv = GINConv(nn.Linear(width, width))
        self.norm, self.bn = GraphNorm(width), nn.BatchNorm1d(width)
        self.tied = nn.Linear(width, width)
        self.tied.weight = self.conv.nn.weight
        self.last = nn.Linear(width, 3)
        self.register_buffer("offset", torch.full((3,), 0.5))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.norm(self.conv(F.relu(self.first(x)), edge_index), batch)
        h = F.dropout(self.bn(self.tied(h)), 0.3, self.training)
        return self.last(global_mean_pool(h, batch)) + self.offset


def gnn(conv: str = "gin", **options: object) -> GNN:
    degree = [0, 0, 5] if conv == "pna" else None
    options = {"num_layers": 2, "heads": 2, "degree": degree, **options}
    return GNN(
        options.pop("in_channels", 4), 8, options.pop("out_channels", 3), conv=conv, **options
    )


class Wide(Handmade):
    """The same, wider."""

    def __init__(self) -> None:
        super().__init__(16)


class OnNodes(nn.Module):
    """A node network of the user's own, with a head of two linear maps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(4, 8)
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = F.dropout(self.conv(x, edge_index).relu(), 0.2, self.training)
        return self.two(self.one(h).relu())


class Backwards(OnNodes):
    """The same, which nobody could guess how to call."""

    def forward(self, second: Tensor, first: Tensor) -> Tensor:
        return super().forward(first, second)


def call_backwards(net: nn.Module, graph: Data) -> Tensor:
    return net(graph.edge_index, graph.x)


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def trained(model: nn.Module, graph: Data = GRAPH) -> nn.Module:
    """Moves every running statistic, and fits the bank."""
    from gduq.tracing.call import call_network

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        for part in getattr(model, "parts", {}).values() or [model]:
            if hasattr(part, "locate"):
                part.locate(graph)
            part.train()
            for _ in range(2):
                part(graph) if hasattr(part, "sample") else call_network(part, graph)
    if hasattr(model, "fit_anchors"):
        model.fit_anchors(graph, batch_size=None)
    return model


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    net: Callable[[], nn.Module] | list[Callable[[], nn.Module]] | None = None
    call: Callable[..., Tensor] | None = None
    graph: Data = field(default_factory=lambda: GRAPH)

    def nets(self) -> nn.Module | list[nn.Module] | None:
        if isinstance(self.net, list):
            return [make() for make in self.net]
        return None if self.net is None else self.net()

    def double(self) -> Case:
        graph = self.graph.clone()
        for name in ("x", "edge_attr", "pe"):
            graph[name] = graph[name].double()
        return replace(self, graph=graph, make=lambda: self.make().double())


def zoo(conv: str = "gin", at: int | str | None = None, **options: object) -> Case:
    wrap = {k: options.pop(k) for k in ("anchors", "scope", "init", "freeze") if k in options}

    def make() -> nn.Module:
        net = seeded(lambda: gnn(conv, **options))
        model = net if at is None else anchor(net, at=at, num_anchors=3, seed=5, **wrap)
        return trained(model, graph)

    graph = NODES if options.get("task") == "node" else GRAPH
    return Case(make, graph=graph)


def anchored(seed: int = 0) -> nn.Module:
    return anchor(seeded(gnn, seed), at="readout", num_anchors=3, seed=seed)


def on_nodes(**options: object) -> GNN:
    return gnn("gcn", task="node", **options)


def fitted(
    wrap: Callable[[nn.Module], nn.Module],
    net: Callable[[], nn.Module] = on_nodes,
    call: object = None,
    budget: float = 0.0,
) -> Case:
    """A model that `gduq.fit` (with a budget `gduq.choose`) has trained, calibrated and shown what
    is novel."""

    def make() -> nn.Module:
        model, options = wrap(seeded(net)), {"class_names": NAMES, "progress": False, "call": call}
        fit(model, TRAIN, VAL, epochs=1, **options)
        return choose(model, TRAIN, VAL, budget=budget, epochs=2, **options) if budget else model

    return Case(make, net if isinstance(net, type) else None, call, NODES)


def same(net: nn.Module) -> nn.Module:
    return net


def stacked(net: Callable[[], nn.Module] = on_nodes, call: object = None) -> Case:
    """All that stands on one trunk, and something that does not."""

    def make() -> nn.Module:
        own = seeded(net)
        own.eval()
        first = Network(own, call)
        first.locate(NODES)
        trunk = first.trunk
        members = [
            HeadEnsemble(trunk, 2),
            Anchored(trunk, Recipe.head(num_anchors=3)),
            LastLayerLaplace(trunk, 2),
            Neighbours(trunk, 3),
            anchor(own, at=-1, call=call, num_anchors=3, like=NODES),
            Ensemble([seeded(net, 1), seeded(net, 2)], call=call),
        ]
        for member in members:
            fit(member, TRAIN, VAL, epochs=1, progress=False)
        members = members if call else [first, *members]
        return Stack(members, torch.full((len(members),), 1 / len(members)))

    return Case(make, net if isinstance(net, type) else None, call, NODES)


NAMES = ("low", "middle", "high")
POINTS = ("input", 1, "readout")
CASES: dict[str, Case] = {
    "gin": zoo("gin"),
    **{f"gin at {at}": zoo("gin", at) for at in POINTS},
    **{
        f"{conv} on nodes": zoo(conv, 1, task="node") for conv in ("gcn", "pna", "gated_gcn", "gps")
    },
    "one logit": zoo(out_channels=1),
    "attention, mlp": zoo(
        at="readout", readout="attention", head="mlp", virtual_node=True, num_layers=3
    ),
    "laplacian": zoo(at="input", positional="laplacian", positional_channels=2),
    "gps": zoo("gps", at=1),
    "gaussian": zoo(at="readout", anchors="gaussian"),
    "float64": zoo(at="input").double(),
    "handmade": Case(lambda: trained(seeded(Handmade)), Handmade),
    "ensemble": Case(lambda: trained(Ensemble([seeded(gnn, s) for s in range(3)]))),
    "ensemble of anchored": Case(lambda: trained(Ensemble([anchored(0), anchored(1)]))),
    "mixed ensemble": Case(
        lambda: Ensemble([seeded(Handmade, 1), seeded(gnn), seeded(Wide, 2)]), [Handmade, Wide]
    ),
    "mc dropout of anchored": Case(lambda: trained(MCDropout(anchored(), num_samples=2))),
    "ensemble of mc dropout of anchored": Case(
        lambda: Ensemble([MCDropout(anchored(s).fit_anchors(GRAPH), 2, seed=s) for s in range(2)])
    ),
}
FITTED: dict[str, Case] = {
    "network": fitted(same),
    "own network": fitted(same, OnNodes),
    "own network with a call": fitted(same, Backwards, call_backwards),
    "head, a branch": fitted(anchor),
    "head of two maps": fitted(anchor, lambda: on_nodes(head="mlp")),
    **{f"chain at {at}": fitted(lambda net, at=at: anchor(net, at=at)) for at in POINTS},
    "own head": fitted(anchor, OnNodes),
    "own layer": fitted(lambda net: anchor(net, at=-1, freeze=True), OnNodes),
    "paper": fitted(lambda net: anchor(net, recipe=Recipe.paper("node")), OnNodes),
    "ensemble, fitted": fitted(lambda net: Ensemble([net, seeded(on_nodes, 1)])),
    "dropout": fitted(lambda net: MCDropout(net, 3)),
    "heads": fitted(lambda net: HeadEnsemble(net, 3)),
    "laplace": fitted(LastLayerLaplace),
    "neighbours": fitted(Neighbours),
    "own neighbours": fitted(Neighbours, OnNodes),
    "choose at 3": fitted(same, budget=3),
    "own choose at 1.2": fitted(same, Backwards, call_backwards, budget=1.2),
}
STACKS: dict[str, Case] = {
    "stack": stacked(),
    "own stack with a call": stacked(Backwards, call_backwards),
}
ALL = CASES | FITTED | STACKS
# one of each kind; all of them take half a minute
QUICK = (
    *("gin at 1", "one logit", "gaussian", "float64", "handmade", "mixed ensemble"),
    *("mc dropout of anchored", "own network with a call", "head of two maps", "own layer"),
    *("heads", "laplace", "neighbours", "stack"),
)


@cache
def made(name: str) -> nn.Module:
    """The model of a case, once for all tests that leave it as it is."""
    return ALL[name].make()


def fitted_calibrator(name: str = "VectorScaling") -> Calibrator:
    generator = torch.Generator().manual_seed(1)
    samples = torch.randn(3, 40, 3, generator=generator)
    target = torch.randint(3, (40,), generator=generator)
    return getattr(calibration, name)().fit(ClassPrediction(samples, target=target))


def said(p: ClassPrediction) -> tuple[dict[str, Tensor], list[object]]:
    """All that a prediction says: its tensors, and what else there is."""
    found = {"samples": p.samples, "novelty": p.novelty, "weights": p.weights}
    tensors = {name: value for name, value in found.items() if value is not None}
    return tensors, [p.calibrated, list(p.names)]


def answer(folder: Path) -> None:
    """Load every bundle of a folder and write what it says; run in a fresh process."""
    notes = {}
    for path in sorted(folder.iterdir()):
        name, case = path.name, ALL[path.name]
        model, calibrator = load(path, net=case.nets(), call=case.call)
        assert calibrator is None
        tensors, note = said(predict(model, case.graph))
        save_file({**tensors, "temperature": model.temperature}, folder / f"{name}.safetensors")
        notes[name] = note
    (folder / "notes.json").write_text(json.dumps(notes))


def interrupt(source: Path, place: Path) -> None:
    """Kill, or run out of disk, at every access to the file in turn; run in a fresh process.

    Prints what is there afterwards: old, new, or none.
    """
    old, new = seeded(gnn, 1).eval()(GRAPH), seeded(gnn, 2).eval()
    answers = {"old": old, "new": new(GRAPH)}
    for fresh in (False, True):
        for mode in ("kill", "full"):
            for at in range(1, 6):
                path = place / f"{mode}-{fresh}-{at}"
                if not fresh:
                    shutil.copy(source, path)
                code = _in_child(new, path, mode, at)
                sys.stdout.write(f"{mode} {fresh} {at} {code} {_state(path, answers)}\n")


def _in_child(model: nn.Module, path: Path, mode: str, at: int) -> str:
    child = os.fork()
    if child == 0:
        try:
            _arm(path, mode, at)
            save(model, path)
        except BundleError:
            os._exit(3)
        except BaseException:
            os._exit(4)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {0: "done", 3: "refused", -9: "killed"}.get(code, f"failed with {code}")


def _arm(path: Path, mode: str, at: int) -> None:
    seen = 0

    def strike() -> None:
        nonlocal seen
        seen += 1
        if seen == at:
            if mode == "kill":
                os.kill(os.getpid(), 9)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def audit(event: str, args: tuple[object, ...]) -> None:
        if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir") and args:
            writing = event != "open" or (isinstance(args[1], str) and args[1] != "r")
            if path.name in str(args[0]) and (mode == "kill" or writing):
                strike()

    plain = os.fsync

    def fsync(descriptor: int) -> None:
        strike()
        plain(descriptor)

    os.fsync = fsync
    sys.addaudithook(audit)


def _state(path: Path, answers: dict[str, Tensor]) -> str:
    try:
        found = load(path)[0](GRAPH)
    except BundleError:
        return "none"
    return next(name for name, logits in answers.items() if torch.equal(found, logits))


def in_process(statement: str, *args: object, before: str = "pass") -> str:
    """Run a function of this file in a fresh interpreter, and other code before its imports."""
    paths = ", ".join(f"Path({str(a)!r})" for a in args)
    code = f"{before}; from pathlib import Path; from tests.bundle import cases as c"
    code += f"; c.{statement}({paths})"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
