"""A user's own data: read, checked, cut; the config that names it."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

from gduq.data import save
from gduq.errors import InputError
from gduq.runs.config import RunConfig
from gduq.runs.folder import data_of
from gduq.runs.run import requirements
from gduq.shifts import cut
from gduq.shifts.cuts import domain_of
from tests.cli.cases import CLASSES, rings
from tests.cli.tables import LABELS, table


def own(path, **data):
    return data_of(RunConfig(data={"source": str(path), **data}))


# -- the cut ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [20, 57, 1000])
@pytest.mark.parametrize("shifted", [True, False])
def test_every_row_is_in_one_part(n, shifted):
    values = torch.arange(n) // 3 if shifted else None
    rare = (torch.arange(n) % 10 == 0).long()
    found = cut(values, rare, seed=1)
    assert shifted or n < 40 or all(bool(rare[part].any()) for part in found.values())
    rows = torch.cat(list(found.values()))
    assert torch.equal(rows.sort().values, torch.arange(n))
    assert ("ood_test" in found) == shifted
    assert all(len(part) for part in found.values())
    if shifted:
        seen = torch.cat([found[split] for split in ("train", "id_val", "id_test")])
        assert not set(values[seen].tolist()) & set(values[found["ood_test"]].tolist())
        assert 0.1 * n < len(found["ood_test"]) < 0.3 * n


@pytest.mark.parametrize(
    ("values", "strata"),
    [(torch.zeros(40), torch.zeros(40)), (None, torch.zeros(19)), (None, torch.arange(40))],
)
def test_what_cannot_be_cut(values, strata):
    with pytest.raises(InputError):
        cut(values, strata)


def test_time_takes_years_and_dates_only():
    graphs = [Data(num_nodes=1)] * 3
    assert domain_of("time=t", graphs, ["2001", "1999", "2003.5"]).tolist() == [2001, 1999, 2003.5]
    dates = domain_of("time=t", graphs, ["2001-05-31", "1999-01-01", "2003-02-02 10:00"])
    assert dates.argsort().tolist() == [1, 0, 2]
    with pytest.raises(InputError):
        domain_of("time=t", graphs, ["2001-05-31", "31/12/1999", "2003-02-02"])


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
    assert (found.splits.ood_test is None) == (by == "random")


def test_the_target_is_what_the_columns_are(files):
    for kind, data in {"values": {}, "words": {"targets": ["activity"]},
                       "labels": {"targets": LABELS}}.items():  # fmt: skip
        config = RunConfig(data={"source": str(files[kind]), **data})
        splits, target = data_of(config).splits, data_of(config).target
        if kind == "words":
            assert target.kind == "classes"
            assert splits.class_names == ("binds", "no binding")
        else:
            assert target.kind == kind
            assert target.names == splits.target_names


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("values", {"by": "time=lab"}),
        ("values", {"by": "time"}),
        ("values", {"by": "size=lab"}),
        ("values", {"units": ["mol/L", "mg"]}),
        (None, {}),
        (None, {"name": "cbas/color/concept", "by": "size"}),
    ],
)
def test_mistakes_are_told_before_rows_are_read(kind, data, files):
    source = {} if kind is None else {"source": str(files[kind])}
    with pytest.raises(InputError):
        RunConfig(data={**source, **data})


def test_several_values_may_have_gaps(tmp_path):
    path = tmp_path / "t.csv"
    rows = [
        f"{'C' * (1 + i % 9)}O,{'' if i % 20 == 0 else i / 7},{'' if i % 10 == 0 else i / 3}"
        for i in range(50)
    ]
    path.write_text("smiles,a,b\n" + "\n".join(rows))
    found = own(path, targets=["a", "b"], by="size")
    assert found.target.kind == "values"
    assert [reject.reason for _, reject in found.rejects] == ["a target is empty"] * 3
    assert found.splits.train.target.size(1) == 2


def test_molecules_without_rings_are_cut_by_size(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("smiles,y\n" + "\n".join(f"{'C' * (1 + i % 9)}O,{i / 7}" for i in range(60)))
    assert own(path).by == "size"
    with pytest.raises(InputError):
        own(path, by="scaffold")
    path.write_text("smiles,y\nCCO,1.5\nCCN,2.5\n")
    with pytest.raises(InputError):
        own(path)


def test_a_file_of_graphs(tmp_path):
    found = own(save(rings(60), tmp_path / "g.safetensors", CLASSES))
    assert (found.target.kind, found.by) == ("classes", "size")
    assert found.splits.class_names == tuple(CLASSES)
    for data in ({"targets": ["y"]}, {"smiles": "smiles"}):
        with pytest.raises(InputError):
            own(tmp_path / "g.safetensors", **data)


# -- the config ------------------------------------------------------------------------------------


def test_a_run_is_known_by_what_the_file_holds(files, tmp_path):
    config = RunConfig(data={"source": str(files["values"])})
    copy = tmp_path / "elsewhere.csv"
    copy.write_bytes(files["values"].read_bytes())
    assert RunConfig(data={"source": str(copy)}).hash == config.hash
    assert RunConfig(**config.model_dump(mode="json")) == config
    assert RunConfig.from_values(config.model_dump(mode="json"), {}).hash == config.hash
    copy.write_text(copy.read_text() + "M,CCO,1.0,a,2020-01-01\n")
    changed = RunConfig(data={"source": str(copy)})
    assert changed.hash != config.hash
    copy.unlink()
    assert changed.with_({"seed": 1}).data.digest == changed.data.digest  # it need not be there
    with pytest.raises(InputError):
        data_of(changed)


def test_defaults_of_a_run(files, tmp_path):
    for patience in (15, 0):
        given = {"lr": 0.01} if patience else {"lr": 0.01, "patience": 0}
        config = RunConfig(data={"source": str(files["values"])}, training=given)
        assert (config.method.kind, config.training.patience) == ("choose", patience)
        assert config.folder_name.startswith("values-choose-")
        (tmp_path / "config.json").write_text(config.model_dump_json())
        assert RunConfig.read(tmp_path) == config
        (plain,) = requirements(config)
        assert (plain.method.kind, plain.model) == ("plain", config.model)
