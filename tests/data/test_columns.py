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
    "name", ["smiles", "SMILES", "Canonical SMILES", "isomeric-smiles", "Drug_smiles"]
)
def test_smiles_are_found_by_name(name, written):
    found = find_columns(written(f"{name},y,key,n"), targets=["y"])
    assert found == (name, ("y",), ("key", "n"))


def test_smiles_that_are_named_win(written):
    path = written("smiles,y,Other,n")
    assert find_columns(path, "OTHER", ["y"])[0] == "Other"
    with pytest.raises(InputError):
        find_columns(path, "mol", ["y"])


def test_where_smiles_are_is_not_guessed(written):
    for header in ("N,y", "isomeric_smiles,canonical_smiles", "structure,y"):
        with pytest.raises(InputError) as error:
            find_columns(written(header, "P,1\nN,2\n"))
        assert header.split(",")[1] in error.value.do


def test_smiles_are_found_by_content(written):
    body = "".join(f"K-{i},{'C' * (i + 2)}O,{i / 7},lab {i % 3}\n" for i in range(30))
    found = find_columns(written("Compound,Struktur,logD,Site", body + "K-30,none,2,lab 1\n"))
    assert found == ("Struktur", ("logD",), ("Compound",))
    twice = "".join(f"{'C' * (i + 2)}O,{'C' * (i + 2)}N,{i / 7}\n" for i in range(9))
    with pytest.raises(InputError) as error:
        find_columns(written("acid,base,y", twice))
    assert error.value.got == "acid, base"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("CPD-0,CCO,-2.27\nCPD-1,CCCO,1.5\nCPD-2,CCCCO,2.5\n", "'CCO'"),
        ("key,y\nLFQSCWFLJHTTHZ-UHFFFAOYSA-N,1.5\nAAAAAAAAAAAAAA-UHFFFAOYSA-N,2.5\n", "InChIKey"),
        ("smiles,y\nCCO,3\nCCN,3.0\nCCC,\n", "3.0 in every row"),
        ("smiles,y\n" + "".join(f"CCO,{i}.5 nM\n" for i in range(30)), "'0.5 nM', a number"),
    ],
)
def test_mistakes_in_a_table_are_named(text, named, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        find_columns(path)
    assert named in str(error.value)


def test_the_target_is_the_only_column_it_can_be(written):
    path = written("smiles,y,key,id", "CCO,1.5,M-1,1\nCCC,,M-2,2\nCCN,-1,M-3,3\n")
    assert find_columns(path)[1] == ("y",)  # numbers that only count rows are none
    with pytest.raises(InputError) as error:
        find_columns(written("smiles,a,b", "CCO,1.5,2\nCCC,2.5,5\n"))
    assert "--target a;" in error.value.do


@pytest.mark.parametrize(
    "name", ["CID", "Compound ID", "row", "Unnamed: 0", "Batch", "Plate", "year", "Set"]
)
def test_numbers_that_are_kept_and_not_measured_are_no_target(name, written):
    path = written(f"smiles,{name},logS", "CCO,3,1.5\nCCC,9,2.5\nCCN,5,-1\n")
    assert find_columns(path)[1] == ("logS",)


@pytest.mark.parametrize("name", ["y", "Label", "activity class", "Outcome", "isActive"])
def test_words_are_a_target_where_their_name_says_so(name, written):
    assert find_columns(written(f"smiles,key,{name},Batch", WORDS))[1] == (name,)


@pytest.mark.parametrize("name", ["Batch", "grade", "label batch", "class_id", "Laboratory"])
def test_other_words_are_no_target_unless_they_are_named(name, written):
    path = written(f"smiles,key,{name},plate", WORDS)
    with pytest.raises(InputError):
        find_columns(path)
    assert find_columns(path, targets=[name])[1] == (name,)


def test_several_targets_are_typed_as_the_error_says(written):
    body = "CCO,7,1,0,,1\nCCC,9,0,1,1,0\nCCN,5,0,1,1,\n"
    path = written("smiles,CID,NR-AR,NR-ER,SR-p53,SR-ATAD5 [uM]", body)
    with pytest.raises(InputError) as error:
        find_columns(path)
    wanted = ("NR-AR", "NR-ER", "SR-p53", "SR-ATAD5 [uM]")
    assert ", ".join(wanted) in error.value.got
    assert find_columns(path, targets=["NR-*", "SR-*"])[1] == wanted
    assert find_columns(path, targets=["SR-ATAD5", "SR-?*"])[1] == (wanted[3], wanted[2])
    assert find_columns(path, targets=["*"], others=["CID"])[1] == wanted


@pytest.mark.parametrize(
    ("header", "body", "options"),
    [
        ("smiles,key,activity,MW", WORDS, {}),  # numbers and words are not weighed
        ("smiles,NR-AR,b", "CCO,1,0\nCCC,0,1\n", {"targets": ["XR-*"]}),
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
    body = "A;CCO;0,5\nB;CCC;-1,25\n"
    assert find_columns(written("Compound;smiles;logS", body))[1] == ("logS",)
    with pytest.raises(InputError) as error:
        find_columns(written("Compound|smiles|logS", body.replace(";", "|").replace("0,5", "7.5")))
    assert "'-1,25'" in error.value.got


@pytest.mark.parametrize(
    ("column", "name", "unit"),
    [
        ("logS [log(mol/L)]", "logS", "log(mol/L)"),
        ("IC50 [nM (10 %)]", "IC50", "nM (10 %)"),
        ("f(x) [m]", "f(x)", "m"),
        ("share [0, 1)", "share [0, 1)", ""),
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
        with pytest.warns(UserWarning, match="Latin-1"):
            found = find_columns(path)
    except InputError:
        return
    smiles, targets, ids = found
    assert {smiles, *targets, *ids} <= set(read_table(path).names)
    assert smiles not in targets
