"""Names: all of them listed and known, unknown ones answered with near ones, limits."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from gduq.data import load, names
from gduq.data.catalog import families, find
from gduq.errors import InputError
from tests.data.real import real

NEEDS = {
    "tu": "MUTAG/raw",
    "webkb": "cornell/raw",
    "cora-ml": "CitationFull/cora_ml/raw/cora_ml.npz",
    "citeseer": "CitationFull/citeseer/raw/citeseer.npz",
    "coauthor-cs": "Coauthor/CS/raw/ms_academic_cs.npz",
}
QUICK = [n for n in names() if n.split("/")[0] in ("motif", "cbas", *NEEDS)]
QUICK = [n for n in QUICK if n.split("/")[1] not in ("NCI1", "NCI109", "PROTEINS", "DD")]  # test_tu


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("name", QUICK)
def test_every_quick_name_loads(root, name):
    family = name.split("/")[0]
    if family in NEEDS:
        real(NEEDS[family])
    splits = load(name, root)
    known = find(name)
    assert splits.name == name
    assert {view.task for _, view in splits} == {known.task}
    assert sum(len(view) for _, view in splits) == int(known.rows.split()[0])
    assert len(splits.class_names) == known.classes
    assert int(max(view.target.max() for _, view in splits)) < known.classes
    assert splits.description
    assert splits.sources
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


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("motif/basis/covarate", "motif/basis/covariate"),
        ("motif/bases/concept", "motif/basis/concept"),
        ("cora", "cora/word/covariate"),
        ("Cora/Word/covariate", "cora/word/covariate"),
        ("TU/Proteins/Size", "tu/PROTEINS/size"),
        ("webkb/covariate", "webkb/university/covariate"),
        ("rotmnist/rotated", "rotmnist/rotation"),
        ("tu/NCI1", "tu/NCI1/size"),
    ],
)
def test_an_unknown_name_lists_near_ones(wrong, near):
    with pytest.raises(InputError, match="Did you mean") as error:
        load(wrong)
    assert near in str(error.value)


def test_any_tu_name_is_tried():
    assert find("tu/IMDB-BINARY/size").domain == "graph size"
    with pytest.raises(InputError):
        find("tu//size")


def test_limit_keeps_proportions(root):
    splits = load("motif/basis/covariate", root, limit=100)
    assert [len(view) for _, view in splits] == [60, 10, 10, 10, 10]
    assert splits.domains["ood_test"].tolist() == [4] * 10
    whole = load("motif/basis/covariate", root)
    kept, all_rows = splits.train.graphs.visible, whole.train.graphs.visible
    assert set(kept.tolist()) <= set(all_rows.tolist())
    again = load("motif/basis/covariate", root, limit=100)
    assert torch.equal(again.train.graphs.visible, kept)


def test_limit_of_a_node_task_thins_the_masks(root):
    splits = load("cbas/color/covariate", root, limit=70)
    assert [len(view) for _, view in splits] == [42, 7, 7, 7, 7]
    assert splits.train.graphs[0].num_nodes == 700
    x = splits.train.graphs[0].x
    palette = torch.unique(x[splits.train.rows], dim=0, return_inverse=True)[1]
    assert len(palette) == len(splits.domains["train"])
    for name, view in splits:  # domain values stay beside their rows
        colours = x[view.rows][splits.domains[name] == splits.domains[name][0]]
        assert len(colours.unique(dim=0)) == 1


def test_a_limit_out_of_range(root):
    for limit in (0, -1, 4):
        with pytest.raises(InputError):
            load("cbas/color/covariate", root, limit=limit)
    splits = load("cbas/color/covariate", root, limit=701)  # more than there are: all
    assert sum(len(view) for _, view in splits) == 700


def test_a_wrong_seed(root):
    for seed in (-1, 0.5, "a"):
        with pytest.raises(InputError, match="seed as a whole number of at least 0"):
            load("cbas/color/covariate", root, seed=seed)


def test_names_need_no_torch():
    code = "import sys, gduq.data.catalog as c; c.names(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_arguments_of_other_types(root):
    for name in (None, "???"):
        with pytest.raises(InputError, match=r"the name of a dataset, got .* `gduq data list`"):
            load(name)
    with pytest.raises(InputError, match="limit as a whole number, got '10'"):
        load("cbas/color/covariate", root, limit="10")
    one, two = (load("cbas/color/covariate", root, seed=s) for s in (3, np.int64(3)))
    assert torch.equal(one.train.rows, two.train.rows)


def test_a_limit_is_kept_exactly_and_training_keeps_every_class(root):
    splits = load("cbas/color/covariate", root, limit=33)
    assert sum(len(view) for _, view in splits) == 33
    assert splits.train.target.unique().tolist() == [0, 1, 2, 3]
