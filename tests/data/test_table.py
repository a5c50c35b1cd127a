"""A table of molecules: targets of every kind, and every bad row found with its line."""

from __future__ import annotations

import math
import os
import sys

import pytest
import torch
from torch_geometric.data import Data

from gduq import shifts
from gduq.data import read, save
from gduq.data.outputs import Reject
from gduq.data.table import MoleculeTable, read_table
from gduq.errors import InputError

needs_rdkit = pytest.mark.usefixtures("_rdkit")


@pytest.fixture
def _rdkit():
    pytest.importorskip("rdkit", reason="needs the molecules extra")


@pytest.fixture
def table(tmp_path):
    """Writes a table, of the fields of a target column or of a whole text."""

    def write(text, name="mols.csv"):
        if isinstance(text, list):
            text = "smiles;y\n" + "".join(f"C;{field}\n" for field in text)
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def items(path, **options):
    return [item for _, item in MoleculeTable(path, **options)]


def truth(path, **options):
    """Per row its ``y``, or why there is none."""
    found = items(path, **{"targets": ["y"], **options})
    return [item.reason if isinstance(item, Reject) else item.y.item() for item in found]


# -- what the targets are --------------------------------------------------------------------------


@needs_rdkit
@pytest.mark.parametrize(
    ("fields", "values", "dtype", "class_names"),
    [
        (["0", "1", "1"], [0, 1, 1], torch.int64, ()),
        (["0.0", "1.0", "2"], [0, 1, 2], torch.int64, ()),
        (["0.5", "1", "2"], [0.5, 1.0, 2.0], torch.float32, ()),
        (["1", "-1", "+1.0"], [1, -1, 1], torch.int64, ()),
        ([str(i) for i in range(-11, 11)], list(range(-11, 11)), torch.float32, ()),
        (["weak", "strong", "weak"], [1, 0, 1], torch.int64, ("strong", "weak")),
    ],
)
def test_one_target(table, fields, values, dtype, class_names):
    found = MoleculeTable(table(fields), targets=["y"])
    graphs = [item for _, item in found]
    assert [g.y.item() for g in graphs] == values
    assert {g.y.dtype for g in graphs} == {dtype}
    assert {tuple(g.y.shape) for g in graphs} == {(1,)}
    assert found.class_names == class_names


@needs_rdkit
def test_several_targets_keep_their_gaps(table):
    path = table("smiles,a,b,c\nC,1,,0\nCC,0,NaN,\nCCC,,1,1\nCO,2,1,1\n")
    found = MoleculeTable(path, targets=["a", "b", "c"], task="labels")
    rows = [item for _, item in found]
    assert isinstance(rows[3], Reject)
    assert "'2'" in rows[3].reason
    y = torch.cat([item.y for item in rows[:3]])
    nan = math.nan
    expected = torch.tensor([[1, nan, 0], [0, nan, nan], [nan, 1, 1]])
    assert torch.equal(y.nan_to_num(-1), expected.nan_to_num(-1))
    assert found.target_names == ("a", "b", "c")
    assert MoleculeTable(path, targets=["b", "c"]).task == "labels"
    assert MoleculeTable(path, targets=["a", "b"]).task == "values"  # because of the 2
    (one, *_) = items(path, targets=["b"], task="labels")
    assert one.y.shape == (1, 1)
    assert math.isnan(one.y)


@needs_rdkit
def test_many_whole_numbers_are_values_and_it_is_said(table):
    path = table([str(i) for i in range(21)])
    with pytest.warns(UserWarning, match="'y' holds 21"):
        assert MoleculeTable(path, targets=["y"]).task == "values"
    assert truth(path, task="classes") == list(range(21))  # and no warning
    assert MoleculeTable(path, targets=["y"], task="values").task == "values"


@needs_rdkit
def test_numbers_that_do_not_count_are_names_and_it_is_said(table):
    path = table(["5", "100.0", "3", "NA", "5"])
    with pytest.warns(UserWarning, match="'y' holds 3"):
        found = MoleculeTable(path, targets=["y"])
    assert (found.task, found.class_names) == ("classes", ())
    assert [int(g.y) for _, g in found if isinstance(g, Data)] == [5, 100, 3, 5]
    test = table(["100", "7"], "test.csv")  # lacks classes, and has a strange one
    known, strange = truth(test, class_names=["3", "5", "100"])
    assert known == 2
    assert "'7'" in strange
    assert truth(test, class_names=()) == [100, 7]  # of a training set without names
    assert truth(table(["weak", "strong"]), class_names=()) == [1, 0]


@needs_rdkit
@pytest.mark.parametrize("gap", ["", "NA", "na", "NaN", "nan"])
def test_gaps_among_words_are_no_class(table, gap):
    assert truth(table(["weak", gap, "strong"])) == [1, "target 'y' is empty", 0]
    assert truth(table(["Na"]), class_names=["K", "Na"]) == [1]


@needs_rdkit
def test_numbers_say_nothing_about_named_classes(table):
    found = truth(table(["active", "0", "1.0", "inactive"]), class_names=["inactive", "active"])
    assert (found[0], found[3]) == (1, 0)
    assert isinstance(found[1], str)
    assert isinstance(found[2], str)
    found = truth(table(["0", "5", "-1", "+5.0"]), class_names=["5", "-1"])
    assert isinstance(found[0], str)  # names that are numbers are never class numbers
    assert found[1:] == [0, 1, 0]


