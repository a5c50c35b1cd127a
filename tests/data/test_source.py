"""A user's own data: read, checked, cut; the config that names it."""

from __future__ import annotations

import sys

import pytest
import torch
from torch_geometric.data import Data

from gduq.bundle import load
from gduq.data import save
from gduq.errors import InputError
from gduq.runs.build import own_of, splits_of, target_of
from gduq.runs.config import RunConfig
from gduq.runs.run import requirements, run
from gduq.shifts import cut
from gduq.shifts.cuts import Domain
from tests.cli.cases import CLASSES, rings
from tests.cli.tables import LABELS, table


def own(path, **data):
    return own_of(RunConfig(data={"source": str(path), **data}))


# -- the cut ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [20, 57, 100, 1000])
@pytest.mark.parametrize("shifted", [True, False])
def test_every_row_is_in_one_part(n, shifted):
    values = torch.arange(n) // 3 if shifted else None
    found = cut(values, torch.arange(n) % 4, seed=1)
    rows = torch.cat(list(found.values()))
    assert torch.equal(rows.sort().values, torch.arange(n))
    assert ("ood_test" in found) == shifted
    assert all(len(part) for part in found.values())
    if shifted:
        seen = torch.cat([found[split] for split in ("train", "id_val", "id_test")])
        assert not set(values[seen].tolist()) & set(values[found["ood_test"]].tolist())
        assert 0.1 * n < len(found["ood_test"]) < 0.3 * n


def test_a_rare_class_is_in_every_part_at_home():
    strata = (torch.arange(100) % 25 == 0).long()
    for seed in range(5):
        assert all(bool(strata[rows].any()) for rows in cut(None, strata, seed=seed).values())


def test_equal_rows_cannot_be_cut():
    with pytest.raises(InputError, match="40 of 40 rows that are alike"):
        cut(torch.zeros(40), torch.zeros(40))
    with pytest.raises(InputError, match="at least 20 rows"):
        cut(None, torch.zeros(19))
    with pytest.raises(InputError, match="no part empty"):
        cut(None, torch.arange(40))


def test_time_takes_years_and_dates_only():
    graphs = [Data(num_nodes=1)] * 3
    years = Domain.of("time=t", graphs, ["2001", "1999", "2003.5"])
    assert years.describe(torch.tensor([0, 1])) == "t 1999 to 2001"
    dates = Domain.of("time=t", graphs, ["2001-05-31", "1999-01-01", "2003-02-02 10:00"])
    assert dates.values.argsort().tolist() == [1, 0, 2]
    assert dates.describe(torch.tensor([1])) == "t 1999-01-01"
    with pytest.raises(InputError, match="the year first"):
        Domain.of("time=t", graphs, ["2001-05-31", "31/12/1999", "2003-02-02"])


# -- tables ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    return {kind: table(folder / f"{kind}.csv", kind) for kind in ("values", "words", "labels")}


@pytest.mark.parametrize("by", ["scaffold", "size", "group=lab", "time=measured on", "random"])
def test_ways_to_cut(by, files):
    found = own(files["values"], by=by)
    assert found.by == by
    assert len(found.rejects) == 1
    assert sum(len(view) for _, view in found.splits) == 100
    assert found.splits.target_names == ("logS",)
    assert found.splits.units == ("log mol/L",)
    shown = {"scaffold": "scaffolds", "size": "atoms", "group=lab": "lab c",
             "time=measured on": "(measured on 2019-05-14 to 2021-05-28)",
             "random": "molecules, like"}  # fmt: skip
    assert shown[by] in found.cut[-1]


def test_the_target_is_what_the_columns_are(files):
    for kind, data in {"values": {}, "words": {"targets": ["activity"]},
                       "labels": {"targets": LABELS}}.items():  # fmt: skip
        config = RunConfig(data={"source": str(files[kind]), **data})
        splits = splits_of(config)
        target = target_of(config, splits)
        if kind == "words":
            assert target.kind == "classes"
            assert splits.class_names == ("binds", "no binding")
        else:
            assert target.kind == kind
            assert target.names == splits.target_names


def test_mistakes_are_told_before_rows_are_read(files, tmp_path):
    with pytest.raises(InputError, match="the year first"):
        RunConfig(data={"source": str(files["values"]), "by": "time=lab"})
    with pytest.raises(InputError, match="words such as 'binds'"):
        RunConfig(data={"source": str(files["words"]), "targets": ["activity"], "task": "values"})
    small = tmp_path / "two.csv"
    small.write_text("smiles,y\nCCO,1.5\nCCN,2.5\n")
    with pytest.raises(InputError, match="at least 20 rows"):
        own(small)


