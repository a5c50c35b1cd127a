"""Saved models of every kind for the service, and molecules to ask about."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch_geometric.data import Data

import gduq
from gduq.bundle import BundleInfo
from gduq.data.smiles import molecules as read
from gduq.nn import GNN
from gduq.serve.http import make_app, make_card
from gduq.serve.server import Limits
from gduq.serve.service import Service

SMILES = ["CCO", "c1ccccc1O", "CC(=O)Oc1ccccc1C(=O)O", "CN1C=NC2=C1C(=O)N(C)C(=O)N2C", "CCCCCC",
          "CCN", "CCOC(=O)C", "c1ccncc1", "CC(C)Cc1ccc(cc1)C(C)C(=O)O", "OCC1OC(O)C(O)C(O)C1O",
          "C#N", "CC(C)O", "ClCCl", "BrCC", "FC(F)F"]  # fmt: skip
KINDS = ("classes", "labels", "values")
INFO = BundleInfo(
    model={"kind": "Network"},
    aliases={},
    preprocessing={"targets": ["activity"]},
    calibrator=None,
    libraries={"gduq": "0"},
)
EVIL = "<img src=x onerror=alert(1)>"


def molecules(kind: str) -> list[Data]:
    """Molecules with a truth of some kind: about their size."""
    found = []
    for smiles in SMILES * 3:
        [graph] = read([smiles])
        atoms = float(graph.num_nodes)
        truth: dict[str, Any] = {
            "classes": torch.tensor([int(atoms > 6)]),
            "labels": torch.tensor([[float(atoms > 6), float(atoms > 3)]]),
            "values": torch.tensor([[atoms / 3.1]]),
        }
        graph.y = truth[kind]
        found.append(graph)
    return found


@cache
def model(kind: str = "classes") -> torch.nn.Module:
    """A network with calibration and novelty, quickly trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = GNN(9, 16, 2, num_layers=2, head="mlp")
    data = molecules(kind)
    targets = {
        "classes": "classes",
        "labels": gduq.prediction.Labels(names=("big", "not tiny")),
        "values": gduq.prediction.Values(names=("size",), units=("nm",)),
    }
    gduq.fit(net, data[:15], data[15:], epochs=2, target=targets[kind], progress=False)
    return net


def service(kind: str = "classes", referred: bool = False) -> Service:
    found = Service(model(kind), class_names=["small", "big"])
    return found.refer_to(found.answer(molecules(kind))) if referred else found


def app(of: Service, limits: Limits | None = None, **options: Any) -> Any:
    bounds = limits or Limits()
    return make_app(of, make_card(of, bounds, INFO, name=EVIL, digest="0" * 16), bounds, **options)


def as_json(graph: Data) -> dict[str, Any]:
    return {name: graph[name].tolist() for name in ("x", "edge_index", "edge_attr")}