@needs_rdkit
@pytest.mark.parametrize("task", [None, "values"])
@pytest.mark.parametrize("fields", [["0,5", "-1,25", "NA"], ["1", "2", "3", "1,5", "+2,5e3"]])
def test_decimal_commas_are_named(table, fields, task):
    with pytest.raises(InputError) as error:
        MoleculeTable(table(fields), targets=["y"], task=task)
    assert any(repr(field) in error.value.got for field in fields)
    if fields[0] == "0,5":  # names after all
        assert truth(table(fields), task="classes")[:2] == [1, 0]
    assert isinstance(truth(table(["0", "1"] * 10 + ["0,5"]))[-1], str)  # a slip


@needs_rdkit
@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("smiles,y\nC,\nC,\n", {}),
        ("smiles,y\nC,0.5\n", {"task": "classes"}),
        ("smiles,y\nC,weak\n", {"task": "values"}),
        ("smiles,y\nC,0.3\n", {"task": "labels"}),
        ("smiles,y\nC,1\n", {"task": "regression"}),
        ("smiles,y\nC,1\n", {"task": "values", "class_names": ["a"]}),
        ("smiles,y,z\nC,1,weak\n", {"targets": ["y", "z"]}),
        ("smiles,y,z\nC,1,1\n", {"targets": ["y", "z"], "task": "classes"}),
        ("smiles,y,z\nC,1,1\n", {"targets": ["y", "z"], "class_names": ["a"]}),
        ("smiles,y\n" + "".join(f"C,molecule {i}\n" for i in range(50)), {}),
        ("mol,y\nC,1\n", {}),
        ("smiles,y\nC,1\n", {"targets": ["z"]}),
        ("smiles,smiles,y\nC,C,1\n", {}),
        ("", {}),
    ],
)
def test_columns_that_cannot_be_what_they_should(table, text, options):
    with pytest.raises(InputError):
        items(table(text), **{"targets": ["y"], **options})


# -- the rows --------------------------------------------------------------------------------------


@needs_rdkit
def test_no_target_and_tabs_and_blank_lines(table):
    path = table("\ufeffname\tSMILES\nmethane\tC\n\nethane\tCC\n", "mols.tsv")
    graphs = items(path, smiles="smiles")
    assert [g.num_nodes for g in graphs] == [1, 2]
    assert not any("y" in g for g in graphs)
    # as when a trained model, which knows its classes, meets molecules without labels
    assert MoleculeTable(path, class_names=["no", "yes"]).class_names == ("no", "yes")


@needs_rdkit
def test_bad_rows_have_a_line_and_a_reason(tmp_path):
    path = tmp_path / "mols.csv"
    path.write_bytes(
        b"smiles,y,note\n"
        b"CCO,1,good\n"
        b"C1CC,1,ring\n"  # line 3: a ring that is not closed
        b'C,1,"two\nlines"\n'  # lines 4 and 5
        b",1,empty\n"  # line 6
        b"C,,no target\n"  # line 7
        b"C,many,no number\n"  # line 8
        b"C,inf,not finite\n"  # line 9
        b"C,1\n"  # line 10: a field short
        b"C,1,caf\xe9\n"  # line 11: Latin-1
        b"CC,0,good\n"
    )
    found = items(path, targets=["y"])
    bad = {item.line: item.reason for item in found if isinstance(item, Reject)}
    parts = {3: "SMILES", 6: "SMILES", 7: "'y'", 8: "'many'", 9: "'inf'", 10: "2", 11: "UTF-8"}
    assert bad.keys() == parts.keys()
    assert all(part in bad[line] for line, part in parts.items())
    assert sum(isinstance(item, Data) for item in found) == 3
    assert list(read_table(path).column("note")[[0, 2]]) == ["good", "two\nlines"]


def test_without_rdkit(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(InputError):
        MoleculeTable(table("smiles\nC\n"))


@pytest.mark.parametrize("broken", ['"CCO,1', 'CCO,"1'])
@pytest.mark.parametrize("later", ["CC,1", '"CO",0'])
def test_a_quote_that_is_not_closed_refuses_the_table(table, broken, later):
    with pytest.raises(InputError) as error:
        read_table(table("\n".join(["smiles,y", "C,0", broken, later, "CCC,0", ""])))
    assert "line 3" in str(error.value.got)


@needs_rdkit
@pytest.mark.skipif("GDUQ_DATA" not in os.environ, reason="GDUQ_DATA is not set")
def test_real_tables():
    """BBBP is known for its eleven strings that RDKit refuses; FreeSolv is clean regression."""
    root = os.environ["GDUQ_DATA"] + "/MoleculeNet"
    bbbp = items(f"{root}/bbbp/raw/BBBP.csv", targets=["BBBP"])
    assert 0 < sum(isinstance(item, Reject) for item in bbbp) <= 15
    free = items(f"{root}/freesolv/raw/SAMPL.csv", targets=["expt"])
    assert len(free) == 642
    assert all(g.y.dtype == torch.float32 for g in free)


@needs_rdkit
def test_names_travel_to_splits_and_files(table, tmp_path):
    rows = "".join(f"{'C' * (1 + i)},{'weak' if i % 2 else 'strong'}\n" for i in range(30))
    graphs = read(table("smiles,power\n" + rows), targets=["power"])
    assert graphs.class_names == ("strong", "weak")
    splits = shifts.size(graphs[torch.arange(29)])
    assert splits.class_names == ("strong", "weak")
    assert splits.target_names == ("power",)
    again = read(save(graphs, tmp_path / "g.safetensors"))
    assert (again.class_names, again.target_names) == (("strong", "weak"), ("power",))