def test_several_values_leave_rows_with_gaps_out(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{'C' * (1 + i % 9)}O,{i / 7},{'' if i % 10 == 0 else i / 3}" for i in range(50)]
    path.write_text("smiles,a,b\n" + "\n".join(rows))
    found = own(path, targets=["a", "b"], by="size")
    assert found.target.kind == "values"
    assert [reject.reason for _, reject in found.rejects] == ["a target is empty"] * 5
    assert found.splits.train.target.size(1) == 2


def test_molecules_without_rings_are_cut_by_size(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("smiles,y\n" + "\n".join(f"{'C' * (1 + i % 9)}O,{i / 7}" for i in range(60)))
    assert own(path).by == "size"
    with pytest.raises(InputError, match="60 of 60 rows that are alike"):
        own(path, by="scaffold")


# -- other sources ---------------------------------------------------------------------------------


def test_a_file_of_graphs(tmp_path):
    found = own(save(rings(60), tmp_path / "g.safetensors", CLASSES))
    assert (found.target.kind, found.by) == ("classes", "size")
    assert found.splits.class_names == tuple(CLASSES)


def test_a_tu_folder(tmp_path):
    folder = tmp_path / "TOY"
    folder.mkdir()
    nodes = [3 + i % 6 for i in range(40)]
    edges, owner, start = [], [], 1
    for g, n in enumerate(nodes):
        owner += [str(g + 1)] * n
        edges += [f"{start + i}, {start + (i + 1) % n}" for i in range(n)]
        edges += [f"{start + (i + 1) % n}, {start + i}" for i in range(n)]
        start += n
    texts = {"A": edges, "graph_indicator": owner, "node_labels": ["0", "1"] * (len(owner) // 2)
             + ["0"] * (len(owner) % 2), "graph_labels": [str(n % 2) for n in nodes]}  # fmt: skip
    for name, lines in texts.items():
        (folder / f"TOY_{name}.txt").write_text("\n".join(lines) + "\n")
    found = own(folder)
    assert sum(len(view) for _, view in found.splits) == 40
    assert found.target.kind == "classes"
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="a TU folder"):
        RunConfig(data={"source": str(empty)})


def test_a_dataset_by_name(tmp_path, monkeypatch):
    (tmp_path / "mygraphs.py").write_text(
        "from tests.cli.cases import rings\n"
        "import torch\n"
        "def small(): return rings(40)\n"
        "one = rings(1)[0]\n"
        "one.y = torch.arange(one.num_nodes) % 2\n"
        "for i, name in enumerate(('train_mask', 'val_mask', 'test_mask')):\n"
        "    one[name] = torch.arange(one.num_nodes) == i\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    config = RunConfig(data={"source": "mygraphs:small"})
    assert config.data.name == "mygraphs:small"
    assert len(own_of(config).splits.train) > 10
    nodes = own("mygraphs:one")
    assert nodes.by == "masks"
    assert nodes.splits.train.task == "node"
    with pytest.raises(InputError, match="no --by"):
        own("mygraphs:one", by="size")
    with pytest.raises(InputError, match="none of that name"):
        RunConfig(data={"source": "mygraphs:large"})


# -- the config ------------------------------------------------------------------------------------


def test_a_run_is_known_by_what_the_file_holds(files, tmp_path):
    config = RunConfig(data={"source": str(files["values"])})
    copy = tmp_path / "elsewhere.csv"
    copy.write_bytes(files["values"].read_bytes())
    assert RunConfig(data={"source": str(copy)}).hash == config.hash
    assert RunConfig(**config.model_dump(mode="json")) == config
    assert RunConfig.from_values(config.model_dump(mode="json"), {}).hash == config.hash
    copy.write_text(copy.read_text() + "M,CCO,1.0,a,2020-01-01\n")
    changed = config.with_({"data.source": str(copy)})
    assert changed.hash != config.hash
    copy.unlink()
    assert changed.with_({"seed": 1}).data.digest == changed.data.digest  # it need not be there
    with pytest.raises(InputError):
        splits_of(changed)


def test_own_data_has_defaults_of_its_own(files):
    config = RunConfig(data={"source": str(files["values"])}, training={"lr": 0.01})
    assert config.method.kind == "choose"
    assert (config.training.patience, config.training.lr) == (15, 0.01)
    assert config.folder_name.startswith("values-choose-")
    (plain,) = requirements(config)
    assert plain.method.kind == "vanilla"
    assert plain.model == config.model
    dropout = RunConfig(data={"source": str(files["values"])}, method={"kind": "mcdropout"})
    assert dropout.model.dropout > 0


@pytest.mark.parametrize("patience", [None, 3, 0])
def test_no_patience_survives_rewriting(patience, files, tmp_path):
    config = RunConfig(data={"source": str(files["values"])}, training={"patience": patience})
    (tmp_path / "config.json").write_text(config.model_dump_json())
    again = RunConfig.read(tmp_path)
    assert again == config
    assert again.hash == config.hash
    assert again.training.patience == (patience or None)


@pytest.mark.filterwarnings("ignore:calibrated on", "ignore:the network explains nothing")
@pytest.mark.parametrize("calibrate", ["none", "clean", "shifted"])
def test_a_choice_is_calibrated_as_the_config_says(calibrate, files, tmp_path):
    config = RunConfig(
        data={"source": str(files["words"]), "targets": ["activity"]},
        model={"hidden_channels": 8, "num_layers": 2},
        training={"epochs": 2},
        method={"kind": "choose", "calibrate": calibrate},
    )
    model, _ = load(run(config, tmp_path, progress=False, evaluate=False).bundle)
    assert model.calibration == (None if calibrate == "none" else calibrate)
    if calibrate == "none":
        assert {float(part.temperature) for part in (*model, model)} == {1.0}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "'data.name' or 'data.source'"),
        ({"name": "cbas/color/concept", "by": "size"}, "data.source with data.by"),
        ({"source": "graphs.npz"}, "does not exist"),
    ],
)
def test_what_does_not_go_together(data, said):
    with pytest.raises(InputError, match=said):
        RunConfig(data=data)
