"""The studies behind docs/choices.md: what is trained on what, and who is judged by which rows."""

from __future__ import annotations

import pytest
import torch

import choices
import gduq
import learned_anchors
from gduq.data import load
from gduq.experiments.run import run
from gduq.experiments.specs import Setting
from gduq.experiments.tables import TABLES

CONFIG = TABLES["node-shift"].smoke[0].config("vanilla", 100, "smoke")


def test_cells_have_the_schedules_of_the_tables() -> None:
    for cell in choices.CELLS:
        found = choices.setting(cell)
        assert f"{found.data} {found.conv}" == cell.removesuffix(choices.BY_SIZE)


def test_larger_graphs_are_left_out_of_training() -> None:
    config = Setting("motif/size/covariate").config("vanilla", 100, "smoke")
    splits, shifted = choices.data(config, by_size=True)
    train, val, larger = splits.train.graphs, splits.id_val.graphs, shifted["larger"].graphs
    most = max(g.num_nodes for g in (*train, *val))
    assert min(g.num_nodes for g in larger) >= most
    given = load("motif/size/covariate", limit=config.data.limit).train
    assert len(train) + len(val) + len(larger) == len(given)


@pytest.mark.parametrize(
    "name", ["after half, frozen, mask .3", "plain, mlp head, half the epochs"]
)
def test_candidates_share_one_schedule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(choices, "fit", lambda m, d, **o: seen.append(o) or gduq.fit(m, d, **o))
    splits, shifted = choices.data(CONFIG, by_size=False)
    model, seconds = choices.trained(CONFIG, choices.CANDIDATES[name], splits)
    epochs = [(o["epochs"], o["draws"], o["mask"]) for o in seen]
    half = CONFIG.training.epochs // 2
    anchored = isinstance(model, gduq.Anchored)
    assert epochs == [(half, 1, 0.0), *([(half, 10, 0.3)] if anchored else [])]
    assert seconds > 0
    assert set(shifted) == {"edge_drop", "edge_rewire", "feature_noise", "feature_mask"}


def test_learning_the_anchors_lowers_what_it_is_to_lower(tmp_path) -> None:
    setting = TABLES["node-shift"].smoke[0]
    folder = run(setting.config("gduq", 0, "smoke"), tmp_path, progress=False, evaluate=False)
    assert [path for _, path in learned_anchors.runs(tmp_path)] == [str(folder.path)]
    found = learned_anchors.Study(steps=30)(str(folder.path))
    assert set(found) == {
        "own bank",
        "gaussian",
        "gaussian, learned",
        "own bank, temperature",
    }
    model, _ = gduq.load(folder.bundle)
    rows = learned_anchors.Rows.of(model.requires_grad_(False), load("cbas/color/concept").id_val)
    start = rows.h.mean(0), rows.h.std(0)
    noise = torch.randn(10, rows.h.size(1), generator=torch.Generator().manual_seed(0))
    before = rows.prediction(start[0] + start[1] * noise)
    after = rows.prediction(learned_anchors.learned(rows, start, noise, 30))
    assert gduq.metrics.nll(after) < gduq.metrics.nll(before)
    text = learned_anchors.table({"cell": [found]})
    assert text.count("\n") == 1 + len(found)
