"""TU datasets: a made-up folder, the paper's size table, and missing files."""

import pytest
import torch
from torch_geometric.datasets import TUDataset

from gduq.errors import InputError
from gduq_reproduction.cells import Cell
from gduq_reproduction.datasets.tu import load_tu
from gduq_reproduction.layouts import load
from gduq_reproduction.methods import Work
from gduq_reproduction.other_tables import size_rows
from tests.data.real import real


def nodes_of(view):
    return torch.tensor([int(graph.num_nodes) for graph in view.graphs])


@pytest.fixture(params=[True, False], ids=["labels", "no labels"])
def tiny(tmp_path, monkeypatch, request):
    """Paths of 2, 3, ... 21 nodes."""
    raw = tmp_path / "data" / "TINY" / "raw"
    raw.mkdir(parents=True)
    sizes = range(2, 22)
    starts = [1 + sum(range(2, size)) for size in sizes]
    pairs = [(s + i, s + i + 1) for s, size in zip(starts, sizes, strict=True)
             for i in range(size - 1)]  # fmt: skip
    files = {
        "A": [f"{u}, {v}" for a, b in pairs for u, v in ((a, b), (b, a))],
        "graph_indicator": [g + 1 for g, size in enumerate(sizes) for _ in range(size)],
        "graph_labels": [(-1, 1)[g % 2] for g in range(20)],
    }
    if request.param:
        files["node_labels"] = [i % 3 for i in range(sum(sizes))]
    for part, lines in files.items():
        (raw / f"TINY_{part}.txt").write_text("\n".join(map(str, lines)) + "\n")
    monkeypatch.setenv("GDUQ_DATA", str(tmp_path / "data"))
    return raw


def test_small_train_large_test(tiny, tmp_path):
    splits = load_tu("TINY", tmp_path)
    sizes = {name: nodes_of(view) for name, view in splits}
    assert [len(view) for _, view in splits] == [8, 1, 1, 8, 2]
    assert torch.cat([sizes[n] for n in ("train", "id_val", "id_test")]).max() == 11
    assert sizes["ood_test"].tolist() == [20, 21]
    labelled = (tiny / "TINY_node_labels.txt").exists()
    for graph in splits.train.graphs:
        assert graph.x.size(1) == (3 if labelled else 1)
        assert (graph.x.sum(dim=1) == 1).all()
    assert set(splits.train.target.tolist()) == {0, 1}
    assert not (tiny.parent / "processed").exists()  # nothing is written there


@pytest.mark.parametrize("part", ["A", "graph_indicator"])
def test_missing_and_damaged_files_raise(tiny, tmp_path, monkeypatch, part):
    monkeypatch.setattr(TUDataset, "url", (tmp_path / "nowhere").as_uri())
    path = tiny / f"TINY_{part}.txt"
    for damage in (lambda: path.write_text("one, two\n"), path.unlink):
        damage()
        with pytest.raises(InputError):
            load_tu("TINY", tmp_path)


@pytest.mark.parametrize("name", ["NCI1", "NCI109", "PROTEINS"])
def test_the_papers_size_table(name):
    """Its numbers are cut off, not rounded."""
    real(f"{name}/raw")
    rows = {row["split"]: row for row in size_rows(Work(Cell(f"tu/{name}/size"), 0), "T9")}
    printed = [e for e in load("size_statistics")["entries"] if e["dataset"] == f"tu/{name}"]
    for entry in printed:
        measure = entry["measure"]
        gap = rows[entry["split"]][measure] - entry["mean"]
        assert -1e-6 <= gap < {"mean size": 1, "# graphs": 1e-6}.get(measure, 0.0101), entry
    assert len(printed) == 12
