"""A table of molecules: targets of every kind, and every bad row found with its line."""

from __future__ import annotations

import gzip
import io
import math
import sys

import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from gduq import shifts
from gduq.data import read, save, stream
from gduq.data.columns import find_columns
from gduq.data.outputs import Reject
from gduq.data.table import _standard_input, check_source, read_table
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
    return [item for _, item in stream(path, **options)]


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
    found = stream(table(fields), targets=["y"])
    graphs = [item for _, item in found]
    assert [g.y.item() for g in graphs] == values
    assert {g.y.dtype for g in graphs} == {dtype}
    assert {tuple(g.y.shape) for g in graphs} == {(1,)}
    assert found.class_names == class_names


@needs_rdkit
def test_several_targets_keep_their_gaps(table):
    path = table("smiles,a,b,c\nC,1,,0\nCC,0,NaN,\nCCC,,1,1\nCO,2,1,1\n")
    found = stream(path, targets=["a", "b", "c"], task="labels")
    rows = [item for _, item in found]
    assert isinstance(rows[3], Reject)
    assert "'2'" in rows[3].reason
    y = torch.cat([item.y for item in rows[:3]])
    nan = math.nan
    expected = torch.tensor([[1, nan, 0], [0, nan, nan], [nan, 1, 1]])
    assert torch.equal(y.nan_to_num(-1), expected.nan_to_num(-1))
    assert found.target_names == ("a", "b", "c")
    assert stream(path, targets=["b", "c"]).task == "labels"
    assert stream(path, targets=["a", "b"]).task == "values"  # because of the 2
    (one, *_) = items(path, targets=["b"], task="labels")
    assert one.y.shape == (1, 1)
    assert math.isnan(one.y)


@needs_rdkit
def test_many_whole_numbers_are_values_and_it_is_said(table):
    path = table([str(i) for i in range(21)])
    with pytest.warns(UserWarning, match="'y' holds 21"):
        assert stream(path, targets=["y"]).task == "values"
    assert truth(path, task="classes") == list(range(21))  # and no warning
    assert stream(path, targets=["y"], task="values").task == "values"


@needs_rdkit
def test_numbers_that_do_not_count_are_names_and_it_is_said(table):
    path = table(["5", "100.0", "3", "NA", "5"])
    with pytest.warns(UserWarning, match="'y' holds 3"):
        found = stream(path, targets=["y"])
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
def test_decimal_commas_are_read_where_nothing_else_is_a_comma(table):
    assert truth(table(["0,5", "-1,25", "3"])) == [0.5, -1.25, 3]
    assert truth(table("smiles\ty\nC\t1,234\nC\t0,5\n", "t.txt"))[1] == 0.5
    assert isinstance(truth(table(["0", "1"] * 10 + ["0,5"]))[-1], str)  # a slip
    for unclear in (["1,234", "12,345"], ["1,5", "2.5"], 'smiles,y\nC,"0,5"\nC,"1,5"\n'):
        for task in (None, "values"):
            with pytest.raises(InputError) as error:
                stream(table(unclear), targets=["y"], task=task)
            assert "'" in error.value.got


@needs_rdkit
def test_names_may_look_like_decimal_commas(table):
    assert truth(table(["0,5", "-1,25", "NA"]), task="classes")[:2] == [1, 0]


@needs_rdkit
@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("smiles,y\nC,\nC,\n", {}),
        ("smiles,y\nC,1\n", {"task": "regression"}),
        ("smiles,y\nC,1\n", {"task": "values", "class_names": ["a"]}),
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


@needs_rdkit
@pytest.mark.parametrize(
    ("field", "task"),
    [("0.5", "classes"), ("weak", "values"), ("0.3", "labels"), ("weak", "labels")],
)
def test_fields_that_are_not_of_the_task(table, field, task):
    (found,) = truth(table([field]), task=task)
    assert repr(field) in found


@needs_rdkit
def test_odd_fields_in_a_column_of_numbers_are_left_out_with_the_reason(table):
    odd = {">5": "censored", "<0.01": "censored", "3.1 nM": "unit", "1.2e400": "finite"}
    path = table([*odd, *(str(i / 7) for i in range(40))])
    assert find_columns(read_table(path))[1] == ("y",)
    for (field, reason), found in zip(odd.items(), truth(path), strict=False):
        assert repr(field) in found
        assert reason in found


@needs_rdkit
def test_spellings_of_a_class_are_one_class_and_it_is_said(table):
    path = table(["active", "Active", "active ", "inactive", "in active", "inactive"])
    with pytest.warns(UserWarning, match="'Active' as 'active', 'in active' as 'inactive'"):
        assert truth(path) == [0, 0, 0, 1, 1, 1]
    with pytest.warns(UserWarning, match="'Active'"):
        assert truth(table(["Active", "other"]), class_names=["no", "active"])[0] == 1


