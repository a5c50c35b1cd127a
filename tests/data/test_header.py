"""Which columns of a table are what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gduq.data.header import find_columns, read_header
from gduq.errors import InputError

BODY = "CCO,1.5,M-1,7\nc1ccccc1O,2.5,M-2,9\nCCN,-1,M-3,8\n"


def written(tmp_path, header, body=BODY, name="t.csv"):
    path = tmp_path / name
    path.write_text(f"{header}\n{body}")
    return path


@pytest.mark.parametrize(
    "name", ["smiles", "SMILES", "Canonical SMILES", "isomeric-smiles", "Drug_smiles", "structure"]
)
def test_smiles_are_found_by_name_or_content(name, tmp_path):
    found = find_columns(written(tmp_path, f"{name},y,key,n"), targets=["y"])
    assert found.smiles == name
    assert found.ids == ("key", "n")


def test_smiles_that_are_named_win(tmp_path):
    path = written(tmp_path, "smiles,y,Other,n")
    assert find_columns(path, "OTHER", ["y"]).smiles == "Other"
    with pytest.raises(InputError, match="one column 'mol'"):
        find_columns(path, "mol", ["y"])


def test_words_are_not_taken_for_molecules(tmp_path):
    with pytest.raises(InputError, match=r"one column of SMILES.*columns name, y.*--smiles"):
        find_columns(written(tmp_path, "name,y", "ethanol,1\nphenol,2\nNO,3\n"))
    two = written(tmp_path, "a,b,y", "CCO,CCCC,1.5\nCCN,CCCCC,2.5\nCCC,CCN,3\n")
    with pytest.raises(InputError, match="several: a, b"):
        find_columns(two)


def test_the_target_is_the_only_column_it_can_be(tmp_path):
    path = written(tmp_path, "smiles,y,key,id", "CCO,1.5,M-1,1\nCCC,,M-2,2\nCCN,-1,M-3,3\n")
    assert find_columns(path).targets == ("y",)  # numbers that only count rows are none
    words = written(tmp_path, "smiles,key,grade", "CCO,k1,high\nCCC,k2,low\nCCN,k3,high\n")
    assert find_columns(words).targets == ("grade",)
    with pytest.raises(InputError, match=r"2 columns that could be one.*a, b"):
        find_columns(written(tmp_path, "smiles,a,b", "CCO,1.5,2\nCCC,2.5,5\n"))
    with pytest.raises(InputError, match="no column that could be one"):
        find_columns(written(tmp_path, "smiles,key", "CCO,k1\nCCC,k1\n"))


def test_a_column_that_serves_the_cut_is_no_target(tmp_path):
    path = written(tmp_path, "smiles,y,year", "CCO,1.5,2001\nCCC,2.5,2005\n")
    assert find_columns(path, others=["year"]).targets == ("y",)


def test_units_need_not_be_typed(tmp_path):
    path = written(tmp_path, "smiles,logS [mol/L],key,n")
    assert find_columns(path, targets=["logS"]).targets == ("logS [mol/L]",)
    with pytest.raises(InputError, match=r"Did you mean 'logS \[mol/L\]'"):
        find_columns(path, targets=["logs"])
    with pytest.raises(InputError, match="other than the SMILES"):
        find_columns(path, targets=["smiles"])


def test_files_that_are_no_tables(tmp_path):
    for body, said in {"": "an empty file", "a,smiles\n": "rows of 2 fields"}.items():
        path = tmp_path / "t.csv"
        path.write_text(body)
        with pytest.raises(InputError, match=said):
            find_columns(path)
    with pytest.raises(InputError, match="something else"):
        read_header(tmp_path)
    path.write_text("x" * 200_000 + ",y\n1,2\n")
    with pytest.raises(InputError, match="column names"):
        read_header(path)


def test_separators(tmp_path):
    assert read_header(written(tmp_path, "smiles;y")) == (["smiles", "y"], ";")
    assert read_header(written(tmp_path, "smiles\ty", name="t.tsv")) == (["smiles", "y"], "\t")


FIELDS = st.text(st.sampled_from('ab,;"\n\r\t01.[]() CcN\x00\x1b\u20ac'), max_size=12)


@given(st.lists(st.lists(FIELDS, min_size=1, max_size=4).map(",".join), max_size=8))
def test_any_text_is_a_table_or_a_mistake(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("any") / "t.csv"
    path.write_bytes("\n".join(lines).encode() + b"\xff")
    try:
        found = find_columns(path)
    except InputError:
        return
    assert {found.smiles, *found.targets, *found.ids} <= set(read_header(path)[0])
    assert found.smiles not in found.targets
