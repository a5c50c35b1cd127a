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


@pytest.mark.parametrize("share", choices.SHARES)
def test_candidates_share_the_epochs(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(choices, "fit", lambda m, d, **o: seen.append(o) or gduq.fit(m, d, **o))
    splits, shifted = choices.data(CONFIG, by_size=False)
    names = [name for name, _ in choices.candidates(CONFIG, share, splits, (0.2,))]
    whole, plain = CONFIG.training.epochs, round(share * CONFIG.training.epochs)
    head = whole - plain or round(choices.ON_TOP * whole)
    epochs = [(o["epochs"], o["draws"], o["mask"]) for o in seen]
    assert epochs == [(plain, 1, 0.0), (head, 10, 0.2), (head, 10, 0.2)]
    assert len(set(names)) == len(names) == 6  # with and without tempering each
    assert set(shifted) == {"edge_drop", "edge_rewire", "feature_noise", "feature_mask"}


def test_candidates_are_counted_against_the_plain_network() -> None:
    def scores(clean: float, shifted: float) -> dict[str, dict[str, float]]:
        return {"clean": {"accuracy": 0.5, "ece": 0.1, "nll": clean},
                "larger": {"accuracy": 0.5, "ece": shifted, "nll": 1.0}}  # fmt: skip

    rows = [("a", 1.0, 0.3), ("b", 2.0, 0.3)]
    records = [{"cell": c, "seed": 0, "candidate": choices.named(1.0), "scores": scores(n, e)}
               for c, n, e in rows]  # fmt: skip
    other = choices.named(0.9, "identity", 0.2, temper=True)
    records += [{"cell": c, "seed": 0, "candidate": other, "scores": scores(1.5, 0.2)}
                for c, *_ in rows]  # fmt: skip
    last = choices.table(records).splitlines()[-1]
    assert last.startswith("| after 0.9, identity, mask 0.2, tempered |")
    assert last.endswith("| 1.500 | 0.500 | 0.200 | 1.000 | 1 of 2 | 2 of 2 |")


def test_learning_the_anchors_lowers_what_it_is_to_lower(tmp_path) -> None:
    setting = TABLES["node-shift"].smoke[0]
    folder = run(setting.config("gduq", 0, "smoke"), tmp_path, progress=False, evaluate=False)
    assert [path for _, path in learned_anchors.runs(tmp_path, "smoke")] == [str(folder.path)]
    found = learned_anchors.Study(steps=30)(str(folder.path))
    assert set(found) == {
        "own bank",
        "training rows, k-means++",
        "training rows, 100",
        "validation rows",
        "gaussian, quasi-random",
        "gaussian",
        "gaussian, learned",
        "own bank, temperature",
        "own bank, temperature of at least 1",
    }
    model, _ = gduq.load(folder.bundle)
    model.temperature.fill_(5.0)
    gduq.save(model, folder.bundle)
    again = learned_anchors.Study(steps=1)(str(folder.path))
    assert again["own bank"] == found["own bank"]  # without what validation rows said
    model.temperature.fill_(1.0)
    splits = load("cbas/color/concept")
    train = learned_anchors.representations(model.requires_grad_(False), splits.train)
    rows = learned_anchors.Rows.of(model, splits.id_val, train)
    start = rows.h.mean(0), rows.h.std(0)
    noise = torch.randn(10, rows.h.size(1), generator=torch.Generator().manual_seed(0))
    before = rows.prediction(start[0] + start[1] * noise)
    after = rows.prediction(learned_anchors.learned(rows, start, noise, 30))
    assert gduq.metrics.nll(after) < gduq.metrics.nll(before)
    text = learned_anchors.table({"cell": [found]})
    assert text.count("\n") == 1 + len(found)