# -- the formats -----------------------------------------------------------------------------------

FRAME = pd.DataFrame({"smiles": ["CCO", "CCN"], "y": [0.5, 2.25], "lab": ["A, Kyöto", None]})


def csv_of(**options):
    return FRAME.to_csv(index=False, **options)


def sdf(frame):
    from rdkit import Chem

    for text, y, _ in frame.itertuples(index=False):
        block = Chem.MolToMolBlock(Chem.MolFromSmiles(text))
        yield f"{block}> <y>\n{y}\n\n> <SMILES>\nold\n\n$$$$\n"


FORMATS = {
    "t.CSV": lambda: csv_of().encode(),
    "t.txt": lambda: csv_of(sep="\t").encode(),
    "pipes.csv": lambda: csv_of(sep="|").encode(),
    "commas.csv": lambda: csv_of(sep=";", decimal=",").encode(),
    "excel.txt": lambda: csv_of(sep="\t", decimal=",").encode("utf-16"),
    "t.csv.gz": lambda: gzip.compress(csv_of().encode()),
    "t.jsonl": lambda: FRAME.to_json(orient="records", lines=True).encode(),
    "t.parquet": FRAME.to_parquet,
    "t.smi": lambda: b"smiles y\nCCO 0.5\n\nCCN 2.25\n",
    "t.sdf": lambda: "".join(sdf(FRAME)).encode(),
    "t.sdf.gz": lambda: gzip.compress("".join(sdf(FRAME)).encode()),
}


@needs_rdkit
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(FORMATS[name]())
    assert find_columns(read_table(path))[:2] == ("smiles", ("y",))
    assert truth(path) == [0.5, 2.25]
    assert [item.smiles for item in items(path)] == ["CCO", "CCN"]
    if "lab" in read_table(path).names:
        assert list(read_table(path).column("lab")) == ["A, Kyöto", ""]


@needs_rdkit
def test_latin_1_is_read_and_it_is_said(tmp_path):
    (tmp_path / "t.csv").write_bytes(csv_of(sep=";", decimal=",").encode("latin-1"))
    with pytest.warns(UserWarning, match="Latin-1"):
        assert truth(tmp_path / "t.csv") == [0.5, 2.25]
    assert read_table(tmp_path / "t.csv").column("lab")[0] == "A, Kyöto"


def test_smiles_without_names_and_standard_input(tmp_path, monkeypatch):
    path = tmp_path / "t.smi"
    path.write_text("CCO ethyl alcohol\nCCN\n")
    assert read_table(path).frame.to_numpy().tolist() == [["CCO", "ethyl alcohol"], ["CCN", ""]]
    monkeypatch.setenv("GDUQ_CACHE", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(csv_of(sep="|").encode())))
    _standard_input.cache_clear()
    assert read_table("-").names == ["smiles", "y", "lab"]
    assert check_source("-").parent == tmp_path  # where a run finds it again
    _standard_input.cache_clear()


@needs_rdkit
@pytest.mark.parametrize("name", ["t.parquet", "t.jsonl", "t.csv.gz"])
def test_damaged_files_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(FORMATS[name]()[:-9] + b"{")
    with pytest.raises(InputError):
        items(tmp_path / name, smiles="smiles")


# -- the rows --------------------------------------------------------------------------------------


@needs_rdkit
def test_no_target_and_tabs_and_blank_lines(table):
    path = table("\ufeffname\tSMILES\nmethane\tC\n\nethane\tCC\n", "mols.tsv")
    graphs = items(path, smiles="smiles")
    assert [g.num_nodes for g in graphs] == [1, 2]
    assert not any("y" in g for g in graphs)
    # as when a trained model, which knows its classes, meets molecules without labels
    assert stream(path, class_names=["no", "yes"]).class_names == ("no", "yes")


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
        b"CC,0,good\n"
    )
    found = items(path, targets=["y"])
    bad = {item.line: item.reason for item in found if isinstance(item, Reject)}
    parts = {3: "SMILES", 6: "SMILES", 7: "'y'", 8: "'many'", 9: "'inf'", 10: "2"}
    assert bad.keys() == parts.keys()
    assert all(part in bad[line] for line, part in parts.items())
    assert sum(isinstance(item, Data) for item in found) == 3
    assert list(read_table(path).column("note")[[0, 2]]) == ["good", "two\nlines"]


def test_without_rdkit(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(InputError):
        stream(table("smiles\nC\n"))


@pytest.mark.parametrize("broken", ['"CCO,1', 'CCO,"1'])
@pytest.mark.parametrize("later", ["CC,1", '"CO",0'])
def test_a_quote_that_is_not_closed_refuses_the_table(table, broken, later):
    with pytest.raises(InputError) as error:
        read_table(table("\n".join(["smiles,y", "C,0", broken, later, "CCC,0", ""])))
    assert "line 3" in str(error.value.got)


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
