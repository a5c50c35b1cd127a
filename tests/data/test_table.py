"""A table of molecules: targets of every kind, and every bad row found with its line."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from gduq import shifts
from gduq.data import read, save
from gduq.data.outputs import Reject
from gduq.data.table import MoleculeTable
from gduq.errors import InputError

needs_rdkit = pytest.mark.usefixtures("_rdkit")


@pytest.fixture
def _rdkit() -> None:
    pytest.importorskip("rdkit", reason="needs the molecules extra")


def table(folder: Path, text: str, name: str = "mols.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def items(path: Path, **options: object) -> list[Data | Reject]:
    return [item for _, item in MoleculeTable(path, **options)]  # type: ignore[arg-type]


@needs_rdkit
@pytest.mark.parametrize(
    ("column", "values", "dtype", "class_names"),
    [
        (["0", "1", "1"], [0, 1, 1], torch.int64, ()),
        (["0.0", "1.0", "2"], [0, 1, 2], torch.int64, ()),
        (["0.5", "1", "2"], [0.5, 1.0, 2.0], torch.float32, ()),
        (["1", "-1", "+1.0"], [1, -1, 1], torch.int64, ()),
        (["3", "1", "3"], [3, 1, 3], torch.int64, ()),
        ([str(i) for i in range(-11, 11)], list(range(-11, 11)), torch.float32, ()),
        (["weak", "strong", "weak"], [1, 0, 1], torch.int64, ("strong", "weak")),
    ],
)
def test_one_target(
    tmp_path: Path,
    column: list[str],
    values: list[float],
    dtype: torch.dtype,
    class_names: tuple[str, ...],
) -> None:
    rows = "".join(f"C,{value}\n" for value in column)
    found = MoleculeTable(table(tmp_path, "smiles,y\n" + rows), targets=["y"])
    graphs = [item for _, item in found if isinstance(item, Data)]
    assert [g.y.item() for g in graphs] == values
    assert {g.y.dtype for g in graphs} == {dtype}
    assert {tuple(g.y.shape) for g in graphs} == {(1,)}
    assert found.class_names == class_names


@needs_rdkit
def test_several_targets_may_be_empty(tmp_path: Path) -> None:
    (graph,) = items(table(tmp_path, "a,smiles,b\n1.5,C,\n"), targets=["a", "b"])
    assert graph.y.shape == (1, 2)
    assert graph.y[0, 0] == 1.5
    assert math.isnan(graph.y[0, 1])


@needs_rdkit
def test_no_target_and_tabs_and_blank_lines(tmp_path: Path) -> None:
    path = table(tmp_path, "\ufeffname\tSMILES\nmethane\tC\n\nethane\tCC\n", "mols.tsv")
    graphs = items(path, smiles="SMILES")
    assert [g.num_nodes for g in graphs if isinstance(g, Data)] == [1, 2]
    assert all("y" not in g for g in graphs if isinstance(g, Data))


@needs_rdkit
def test_class_names_without_targets(tmp_path: Path) -> None:
    """As when a trained model, which knows its classes, meets molecules without labels."""
    found = MoleculeTable(table(tmp_path, "smiles\nC\n"), class_names=["no", "yes"])
    assert found.class_names == ("no", "yes")
    assert all("y" not in item for _, item in found if isinstance(item, Data))


@needs_rdkit
def test_class_names_of_the_training_set(tmp_path: Path) -> None:
    path = table(tmp_path, "smiles,y\nC,1\nC,-1\nC,3\n")
    first, second, third = items(path, targets=["y"], class_names=["-1", "1"])
    assert (first.y.item(), second.y.item()) == (1, 0)
    assert "none of the classes -1, 1" in third.reason


@needs_rdkit
def test_bad_rows_have_a_line_and_a_reason(tmp_path: Path) -> None:
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
    expected = {
        3: "no valid SMILES",
        6: "SMILES field is empty",
        7: "'y' is empty",
        8: "'many', no ",
        9: "'inf', no ",
        10: "2 fields instead of 3",
        11: "no UTF-8",
    }
    assert bad.keys() == expected.keys()
    assert all(part in bad[line] for line, part in expected.items())
    assert sum(isinstance(item, Data) for item in found) == 3


@needs_rdkit
@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("mol,y\nC,1\n", {}, r"one column 'smiles' in .*mols.csv, got none .* Columns: mol, y"),
        (
            "smiles,y\nC,1\n",
            {"targets": ["z"]},
            r"one column 'z' .* got none of that name. Columns: smiles, y",
        ),
        ("smiles,smiles\nC,C\n", {}, "got 2 of that name"),
        ("", {}, "column names"),
        (
            "smiles,y,z\nC,1,1\n",
            {"class_names": ["a"], "targets": ["y", "z"]},
            "one target column, got 2 columns",
        ),
    ],
)
def test_a_table_without_its_columns(
    tmp_path: Path, text: str, options: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        items(table(tmp_path, text), **options)


@needs_rdkit
def test_words_that_are_no_classes(tmp_path: Path) -> None:
    rows = "".join(f"C,molecule {i}\n" for i in range(1100))
    with pytest.raises(InputError, match="more than 1000 different words in 'y'"):
        items(table(tmp_path, "smiles,y\n" + rows), targets=["y"])


def test_without_rdkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(InputError, match="pip install rdkit"):
        MoleculeTable(table(tmp_path, "smiles\nC\n"))


@needs_rdkit
@pytest.mark.skipif("GDUQ_DATA" not in os.environ, reason="GDUQ_DATA is not set")
def test_real_tables() -> None:
    """BBBP is known for its eleven strings that RDKit refuses; FreeSolv is clean regression."""
    root = Path(os.environ["GDUQ_DATA"]) / "MoleculeNet"
    bbbp = items(root / "bbbp/raw/BBBP.csv", targets=["BBBP"])
    bad = [item for item in bbbp if isinstance(item, Reject)]
    assert 0 < len(bad) <= 15
    assert all("no valid SMILES" in item.reason for item in bad)
    free = items(root / "freesolv/raw/SAMPL.csv", targets=["expt"])
    assert len(free) == 642
    assert all(isinstance(g, Data) and g.y.dtype == torch.float32 for g in free)


@needs_rdkit
@pytest.mark.parametrize("broken", ['"CCO,1', 'CCO,"1'])
@pytest.mark.parametrize("later", ["CC,1", '"CO",0'])
def test_a_quote_that_is_not_closed_refuses_the_table(
    tmp_path: Path, broken: str, later: str
) -> None:
    path = table(tmp_path, "\n".join(["smiles,y", "C,0", broken, later, "CCC,0", ""]))
    with pytest.raises(InputError) as error:
        items(path, targets=["y"])
    assert "line 3" in str(error.value.got)


# -- what the targets are --------------------------------------------------------------------------


def column(folder: Path, fields: list[str]) -> Path:
    return table(folder, "smiles,y\n" + "".join(f"C,{field}\n" for field in fields))


@needs_rdkit
def test_many_whole_numbers_are_values_and_it_is_said(tmp_path: Path) -> None:
    path = column(tmp_path, [str(i) for i in range(21)])
    with pytest.warns(UserWarning, match=r"'y' holds 21 .* pass target=\"classes\""):
        found = MoleculeTable(path, targets=["y"])
    assert found.task == "values"
    assert all(item.y.is_floating_point() for _, item in found if isinstance(item, Data))
    classes = MoleculeTable(path, targets=["y"], task="classes")  # and no warning
    assert [int(item.y) for _, item in classes if isinstance(item, Data)] == list(range(21))
    assert MoleculeTable(path, targets=["y"], task="values").task == "values"


@needs_rdkit
def test_numbers_that_do_not_count_are_names_and_it_is_said(tmp_path: Path) -> None:
    path = column(tmp_path, ["5", "100.0", "3", "NA", "5"])
    said = r"'y' holds 3 different whole numbers from 3 to 100, taken as names .*--task values"
    with pytest.warns(UserWarning, match=said):
        found = MoleculeTable(path, targets=["y"])
    assert (found.task, found.class_names) == ("classes", ())
    graphs = [item for _, item in found]
    assert [int(g.y) for g in graphs if isinstance(g, Data)] == [5, 100, 3, 5]
    test = column(tmp_path, ["100", "7"])  # lacks classes, and has a strange one
    good, bad = items(test, targets=["y"], class_names=["3", "5", "100"])
    assert int(good.y) == 2
    assert isinstance(bad, Reject)
    numbered = items(test, targets=["y"], class_names=())  # of a training set without names
    assert [int(g.y) for g in numbered if isinstance(g, Data)] == [100, 7]
    assert MoleculeTable(path, targets=["y"], task="values").task == "values"  # and no warning
    words = items(column(tmp_path, ["weak", "strong"]), targets=["y"], class_names=())
    assert [int(g.y) for g in words if isinstance(g, Data)] == [1, 0]


@needs_rdkit
@pytest.mark.parametrize("gap", ["", "NA", "na", "NaN", "nan"])
def test_gaps_among_words_are_no_class(tmp_path: Path, gap: str) -> None:
    path = column(tmp_path, ["weak", gap, "strong"])
    found = MoleculeTable(path, targets=["y"])
    assert found.class_names == ("strong", "weak")
    rows = [item for _, item in found]
    assert rows[1].line == 3
    assert "target 'y' is empty" in rows[1].reason
    (sodium,) = items(column(tmp_path, ["Na"]), targets=["y"], class_names=["K", "Na"])
    assert int(sodium.y) == 1


@needs_rdkit
@pytest.mark.parametrize("task", [None, "values"])
@pytest.mark.parametrize("fields", [["0,5", "-1,25", "NA"], ["1", "2", "3", "1,5", "+2,5e3"]])
def test_decimal_commas_are_named(tmp_path: Path, fields: list[str], task: str | None) -> None:
    path = table(tmp_path, "smiles;y\n" + "".join(f"C;{field}\n" for field in fields))
    said = r"decimal point in column 'y' of .*, got decimal commas such as '.*'. Write '.*\..*'"
    with pytest.raises(InputError, match=said):
        MoleculeTable(path, targets=["y"], task=task)  # type: ignore[arg-type]
    if fields[0] == "0,5":  # names after all
        assert MoleculeTable(path, targets=["y"], task="classes").class_names == ("-1,25", "0,5")
    slip = table(tmp_path, "smiles;y\n" + "C;0\nC;1\n" * 10 + "C;0,5\n")
    assert isinstance(items(slip, targets=["y"])[-1], Reject)


@needs_rdkit
def test_labels_keep_their_gaps(tmp_path: Path) -> None:
    path = table(tmp_path, "smiles,a,b,c\nC,1,,0\nCC,0,NaN,\nCCC,,1,1\nCO,2,1,1\n")
    found = MoleculeTable(path, targets=["a", "b", "c"], task="labels")
    rows = [item for _, item in found]
    assert "label 'a' is '2', neither 0 nor 1 nor empty" in rows[3].reason
    y = torch.cat([item.y for item in rows if isinstance(item, Data)])
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
def test_numbers_say_nothing_about_named_classes(tmp_path: Path) -> None:
    path = column(tmp_path, ["active", "0", "1.0", "inactive"])
    found = items(path, targets=["y"], class_names=["inactive", "active"])
    assert [int(i.y) if isinstance(i, Data) else i.reason for i in found] == [
        1,
        "target 'y' is '0', none of the classes inactive, active",
        "target 'y' is '1', none of the classes inactive, active",
        0,
    ]
    numbered = items(column(tmp_path, ["0", "5"]), targets=["y"], class_names=["5", "7"])
    assert isinstance(numbered[0], Reject)  # names that are numbers are never class numbers
    assert int(numbered[1].y) == 0


@needs_rdkit
@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("smiles,y\nC,\nC,\n", {}, "targets in 'y' of .* got empty fields in every row"),
        ("smiles,y\nC,0.5\n", {"task": "classes"}, r"got numbers with fractions. Pass --task val"),
        ("smiles,y\nC,weak\n", {"task": "values"}, "numbers in column 'y' of .*, got words such"),
        ("smiles,y\nC,0.3\n", {"task": "labels"}, "0 and 1 in column 'y' of .*, got 0.3"),
        ("smiles,y\nC,1\n", {"task": "regression"}, "a task from classes, labels, values"),
        ("smiles,y\nC,1\n", {"task": "values", "class_names": ["a"]}, "with task='classes'"),
        (
            "smiles,y,z\nC,1,weak\n",
            {"targets": ["y", "z"]},
            "every one of several target columns, got words such as 'weak' in 'z'",
        ),
        ("smiles,y,z\nC,1,1\n", {"targets": ["y", "z"], "task": "classes"}, "got 2 columns"),
    ],
)
def test_columns_that_cannot_be_what_they_should(
    tmp_path: Path, text: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        items(table(tmp_path, text), **{"targets": ["y"], **options})


@needs_rdkit
def test_names_travel_to_splits_and_files(tmp_path: Path) -> None:
    rows = "".join(f"{'C' * (1 + i)},{'weak' if i % 2 else 'strong'}\n" for i in range(30))
    graphs = read(table(tmp_path, "smiles,power\n" + rows), targets=["power"])
    assert graphs.class_names == ("strong", "weak")
    splits = shifts.size(graphs[torch.arange(29)])
    assert splits.class_names == ("strong", "weak")
    assert splits.target_names == ("power",)
    again = read(save(graphs, tmp_path / "g.safetensors"))
    assert (again.class_names, again.target_names) == (("strong", "weak"), ("power",))
