"""WebKB on made-up files and on the real ones, old Cornell and new."""

import shutil

import numpy as np
import pytest
import torch

from gduq.errors import InputError
from gduq_reproduction.datasets.webkb import UNIVERSITIES, load_webkb
from tests.data.real import real

SIZES = {"covariate": (244, 61, 61, 125, 126), "no_shift": (370, 123, 124)}


def write_university(folder, name, features, labels, links):
    raw = folder / name / "raw"
    raw.mkdir(parents=True)
    lines = ["node_id\tfeature\tlabel"]
    for node, (row, label) in enumerate(zip(features, labels, strict=True)):
        lines.append(f"{node}\t{','.join(map(str, row))}\t{label}")
    (raw / "out1_node_feature_label.txt").write_text("\n".join(lines) + "\n")
    lines = ["node_id\tnode_id"] + [f"{u}\t{v}" for u, v in links]
    (raw / "out1_graph_edges.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Three universities of the right size; Cornell's pages differ from Texas's."""
    rng = np.random.default_rng(0)
    for name, (pages, links) in UNIVERSITIES.items():
        features = (rng.random((pages, 1703)) < 0.02).astype(int)
        edges = rng.integers(0, pages, (links, 2)).tolist()
        write_university(tmp_path / "data", name, features, rng.integers(0, 5, pages), edges)
    monkeypatch.setenv("GDUQ_DATA", str(tmp_path / "data"))
    return tmp_path


def pages_file(folder, name):
    return folder / "data" / name / "raw" / "out1_node_feature_label.txt"


def test_splits(fake):
    for shift, sizes in SIZES.items():
        splits = load_webkb(shift, fake)
        assert tuple(len(view) for _, view in splits) == sizes
        assert (torch.stack([view.mask for _, view in splits]).sum(0) == 1).all()
    splits = load_webkb("covariate", fake)  # Wisconsin is tested on, in the order of its pages
    assert splits.ood_val.numbers.tolist() == list(range(125))
    assert splits.ood_test.numbers.tolist() == list(range(125, 251))
    assert splits.domains["ood_test"].unique().tolist() == [2]
    assert splits.domains["train"].unique().tolist() == [0, 1]
    assert "later version" in splits.description


def test_the_old_cornell_is_told_and_warned_about(fake):
    shutil.copy(pages_file(fake, "texas"), pages_file(fake, "cornell"))
    with pytest.warns(UserWarning, match="old version"):
        splits = load_webkb("no_shift", fake)
    assert "old version" in splits.description


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("wisconsin/raw/out1_node_feature_label.txt", lambda text: text[:1000]),
        ("wisconsin/raw/out1_node_feature_label.txt", lambda text: text.replace("0,", "x,", 1)),
        ("texas/raw/out1_graph_edges.txt", lambda text: text[: len(text) // 2]),
        ("texas/raw/out1_graph_edges.txt", lambda text: text.replace("\n", "\n900", 2)),
    ],
)
def test_damaged_files_are_named(fake, file, damage):
    path = fake / "data" / file
    path.write_text(damage(path.read_text()))
    with pytest.raises(InputError) as error:
        load_webkb("no_shift", fake)
    assert str(path) in str(error.value)


# -- the real files --------------------------------------------------------------------------------


def test_real_graph(tmp_path):
    real("cornell/raw")
    splits = load_webkb("covariate", tmp_path)
    graph = splits.train.graphs[0]
    assert graph.x.shape == (617, 1703)
    assert graph.num_edges == 1138
    loops = graph.edge_index[0][graph.edge_index[0] == graph.edge_index[1]]
    counts = torch.bincount(torch.bucketize(loops, torch.tensor([251, 434]), right=True))
    assert counts.tolist() == [16, 3, 16]
    assert torch.bincount(graph.y[251:434]).tolist() == [38, 16, 30, 82, 17]
    assert tuple(len(view) for _, view in splits) == SIZES["covariate"]
    assert "later version" in splits.description
