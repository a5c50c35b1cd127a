"""Which columns of a table are what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gduq.data import columns
from gduq.data.columns import unit_of
from gduq.data.table import read_table
from gduq.errors import InputError


def find_columns(path, *arguments, **options):
    return columns.find_columns(read_table(path), *arguments, **options)


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
    with pytest.raises(InputError, match=r"2 columns that could be one \(a, b\).*--target a "):
        find_columns(written(tmp_path, "smiles,a,b", "CCO,1.5,2\nCCC,2.5,5\n"))
    with pytest.raises(InputError, match="no column that is clearly one"):
        find_columns(written(tmp_path, "smiles,key", "CCO,k1\nCCC,k1\n"))


WORDS = "CCO,k1,high,1\nCCC,k2,low,1\nCCN,k3,high,2\n"


@pytest.mark.parametrize("name", ["y", "Label", "activity class", "Outcome", "isActive"])
def test_words_are_a_target_where_their_name_says_so(name, tmp_path):
    assert find_columns(written(tmp_path, f"smiles,key,{name},Batch", WORDS)).targets == (name,)


@pytest.mark.parametrize("name", ["Batch", "grade", "label batch", "class_id", "Laboratory"])
def test_other_words_are_no_target_unless_they_are_named(name, tmp_path):
    path = written(tmp_path, f"smiles,key,{name},plate", WORDS)
    with pytest.raises(InputError, match=r"--target, the column of .* no column.*Columns: key"):
        find_columns(path)
    assert find_columns(path, targets=[name]).targets == (name,)


def test_a_column_of_numbers_and_one_of_words_are_not_weighed(tmp_path):
    with pytest.raises(InputError, match=r"2 columns that could be one \(activity, MW\)"):
        find_columns(written(tmp_path, "smiles,key,activity,MW", WORDS))


def test_several_targets_are_typed_as_the_error_says(tmp_path):
    names = "smiles,CID,NR-AR,NR-ER,SR-p53,SR-ATAD5 [uM]"
    body = "CCO,7,1,0,,1\nCCC,9,0,1,1,0\nCCN,5,0,1,1,\n"
    path = written(tmp_path, names, body)
    with pytest.raises(InputError) as error:
        find_columns(path)
    assert "4 columns that could be one (NR-AR, NR-ER, SR-p53, SR-ATAD5 [uM])" in str(error.value)
    wanted = ("NR-AR", "NR-ER", "SR-p53", "SR-ATAD5 [uM]")
    assert find_columns(path, targets=["NR-*", "SR-*"]).targets == wanted
    assert find_columns(path, targets=["SR-ATAD5", "SR-?*"]).targets == (wanted[3], wanted[2])
    assert find_columns(path, targets=["*"], others=["CID"]).targets == wanted
    with pytest.raises(InputError, match=r"columns like 'XR-\*' in .* got none"):
        find_columns(path, targets=["XR-*"])


def test_a_target_that_names_rows_is_refused(tmp_path):
    body = "".join(f"CCO,M-{i},{'high' if i % 2 else 'low'}\n" for i in range(30))
    with pytest.raises(InputError, match=r"'key' of .* 30 different texts in 30 rows"):
        find_columns(written(tmp_path, "smiles,key,grade", body), targets=["key"])


def test_a_target_that_cannot_be_what_is_asked_for(tmp_path):
    with pytest.raises(InputError, match=r"numbers in column 'grade' of .* words such as 'high'"):
        find_columns(written(tmp_path, "smiles,k,grade,b", WORDS), targets=["grade"], task="values")
    commas = written(tmp_path, "Compound;smiles;logS", "A;CCO;0,5\nB;CCC;-1,25\n")
    with pytest.raises(InputError, match="decimal commas such as '-1,25'"):
        find_columns(commas)


def test_a_column_that_serves_the_cut_is_no_target(tmp_path):
    path = written(tmp_path, "smiles,y,year", "CCO,1.5,2001\nCCC,2.5,2005\n")
    assert find_columns(path, others=["year"]).targets == ("y",)


def test_units_need_not_be_typed(tmp_path):
    path = written(tmp_path, "smiles,logS [mol/L],key,n")
    assert find_columns(path, targets=["logS"]).targets == ("logS [mol/L]",)
    for name in ("logs", "LOGS", "LogS"):
        with pytest.raises(InputError, match=r"Did you mean 'logS \[mol/L\]'"):
            find_columns(path, targets=[name])
    with pytest.raises(InputError, match="other than the SMILES"):
        find_columns(path, targets=["smiles"])


@pytest.mark.parametrize(
    ("column", "name", "unit"),
    [
        ("logS [log(mol/L)]", "logS", "log(mol/L)"),
        ("IC50 [nM (10 %)]", "IC50", "nM (10 %)"),
        ("Ki (nM [n=3])", "Ki", "nM [n=3]"),
        ("f(x) [m]", "f(x)", "m"),
        ("[log S]", "[log S]", ""),
        ("share [0, 1)", "share [0, 1)", ""),
        ("y ()", "y ()", ""),
        ("", "", ""),
    ],
)
def test_units_may_have_brackets_of_their_own(column, name, unit):
    assert unit_of(column) == (name, unit)


def test_files_that_are_no_tables(tmp_path):
    for body, said in {"": "column names", "a,smiles\n": "rows of 2 fields"}.items():
        path = tmp_path / "t.csv"
        path.write_text(body)
        with pytest.raises(InputError, match=said):
            find_columns(path)
    with pytest.raises(InputError, match="something else"):
        read_table(tmp_path)
    path.write_text("x" * 200_000 + ",y\n1,2\n")
    with pytest.raises(InputError, match="column names"):
        read_table(path)


FIELDS = st.text(st.sampled_from('ab,;"\n\r\t01.[]() CcN\x00\x1b\u20ac'), max_size=12)


@given(st.lists(st.lists(FIELDS, min_size=1, max_size=4).map(",".join), max_size=8))
def test_any_text_is_a_table_or_a_mistake(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("any") / "t.csv"
    path.write_bytes("\n".join(lines).encode() + b"\xff")
    try:
        found = find_columns(path)
    except InputError:
        return
    assert {found.smiles, *found.targets, *found.ids} <= set(read_table(path).names)
    assert found.smiles not in found.targets
