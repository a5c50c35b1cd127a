"""What only a process shows that has imported nothing else before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gduq
from tests.training.ddp_run import graphs


def test_a_bundle_loads_where_nothing_else_was_imported(tmp_path: Path) -> None:
    net = gduq.nn.GNN(4, 8, 3, num_layers=2, head="mlp")
    model = gduq.anchor(net, num_anchors=3)
    gduq.fit(model, graphs(45, seed=1), graphs(30, seed=2), progress=False)
    folder = gduq.save(model, tmp_path / "model")
    code = "import sys, gduq; model, _ = gduq.load(sys.argv[1]); print(type(model).__name__)"
    run = [sys.executable, "-W", "ignore", "-c", code, str(folder)]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "Anchored\n"
