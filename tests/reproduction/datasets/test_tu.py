"""TU datasets: a made-up folder, the paper's size table, missing and short files."""

import io
import shutil
import zipfile

import pytest
import torch
from torch_geometric.datasets import TUDataset

from gduq.data.catalog import find
from gduq.errors import InputError
from gduq_reproduction.datasets import tu
from gduq_reproduction.datasets.tu import load_tu
from tests.data.real import real

TABLE = {  # graphs, smallest half, largest tenth; class shares of both; mean sizes
    "NCI1": ((4110, 2157, 412), (0.6230, 0.1917), (29, 20, 61)),
    "NCI109": ((4127, 2079, 421), (0.6204, 0.2137), (29, 20, 61)),
    "PROTEINS": ((1113, 567, 112), (0.4197, 0.9017), (39, 15, 138)),
    "DD": ((1178, 592, 118), (0.3547, 0.7966), (284, 144, 746)),
}


def write_tiny(folder, name="TINY", graphs=20, labels=True):
    """Paths of 2, 3, ... nodes; the last graph has no edges."""
    raw = folder / name / "raw"
    raw.mkdir(parents=True)
    indicator, edges, start = [], [], 1
    for g in range(graphs):
        nodes = 2 + g
        indicator += [g + 1] * nodes
        if g < graphs - 1:
            for i in range(nodes - 1):
                edges += [(start + i, start + i + 1), (start + i + 1, start + i)]
        start += nodes
    files = {
        "A": [f"{u}, {v}" for u, v in edges],
        "graph_indicator": indicator,
        "graph_labels": [(-1, 1)[g % 2] for g in range(graphs)],
    }
    if labels:
        files["node_labels"] = [i % 3 for i in range(len(indicator))]
    for part, lines in files.items():
        (raw / f"{name}_{part}.txt").write_text("\n".join(map(str, lines)) + "\n")
    return raw


def nodes_of(view):
    return torch.tensor([int(graph.num_nodes) for graph in view.graphs])


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    raw = write_tiny(tmp_path / "data")
    monkeypatch.setenv("GDUQ_DATA", str(tmp_path / "data"))
    return raw


def test_small_train_large_test(tiny, tmp_path):
    splits = load_tu("TINY", tmp_path)
    sizes = {name: nodes_of(view) for name, view in splits}
    assert [len(view) for _, view in splits] == [8, 1, 1, 8, 2]
    assert max(sizes["train"].max(), sizes["id_val"].max(), sizes["id_test"].max()) == 11
    assert sizes["ood_test"].min() == 20
    everything = torch.cat(list(sizes.values())).sort().values
    assert everything.tolist() == list(range(2, 22))
    graph = splits.train.graphs[0]
    assert graph.x.size(1) == 3
    assert set(splits.train.target.tolist()) == {0, 1}
    last = next(g for g in splits.ood_test.graphs if g.num_nodes == 21)
    assert last.num_edges == 0
    assert not (tiny.parent / "processed").exists()


def test_graphs_without_labels_get_the_constant(tmp_path, monkeypatch):
    write_tiny(tmp_path / "data", labels=False)
    monkeypatch.setenv("GDUQ_DATA", str(tmp_path / "data"))
    splits = load_tu("TINY", tmp_path)
    for graph in splits.train.graphs:
        assert torch.equal(graph.x, torch.ones(graph.num_nodes, 1))


@pytest.mark.parametrize("part", ["A", "graph_indicator", "graph_labels"])
def test_a_missing_file_is_named(tiny, tmp_path, part):
    (tiny / f"TINY_{part}.txt").unlink()
    with pytest.raises(InputError):
        load_tu("TINY", tmp_path)


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("node_labels", lambda lines: lines[:-3]),
        ("graph_labels", lambda lines: lines[:-3]),
        ("A", lambda lines: ["one, two", *lines[1:]]),
    ],
)
def test_damaged_files_raise(tiny, tmp_path, part, damage):
    path = tiny / f"TINY_{part}.txt"
    path.write_text("".join(line + chr(10) for line in damage(path.read_text().splitlines())))
    with pytest.raises(InputError):
        load_tu("TINY", tmp_path)


def test_a_known_set_must_have_its_known_size(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(tu._KNOWN, "TINY", (20, 230, 400))
    with pytest.raises(InputError):
        load_tu("TINY", tmp_path)


def test_download(tmp_path, monkeypatch):
    raw = write_tiny(tmp_path / "elsewhere")
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for path in raw.iterdir():
            archive.write(path, f"TINY/{path.name}")
    asked = []

    def urlopen(url):
        asked.append(url)
        return io.BytesIO(memory.getvalue())

    monkeypatch.delenv("GDUQ_DATA", raising=False)
    monkeypatch.setattr(tu.urllib.request, "urlopen", urlopen)
    for _ in range(2):
        assert len(load_tu("TINY", tmp_path / "root").train) == 8
    assert asked == ["https://www.chrsmrrs.com/graphkerneldatasets/TINY.zip"]

    def offline(url):
        raise OSError("no route")

    monkeypatch.setattr(tu.urllib.request, "urlopen", offline)
    with pytest.raises(InputError):
        load_tu("OTHER", tmp_path / "root")


@pytest.mark.parametrize("name", list(TABLE))
def test_the_papers_size_table(tmp_path, name):
    real(f"{name}/raw")
    (total, small, large), (share_small, share_large), means = TABLE[name]
    splits = load_tu(name, tmp_path)
    pool = [splits.train, splits.id_val, splits.id_test]
    sizes = torch.cat([nodes_of(view) for view in pool]).double()
    labels = torch.cat([view.target for view in pool])
    tested = nodes_of(splits.ood_test).double()
    assert sum(len(view) for _, view in splits) == total
    assert find(f"tu/{name}/size").rows == f"{total} graphs"
    assert len(sizes) == small
    assert len(splits.ood_test) == large
    assert (labels == 0).double().mean().item() == pytest.approx(share_small, abs=1e-4)
    assert (splits.ood_test.target == 0).double().mean().item() == pytest.approx(
        share_large, abs=1e-4
    )
    everything = torch.cat([nodes_of(view) for _, view in splits]).double()
    assert tuple(int(v.mean()) for v in (everything, sizes, tested)) == means


@pytest.mark.parametrize("name", ["MUTAG", "PROTEINS"])
def test_real_graphs_are_those_of_pyg(tmp_path, name):
    raw = real(f"{name}/raw")
    shutil.copytree(raw, tmp_path / "pyg" / name / "raw")
    theirs = TUDataset(str(tmp_path / "pyg"), name)
    mine = tu.read_tu(raw, name, tmp_path)
    assert len(mine) == len(theirs)
    for i in range(0, len(theirs), 17):
        for key in ("x", "edge_index", "edge_attr", "y"):
            if theirs[i].get(key) is None:
                assert mine[i].get(key) is None
            else:
                assert torch.equal(mine[i][key], theirs[i][key]), key
