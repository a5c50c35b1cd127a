"""A table of molecules: targets of every kind, and every bad row found with its line."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from gduq.data.rejects import Reject
from gduq.data.table import Table
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
    return [item for _, item in Table(path, **options)]  # type: ignore[arg-type]


@needs_rdkit
def test_molecules_are_those_of_pyg(tmp_path: Path) -> None:
    from torch_geometric.utils import from_smiles

    path = table(tmp_path, "smiles,y\nCCO,0\nc1ccccc1,1\n")
    for got, smiles in zip(items(path, targets=["y"]), ("CCO", "c1ccccc1"), strict=True):
        assert isinstance(got, Data)
        expected = from_smiles(smiles)
        assert torch.equal(got.x, expected.x.float())
        assert torch.equal(got.edge_index, expected.edge_index)
        assert torch.equal(got.edge_attr, expected.edge_attr.float())
        assert got.smiles == smiles


@needs_rdkit
@pytest.mark.parametrize(
    ("column", "values", "dtype", "class_names"),
    [
        (["0", "1", "1"], [0, 1, 1], torch.int64, ()),
        (["0.0", "1.0", "2"], [0, 1, 2], torch.int64, ()),
        (["0.5", "1", "2"], [0.5, 1.0, 2.0], torch.float32, ()),
        (["1", "-1", "+1.0"], [1, 0, 1], torch.int64, ("-1", "1")),
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
    found = Table(table(tmp_path, "smiles,y\n" + rows), targets=["y"])
    graphs = [item for _, item in found if isinstance(item, Data)]
    assert [g.y.item() for g in graphs] == values
    assert {g.y.dtype for g in graphs} == {dtype}
    assert {tuple(g.y.shape) for g in graphs} == {(1,)}
    assert found.class_names == class_names


@needs_rdkit
def test_several_targets_may_be_empty(tmp_path: Path) -> None:
    (graph,) = items(table(tmp_path, "a,smiles,b\n1.5,C,\n"), targets=["a", "b"])
    assert isinstance(graph, Data)
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
    found = Table(table(tmp_path, "smiles\nC\n"), class_names=["no", "yes"])
    assert found.class_names == ("no", "yes")
    assert all("y" not in item for _, item in found if isinstance(item, Data))


@needs_rdkit
def test_class_names_of_the_training_set(tmp_path: Path) -> None:
    path = table(tmp_path, "smiles,y\nC,1\nC,-1\nC,3\n")
    first, second, third = items(path, targets=["y"], class_names=["-1", "1"])
    assert isinstance(first, Data)
    assert isinstance(second, Data)
    assert (first.y.item(), second.y.item()) == (1, 0)
    assert isinstance(third, Reject)
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
        8: "'many', no finite number",
        9: "'inf', no finite number",
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
        ("mol,y\nC,1\n", {}, r"one column 'smiles' in .*mols.csv, got the columns mol, y"),
        ("smiles,y\nC,1\n", {"targets": ["z"]}, r"one column 'z' .* got the columns smiles, y"),
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
    with pytest.raises(InputError, match=r'pip install "gduq\[molecules\]"'):
        Table(table(tmp_path, "smiles\nC\n"))


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
@pytest.mark.parametrize(
    ("broken", "header"),
    [
        ('"CCO,1', "smiles,y"),
        ('CCO,"1', "smiles,y"),
        ('CCO,1,"note', "smiles,y,note"),
        ('"CCO,1,note', "smiles,y,note"),
    ],
)
@pytest.mark.parametrize("later", ["", '"CO",0'])
def test_an_open_quote_costs_its_own_line_only(
    tmp_path: Path, broken: str, header: str, later: str
) -> None:
    rest = ",x" * (header.count(",") - 1)
    lines = [header, f"C,0{rest}", broken, f"CC,1{rest}", *([later + rest] if later else [])]
    path = table(tmp_path, "\n".join([*lines, f"CCC,0{rest}", f"CCCC,1{rest}", ""]))
    found = items(path, targets=["y"])
    rejects = [item for item in found if isinstance(item, Reject)]
    good = [item.smiles for item in found if isinstance(item, Data)]
    assert [(r.line, "not closed" in r.reason) for r in rejects] == [(3, True)]
    assert broken in rejects[0].reason
    assert good == ["C", "CC", *(["CO"] if later else []), "CCC", "CCCC"]


@needs_rdkit
def test_a_quoted_field_may_hold_line_breaks(tmp_path: Path) -> None:
    path = table(tmp_path, 'smiles,y,note\nC,0,"one\ntwo"\nCC,1,"x"\nC(,1,z\n')
    found = items(path, targets=["y"])
    assert [item.smiles for item in found[:2] if isinstance(item, Data)] == ["C", "CC"]
    assert isinstance(found[2], Reject)
    assert found[2].line == 5
