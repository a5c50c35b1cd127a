"""Bundles on disk: where they may go, and whole through full disks, kills and other readers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gduq.bundle import load, save
from gduq.errors import BundleError, InputError
from tests.bundle.cases import GRAPH, gnn, in_process, seeded


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensor, nn.Module, Tensor]:
    """A saved model and its logits, and another to replace it with."""
    old, new = seeded(gnn, 1).eval(), seeded(gnn, 2).eval()
    path = save(old, tmp_path_factory.mktemp("pair") / "m")
    return path, old(GRAPH), new, new(GRAPH)


def test_a_bundle_is_one_file_that_is_replaced(tmp_path, pair):
    _, _, new_model, new = pair
    path = save(seeded(gnn, 1), tmp_path / "new" / "m")
    assert torch.equal(load(save(new_model, path))[0](GRAPH), new)
    assert list(path.parent.iterdir()) == [path]


def test_other_peoples_folders_and_files_are_left_alone(tmp_path):
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("years")
    with pytest.raises(InputError):
        save(gnn(), tmp_path)
    with pytest.raises(InputError):
        save(gnn(), thesis)
    with pytest.raises(BundleError):
        save(gnn(), thesis / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    assert thesis.read_text() == "years"


def test_a_kill_or_a_failure_at_any_access_leaves_old_or_new(pair, tmp_path):
    found = [line.split() for line in in_process("interrupt", pair[0], tmp_path).splitlines()]
    for fresh, before in (("False", "old"), ("True", "none")):
        kills = [tuple(row[3:]) for row in found if row[:2] == ["kill", fresh]]
        assert set(kills) == {("killed", before), ("done", "new")}  # so no access was left out
        assert kills == sorted(kills, reverse=True)
        full = {tuple(row[3:]) for row in found if row[:2] == ["full", fresh]}
        assert full == {("refused", before), ("done", "new")}
