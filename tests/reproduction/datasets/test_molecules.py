"""Tables of molecules by name: right columns, rows, units and cuts, and no row lost in silence."""

import pytest

from gduq.data import load
from gduq.errors import InputError
from gduq_reproduction.datasets.molecules import load_molecules
from tests.data.real import real

pytest.importorskip("rdkit")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    real("MoleculeNet/freesolv/raw/SAMPL.csv")
    return tmp_path_factory.mktemp("cache")


def test_freesolv_has_the_measured_values(root):
    splits = load("molecules/freesolv/scaffold", root)
    values = {g.smiles: float(g.y) for _, view in splits for g in view.graphs}
    assert values["CN(C)C(=O)c1ccc(cc1)OC"] == pytest.approx(-11.01)  # the first line of the file
    assert sum(len(view) for _, view in splits) == 642
    assert splits.target_names == ("expt",)
    assert splits.units == ("kcal/mol",)
    assert splits.class_names == ()
    assert splits.train.target.is_floating_point()
    assert splits.train.target.shape == (len(splits.train),)
    graph = splits.train.graphs[0]
    assert graph.x.shape[1] == 9
    assert graph.edge_attr.shape[1] == 3


def test_scaffolds_and_sizes_are_not_parted(root):
    by_scaffold = load("molecules/freesolv/scaffold", root, seed=1)
    seen = set(by_scaffold.domains["train"].tolist())
    assert seen.isdisjoint(by_scaffold.domains["ood_test"].tolist())
    assert max(seen) < int(by_scaffold.domains["ood_test"].min())  # the rarest are tested on
    by_size = load("molecules/freesolv/size", root, seed=1)
    sizes = [g.num_nodes for g in by_size.ood_test.graphs]
    assert min(sizes) > max(g.num_nodes for g in by_size.train.graphs)
    assert by_size.domains["ood_test"].tolist() == sizes


def test_a_table_with_bad_rows_says_so(tmp_path, monkeypatch):
    folder = tmp_path / "MoleculeNet/bbbp/raw"
    folder.mkdir(parents=True)
    good = "".join(f"{i % 2},{'C' * (1 + i % 30)}O\n" for i in range(60))
    (folder / "BBBP.csv").write_text(f"BBBP,smiles\n{good}1,C1CC\n")
    monkeypatch.setenv("GDUQ_DATA", str(tmp_path))
    with pytest.warns(UserWarning, match="C1CC"):
        splits = load_molecules("bbbp", "size", tmp_path / "cache")
    assert splits.class_names == ("does not pass", "passes")
    assert not splits.train.target.is_floating_point()


def test_no_table_and_no_such_set(tmp_path, monkeypatch):
    monkeypatch.setenv("GDUQ_DATA", str(tmp_path))
    with pytest.raises(InputError):
        load_molecules("freesolv", "size", tmp_path / "cache")
    with pytest.raises(InputError):
        load_molecules("freesolv", "colour", tmp_path)
