"""Tables of molecules by name: right columns, rows, units and cuts."""

import pytest

from gduq.data import load
from tests.data.real import real

pytest.importorskip("rdkit")


def test_freesolv_has_the_measured_values(tmp_path):
    real("MoleculeNet/freesolv/raw/SAMPL.csv")
    splits = load("molecules/freesolv/scaffold", tmp_path, seed=1)
    values = {g.smiles: float(g.y) for _, view in splits for g in view.graphs}
    assert values["CN(C)C(=O)c1ccc(cc1)OC"] == pytest.approx(-11.01)  # the first line of the file
    assert sum(len(view) for _, view in splits) == 642
    assert (splits.target_names, splits.units, splits.class_names) == (("expt",), ("kcal/mol",), ())
    assert splits.train.target.is_floating_point()
    # scaffolds and sizes are not parted; the rarest and the largest are tested on
    assert splits.domains["train"].max() < splits.domains["ood_test"].min()
    by_size = load("molecules/freesolv/size", tmp_path, seed=1)
    sizes = [g.num_nodes for g in by_size.ood_test.graphs]
    assert min(sizes) > max(g.num_nodes for g in by_size.train.graphs)
    assert by_size.domains["ood_test"].tolist() == sizes
