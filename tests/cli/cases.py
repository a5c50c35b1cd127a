"""Small graphs in files and a saved model, for the commands that read them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch_geometric.data import Data
from typer.testing import CliRunner, Result

import gduq
from gduq.cli import app

CLASSES = ["small", "large"]


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def refused(*arguments: object) -> str:
    """Exit code 2 and one short sentence."""
    result = run(*arguments, code=2)
    (line,) = result.stderr.strip().splitlines()
    assert len(line) < 2500
    assert "Traceback" not in result.output
    return line


def ring(nodes: int, seed: int, label: bool = True, channels: int = 3) -> Data:
    generator = torch.Generator().manual_seed(seed)
    line = torch.arange(nodes)
    edges = torch.stack([line, line.roll(1)])
    graph = Data(
        x=torch.randn(nodes, channels, generator=generator),
        edge_index=torch.cat([edges, edges.flip(0)], 1),
    )
    if label:
        graph.y = torch.tensor([int(nodes > 6)])
    return graph


def rings(count: int, seed: int = 0, label: bool = True) -> list[Data]:
    return [ring(3 + i % 8, 1000 * seed + i, label) for i in range(count)]


def network(**options: object) -> gduq.nn.GNN:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return gduq.nn.GNN(3, 8, 2, num_layers=2, **options)


def anchored(**options: object) -> gduq.Anchored:
    model = gduq.anchor(network(**options), at="readout", recipe="paper", num_anchors=4)
    return model.fit_anchors(rings(12)).eval()


def bundle(folder: Path, calibrator: object = None) -> Path:
    return gduq.save(anchored(), folder, calibrator, class_names=CLASSES)


def spoilt(graphs: list[Data], *where: int) -> list[Data]:
    """The same with a NaN in some."""
    for i in where:
        graphs[i] = graphs[i].clone()
        graphs[i].x[0, 0] = torch.nan
    return graphs
