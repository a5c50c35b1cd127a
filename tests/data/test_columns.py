"""Which columns of a table are what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gduq.data import columns
from gduq.data.columns import unit_of
from gduq.data.table import read_table
from gduq.errors import InputError

BODY = "CCO,1.5,M-1,7\nc1ccccc1O,2.5,M-2,9\nCCN,-1,M-3,8\n"
WORDS = "CCO,k1,high,1\nCCC,k2,low,1\nCCN,k3,high,2\n"


def find_columns(path, *arguments, **options):
    return columns.find_columns(read_table(path), *arguments, **options)


@pytest.fixture
def written(tmp_path):
    def write(header, body=BODY):
        path = tmp_path / "t.csv"
        path.write_text(f"{header}\n{body}")
        return path

    return write


@pytest.mark.parametrize(
    "name", ["smiles", "SMILES", "Canonical SMILES", "isomeric-smiles", "Drug_smiles", "structure"]
)
def test_smiles_are_found_by_name_or_content(name, written):
    found = find_columns(written(f"{name},y,key,n"), targets=["y"])
    assert found.smiles == name
    assert found.ids == ("key", "n")


def test_smiles_that_are_named_win(written):
    path = written("smiles,y,Other,n")
    assert find_columns(path, "OTHER", ["y"]).smiles == "Other"
    with pytest.raises(InputError):
        find_columns(path, "mol", ["y"])


def test_words_are_not_taken_for_molecules(written):
    with pytest.raises(InputError):
        find_columns(written("name,y", "ethanol,1\nphenol,2\nNO,3\n"))
    with pytest.raises(InputError) as error:
        find_columns(written("a,b,y", "CCO,CCCC,1.5\nCCN,CCCCC,2.5\nCCC,CCN,3\n"))
    assert "a, b" in error.value.got


def test_the_target_is_the_only_column_it_can_be(written):
    path = written("smiles,y,key,id", "CCO,1.5,M-1,1\nCCC,,M-2,2\nCCN,-1,M-3,3\n")
    assert find_columns(path).targets == ("y",)  # numbers that only count rows are none
    with pytest.raises(InputError) as error:
        find_columns(written("smiles,a,b", "CCO,1.5,2\nCCC,2.5,5\n"))
    assert "--target a " in error.value.do


@pytest.mark.parametrize(
    "name", ["CID", "Compound ID", "row", "Unnamed: 0", "Batch", "Plate No", "year", "Set"]
)
def test_numbers_that_are_kept_and_not_measured_are_no_target(name, written):
    path = written(f"smiles,{name},logS", "CCO,3,1.5\nCCC,9,2.5\nCCN,5,-1\n")
    assert find_columns(path).targets == ("logS",)


@pytest.mark.parametrize("name", ["y", "Label", "activity class", "Outcome", "isActive"])
def test_words_are_a_target_where_their_name_says_so(name, written):
    assert find_columns(written(f"smiles,key,{name},Batch", WORDS)).targets == (name,)


@pytest.mark.parametrize("name", ["Batch", "grade", "label batch", "class_id", "Laboratory"])
def test_other_words_are_no_target_unless_they_are_named(name, written):
    path = written(f"smiles,key,{name},plate", WORDS)
    with pytest.raises(InputError):
        find_columns(path)
    assert find_columns(path, targets=[name]).targets == (name,)


def test_several_targets_are_typed_as_the_error_says(written):
    body = "CCO,7,1,0,,1\nCCC,9,0,1,1,0\nCCN,5,0,1,1,\n"
    path = written("smiles,CID,NR-AR,NR-ER,SR-p53,SR-ATAD5 [uM]", body)
    with pytest.raises(InputError) as error:
        find_columns(path)
    wanted = ("NR-AR", "NR-ER", "SR-p53", "SR-ATAD5 [uM]")
    assert ", ".join(wanted) in error.value.got
    assert find_columns(path, targets=["NR-*", "SR-*"]).targets == wanted
    assert find_columns(path, targets=["SR-ATAD5", "SR-?*"]).targets == (wanted[3], wanted[2])
    assert find_columns(path, targets=["*"], others=["CID"]).targets == wanted


@pytest.mark.parametrize(
    ("header", "body", "options"),
    [
        ("smiles,key,activity,MW", WORDS, {}),  # numbers and words are not weighed
        ("smiles,NR-AR,b", "CCO,1,0\nCCC,0,1\n", {"targets": ["XR-*"]}),
        ("smiles,k,grade,b", WORDS, {"targets": ["grade"], "task": "values"}),
        ("smiles,k,grade,b", WORDS, {"targets": ["smiles"]}),
        ("smiles,logS [mol/L],key,n", BODY, {"targets": ["logs"]}),
        ("smiles,key,grade", "".join(f"CCO,M-{i},low\n" for i in range(30)), {"targets": ["key"]}),
        ("smiles,key", "CCO,k1\nCCC,k1\n", {}),
        ("a,smiles", "", {}),
        ("x" * 200_000 + ",y", "1,2\n", {}),
    ],
)
def test_what_is_refused(header, body, options, written):
    with pytest.raises(InputError):
        find_columns(written(header, body), **options)


def test_decimal_commas_in_what_would_be_the_target(written):
    with pytest.raises(InputError) as error:
        find_columns(written("Compound;smiles;logS", "A;CCO;0,5\nB;CCC;-1,25\n"))
    assert "'-1,25'" in error.value.got


def test_a_column_that_serves_the_cut_is_no_target(written):
    path = written("smiles,y,year", "CCO,1.5,2001\nCCC,2.5,2005\n")
    assert find_columns(path, others=["year"]).targets == ("y",)


def test_units_need_not_be_typed(written):
    found = find_columns(written("smiles,logS [mol/L],key,n"), targets=["logS"])
    assert found.targets == ("logS [mol/L]",)


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
