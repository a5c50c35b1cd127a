"""Names: all of them listed and known, unknown ones answered with near ones, limits."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from gduq.data import load, names
from gduq.data.catalog import cache_root, families, find
from gduq.errors import InputError

QUICK = [name for name in names() if name.startswith(("motif", "cbas"))]


@pytest.mark.parametrize("name", QUICK)
def test_every_quick_name_loads(tmp_path, name):
    splits = load(name, tmp_path)
    known = find(name)
    assert splits.name == name
    assert {view.task for _, view in splits} == {known.task}
    assert sum(len(view) for _, view in splits) == int(known.rows.split()[0])
    assert len(splits.class_names) == known.classes
    assert int(max(view.target.max() for _, view in splits)) < known.classes
    assert splits.description
    for split, view in splits:
        assert len(splits.domains[split]) == len(view)
    if name.endswith("no_shift"):
        assert splits.ood_test is None


def test_names_are_unique_and_have_every_shift():
    assert len(set(names())) == len(names())
    some = {"motif/size/concept", "cora/word/covariate", "cora/degree/no_shift", "rotmnist/noise"}
    some |= {"cmnist/color/concept", "rotmnist/rotation", "tu/DD/size", "sst2/length/covariate"}
    assert some <= set(names())
    assert all(family.task in ("node", "graph") for family in families().values())


def test_an_unknown_name_lists_near_ones():
    for wrong, near in (("cora", "cora/word/covariate"), ("TU/Proteins/Size", "tu/PROTEINS/size")):
        with pytest.raises(InputError) as error:
            load(wrong)
        assert near in error.value.do


@pytest.mark.parametrize("name", [None, "???", "tu//size"])
def test_what_is_no_name(name):
    with pytest.raises(InputError):
        find(name)
    assert find("tu/IMDB-BINARY/size").domain == "graph size"


def test_limit_of_a_node_task_thins_the_masks():
    splits = load("cbas/color/covariate", limit=70)
    assert [len(view) for _, view in splits] == [42, 7, 7, 7, 7]
    assert splits.train.graphs[0].num_nodes == 700
    x = splits.train.graphs[0].x
    for name, view in splits:  # domain values stay beside their rows
        colours = x[view.rows][splits.domains[name] == splits.domains[name][0]]
        assert len(colours.unique(dim=0)) == 1
    odd = load("cbas/color/covariate", limit=33)
    assert sum(len(view) for _, view in odd) == 33
    assert odd.train.target.unique().tolist() == [0, 1, 2, 3]
    every = load("cbas/color/covariate", limit=701)  # more than there are: all
    assert sum(len(view) for _, view in every) == 700


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.setenv("GDUQ_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_root() == tmp_path / "a"
    assert cache_root(tmp_path / "c") == tmp_path / "c"
    monkeypatch.delenv("GDUQ_CACHE")
    assert cache_root() == tmp_path / "b" / "gduq"
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError):
        cache_root(tmp_path / "file" / "root")


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"limit": 4}, {"limit": "10"}, {"seed": -1}, {"seed": 0.5}]
)
def test_numbers_out_of_range(wrong):
    with pytest.raises(InputError):
        load("cbas/color/covariate", **wrong)
    one, two = (load("cbas/color/covariate", seed=s) for s in (3, np.int64(3)))
    assert torch.equal(one.train.rows, two.train.rows)


def test_names_need_no_torch():
    code = "import sys, gduq.data.catalog as c; c.names(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
