"""TU datasets: a made-up folder, the paper's size table, and missing files."""

import pytest
import torch
from torch_geometric.datasets import TUDataset

from gduq.data.catalog import find
from gduq.errors import InputError
from gduq_reproduction.datasets.tu import load_tu
from tests.data.real import real

TABLE = {  # graphs, smallest half, largest tenth; class shares of both; mean sizes
    "NCI1": ((4110, 2157, 412), (0.6230, 0.1917), (29, 20, 61)),
    "NCI109": ((4127, 2079, 421), (0.6204, 0.2137), (29, 20, 61)),
    "PROTEINS": ((1113, 567, 112), (0.4197, 0.9017), (39, 15, 138)),
    "DD": ((1178, 592, 118), (0.3547, 0.7966), (284, 144, 746)),
}


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


@pytest.mark.parametrize("name", list(TABLE))
def test_the_papers_size_table(tmp_path, name):
    real(f"{name}/raw")
    (total, small, large), shares, means = TABLE[name]
    splits = load_tu(name, tmp_path)
    pool = [splits.train, splits.id_val, splits.id_test]
    parts = [[view for _, view in splits], pool, [splits.ood_test]]
    sizes = [torch.cat([nodes_of(view) for view in views]).double() for views in parts]
    assert tuple(map(len, sizes)) == (total, small, large)
    assert find(f"tu/{name}/size").rows == f"{total} graphs"
    assert tuple(int(size.mean()) for size in sizes) == means
    for views, share in zip(parts[1:], shares, strict=True):
        labels = torch.cat([view.target for view in views])
        assert float((labels == 0).double().mean()) == pytest.approx(share, abs=1e-4)
