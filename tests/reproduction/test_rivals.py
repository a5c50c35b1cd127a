"""Rivals: energies of nodes, density-aware calibration, and Chemprop beside us."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch_geometric.utils import to_dense_adj

from gduq import ClassPrediction, metrics
from gduq_reproduction import chemprop
from gduq_reproduction.cells import molecule_cells
from gduq_reproduction.methods import SPLITS, Work
from gduq_reproduction.rivals import GEBM, DensityAware, diffused, gnnsafe

RING = torch.stack([torch.arange(6), torch.arange(6).roll(1)])
EDGES = torch.cat([RING, RING.flip(0)], dim=1)  # node 6 has no neighbour


def test_diffusion_is_the_dense_product() -> None:
    values = torch.randn(7, 3, generator=torch.manual_seed(0), dtype=torch.float64)
    dense = to_dense_adj(EDGES, max_num_nodes=7)[0].double()
    dense[6, 6] = 1.0  # it keeps its value
    step = 0.5 * torch.eye(7).double() + 0.5 * dense / dense.sum(dim=1, keepdim=True)
    assert torch.allclose(diffused(values, EDGES, 3), step @ step @ step @ values)
    assert torch.allclose(diffused(torch.ones(7), EDGES, 5), torch.ones(7))


def test_energies_are_larger_for_strange_nodes() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 2
    h = torch.randn(40, 4, generator=generator) + 6.0 * y[:, None]
    logits = torch.stack([6.0 - h[:, 0], h[:, 0]], dim=1)
    none = torch.empty(2, 0, dtype=torch.long)
    model = GEBM(logits, h, y)
    strange = model(logits, h + 30.0, none)  # the same logits, far from both classes
    assert (strange > model(logits, h, none).max()).all()
    assert (gnnsafe(0.1 * logits, none) > gnnsafe(logits, none)).all()


def test_density_aware_temperatures_grow_with_the_distance() -> None:
    x = torch.linspace(0, 1, 50)[:, None]
    train = ClassPrediction(torch.zeros(50, 2), features=x)
    near, far = torch.arange(20) // 19, torch.arange(20) % 2  # 95 % and 50 % right
    p = ClassPrediction(
        torch.tensor([[4.0, 0.0]] * 40),
        target=torch.cat([near, far]),
        features=torch.cat([x[:20], x[:20] + 9]),
    )
    q = DensityAware(train).fit(p)(p)
    assert q.confidence[[0, -1]].round(decimals=1).tolist() == pytest.approx([0.9, 0.5])
    assert metrics.nll(q) < metrics.nll(p)


# -- Chemprop --------------------------------------------------------------------------------------


@pytest.mark.skipif("GDUQ_DATA" not in __import__("os").environ, reason="GDUQ_DATA is not set")
def test_rows_go_to_chemprop_and_come_back(monkeypatch, tmp_path) -> None:
    pytest.importorskip("rdkit")
    orders = []

    def start(python, folder):
        order = json.loads((folder / "job.json").read_text())
        orders.append(order)
        rows = {s: len((folder / f"{s}.csv").read_text().splitlines()) - 1 for s in order["splits"]}
        found = {name: np.ones((order["members"], n, 2)) for name, n in rows.items()}
        np.savez(folder / "answers.npz", seconds=6.0, **found)

    monkeypatch.setattr(chemprop, "_start", start)
    work = Work(molecule_cells("smoke")[0], 0, chemprop=tmp_path)
    found = chemprop.chemprop_answers(work, "chemprop ensemble")
    assert orders[0]["task"] == "regression-mve"
    assert found.seconds == 6.0
    assert set(found.parts) == set(SPLITS)
    assert found.parts["id_test"].std.flatten()[0] == pytest.approx(np.exp(0.5 * np.log(1.0)))
    assert torch.equal(
        found.parts["id_val"].target.flatten(), work.views["id_val"].target.flatten()
    )
