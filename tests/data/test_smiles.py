"""SMILES become the graphs PyG makes; what keeps RDKit busy costs itself and nothing else."""

from __future__ import annotations

import subprocess

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.utils import from_smiles

from gduq.data.files import stream
from gduq.data.smiles import RDKitProcess, molecules

pytest.importorskip("rdkit")

SMILES = (
    "C", "CCO", "c1ccccc1O", "[Na+].[Cl-]", "F/C=C/F", "F/C=C\\F", "C[C@H](N)C(=O)O", "[2H]O",
    "C[C@@H](N)C(=O)O", "[O-][N+](=O)c1ccccc1", "N#N", "[CH3]", "CS(=O)(=O)N", "[Fe+2]", "C1CC1",
    "F[P-](F)(F)(F)(F)F", "c1ccc2c(c1)[nH]c1ccccc12", "C[Si](C)(C)C", "[C-]#[O+]", "BrC(Cl)(I)F",
)  # fmt: skip
# thousands of atoms, each bound to its neighbours and to one 37 places away
BUSY = "".join(f"C%{10 + i}" for i in range(37)) * 800


@pytest.fixture(scope="module")
def rdkit():
    found = RDKitProcess(seconds=0.5)
    yield found
    found.close()


def check_as_pyg(found: Data, smiles: str) -> None:
    expected = from_smiles(smiles)
    assert found.keys() == expected.keys()
    assert found.smiles == smiles
    for name in ("x", "edge_attr"):
        assert torch.equal(found[name], expected[name].float()), name
    assert torch.equal(found.edge_index, expected.edge_index)
    assert found.edge_index.dtype == torch.long


def test_graphs_are_those_of_pyg():
    for smiles, found in zip(SMILES, molecules(SMILES), strict=True):
        check_as_pyg(found, smiles)


@given(st.text(alphabet="CNOcn1234()[]=#@+-/\\.%HBrl ", max_size=40))
def test_any_text_becomes_the_graph_of_pyg_or_a_reason(text):
    (found,) = molecules([text])
    if isinstance(found, str):
        assert found
    else:
        check_as_pyg(found, text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("F/C=C\\(", "'F/C=C\\(' is no valid SMILES"),
        ("[C+20]", "20 is not in list"),
        ("C\ud800", "surrogates"),
        ("C\x00C", ""),
    ],
)
def test_bad_texts_have_a_reason_and_the_rest_is_read(text, reason):
    bad, good = molecules([text, "CCO"])
    assert isinstance(bad, str)
    assert reason in bad
    check_as_pyg(good, "CCO")


def test_a_text_that_keeps_rdkit_busy_ends_its_own_question_only(rdkit):
    one, late, behind = rdkit.read(["C", BUSY, "CC"])
    check_as_pyg(one, "C")
    assert late == "RDKit did not end within 0.5 seconds"
    assert "not read" in behind
    assert rdkit.read([]) == []
    check_as_pyg(rdkit.read(["CCC", "N"])[1], "N")


def test_a_process_that_was_killed_is_replaced(monkeypatch):
    started, start = [], subprocess.Popen

    def popen(*arguments, **options):
        started.append(start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    rdkit = RDKitProcess()
    assert rdkit.ask("scaffold", ["C"]) == [""]
    started[0].kill()
    started[0].wait()
    [found] = rdkit.read(["CCO"])
    rdkit.close()
    check_as_pyg(found, "CCO")
    assert [process.poll() is not None for process in started] == [True, True]


def test_who_is_interrupted_gets_no_answers_to_that_question_next(monkeypatch):
    rdkit = RDKitProcess()
    assert rdkit.ask("scaffold", ["C"]) == [""]
    with monkeypatch.context() as patch:
        patch.setattr("multiprocessing.connection.Connection.recv", interrupt)
        with pytest.raises(KeyboardInterrupt):
            rdkit.read(["CCO"])
    [found] = rdkit.read(["N"])
    rdkit.close()
    check_as_pyg(found, "N")


def interrupt(_):
    raise KeyboardInterrupt


def test_pictures(rdkit):
    assert rdkit.draw("CCO").count(b"<path") > 2
    for bad in ("nonsense", "C" * 201, BUSY):
        with pytest.raises(ValueError):  # noqa: PT011
            rdkit.draw(bad)


def test_a_table_with_such_a_text_is_read_to_its_end(rdkit, tmp_path, monkeypatch):
    monkeypatch.setattr("gduq.data.smiles._shared", lambda _: rdkit)
    path = tmp_path / "new.csv"
    path.write_text(f"smiles\nCCO\n{BUSY}\nCCC\n")
    one, bad, two = (item for _, item in stream(path))
    assert "did not end" in bad.reason
    assert bad.line == 3
    assert [one.smiles, two.smiles] == ["CCO", "CCC"]
