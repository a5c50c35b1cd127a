"""Raw files: where they are looked for, and what is left of a failed download."""

import os
import stat

import pytest

import gduq
from gduq.errors import InputError
from gduq_reproduction.datasets.raw import find_raw, raw_file


def test_gduq_data_comes_first_and_is_never_written(tmp_path, monkeypatch):
    given, root = tmp_path / "given", tmp_path / "root"
    for folder, text in ((given, "given"), (root / "raw", "cached")):
        (folder / "set/raw").mkdir(parents=True)
        (folder / "set/raw/file").write_text(text)
    monkeypatch.delenv("GDUQ_DATA", raising=False)
    assert find_raw("set/raw/file", root).read_text() == "cached"
    monkeypatch.setenv("GDUQ_DATA", str(given))
    given.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert find_raw("set/raw/file", root).read_text() == "given"
    assert find_raw("other", root) is None
    source = tmp_path / "source"
    source.write_text("downloaded")
    path = raw_file("set/raw/new", root, source.as_uri())
    assert path == root / "raw/set/raw/new"
    assert os.listdir(given / "set/raw") == ["file"]
    monkeypatch.setenv("GDUQ_DATA", str(tmp_path / "typo"))
    with pytest.raises(InputError):
        find_raw("file", tmp_path)


def test_motif_without_label_noise():
    exact, noisy = (gduq.data.load(f"motif-{k}/basis/concept", seed=1) for k in ("exact", "lpe"))
    for (_, one), (_, two) in zip(exact, noisy, strict=True):
        assert 0.9 < (one.target == two.target).double().mean() < 0.96  # a fifteenth is redrawn
    for graph in list(exact.train.graphs)[:50]:  # of the three motifs a cycle alone has five edges
        inside = (graph.edge_index >= graph.num_nodes - 5).all(dim=0).sum()
        assert (inside == 2 * 5) == (graph.y == 1)
        assert graph.pe.shape == (graph.num_nodes, 4)


def test_a_download_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("GDUQ_DATA", raising=False)
    with pytest.raises(InputError):
        raw_file("set/file", tmp_path, (tmp_path / "none").as_uri())
    assert os.listdir(tmp_path / "raw" / "set") == []  # not half of it
    with pytest.raises(InputError):
        raw_file("set/file", tmp_path)
