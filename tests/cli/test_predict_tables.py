"""`gduq predict` for tables of molecules: answers that can be joined, for every kind of target."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

import gduq
from gduq.cli.request import Request
from gduq.data import save
from gduq.data.smiles import molecules
from gduq.errors import InputError
from gduq.serve.service import Service
from tests.cli.cases import refused, run
from tests.serve.cases import KINDS, SMILES, model

pytest.importorskip("rdkit")

TARGETS = {"classes": ["size"], "labels": ["big", "not tiny"], "values": ["size"]}


def table(path: Path, kind: str = "classes", copies: int = 1) -> Path:
    """Molecules with names, and the truth in columns of their own."""
    lines = ["name,Structure," + ",".join(TARGETS[kind])]
    for i, smiles in enumerate(SMILES * copies):
        atoms = molecules([smiles])[0].num_nodes
        truth = {
            "classes": "big" if atoms > 6 else "small",
            "labels": f"{int(atoms > 6)},{int(atoms > 3)}",
            "values": f"{atoms / 3.1:.3f}",
        }
        lines.append(f"compound {i},{smiles},{truth[kind]}")
    path.write_text("\n".join(lines) + "\n")
    return path


def bundle(folder: Path, kind: str = "classes", **notes: object) -> Path:
    names = ["small", "big"] if kind == "classes" else None
    known = {"smiles": "Structure", "targets": TARGETS[kind], "ids": ["name"], **notes}
    return gduq.save(model(kind), folder, class_names=names, preprocessing=known)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", KINDS)
def test_the_bundle_knows_the_columns(tmp_path, kind):
    saved, known = bundle(tmp_path / "m", kind), table(tmp_path / "known.csv", kind, 3)
    new, out = table(tmp_path / "new.csv", kind), tmp_path / "out.csv"
    result = run("predict", saved, new, "-o", out, "--calibration-data", known)
    rows = rows_of(out)
    assert [row["name"] for row in rows] == [f"compound {i}" for i in range(len(SMILES))]
    assert [row["smiles"] for row in rows] == SMILES
    names = list(rows[0])
    assert names[:5] == ["file", "row", "smiles", "name", "novelty"]
    p = gduq.predict(model(kind), molecules(SMILES))
    novelty = torch.tensor([float(row["novelty"]) for row in rows])
    torch.testing.assert_close(novelty, p.novelty, atol=1e-5, rtol=0)
    if kind == "values":
        assert "Units: size in nm" in result.stdout
        for low, high in (("low90", "high90"), ("conformal_low", "conformal_high")):
            assert all(float(row[low]) < float(row["mean"]) < float(row[high]) for row in rows)
    else:
        sets = [n for n in names if n.startswith("conformal_set")]
        assert sets == (["conformal_set"] if kind == "classes" else
                        ["conformal_set_big", "conformal_set_not tiny"])  # fmt: skip
        assert all(json.loads(row[n]) for row in rows for n in sets), "a set is never empty"


def test_columns_are_kept_under_names_that_are_free(tmp_path):
    new, out = tmp_path / "new.csv", tmp_path / "out.jsonl"
    new.write_text("smiles,label,row,note\nCCO,mine,7,=1+2\nbad,,,\nCCN,yours,8,\n")
    saved = gduq.save(model(), tmp_path / "m", class_names=["small", "big"])
    keep = ("--keep", "note", "--keep", "label", "--keep", "row", "--keep", "smiles")
    run("predict", saved, new, "-o", out, *keep, code=3)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert list(rows[0])[:6] == ["file", "row", "smiles", "note", "input_label", "input_row"]
    found = [(r["row"], r["smiles"], r["note"], r["input_label"], r["input_row"]) for r in rows]
    assert found == [(0, "CCO", "=1+2", "mine", "7"), (2, "CCN", "", "yours", "8")]


def test_no_text_becomes_a_formula(tmp_path):
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    new.write_text("smiles,=id\nCCO,=cmd|' /C calc'!A0\nCCN,-5.3\nCCC,+x\nnone,@x\n")
    names = ["=cmd|' /C calc'!A0", "@big"]
    saved = gduq.save(model(), tmp_path / "m", class_names=names)
    run("predict", saved, new, "-o", out, "--keep", "=id", code=3)
    for path in (out, tmp_path / "out.csv.rejects.csv"):
        with path.open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert not [c for c in cells if c[:1] in ("=", "+", "@")], cells
    rows = rows_of(out)
    assert [row["'=id"] for row in rows] == ["'=cmd|' /C calc'!A0", "-5.3", "'+x"]
    assert {row["class"] for row in rows} <= {f"'{name}" for name in names}


def molecule_with_truth(smiles: str):
    [graph] = molecules([smiles])
    graph.y = torch.tensor([int(graph.num_nodes > 6)])
    return graph


def test_mistakes_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bundle(tmp_path / "m", "labels")
    table(tmp_path / "new.csv", "labels")
    (tmp_path / "bare.csv").write_text("id,dose\n1,2.5\n2,3.5\n")
    (tmp_path / "notes.csv").write_text("mine\n")
    (tmp_path / "other.csv").write_text("smiles\nCCO\n")
    (tmp_path / "sheet.xlsx").touch()
    before = sorted(tmp_path.iterdir())
    for words in (
        "predict m sheet.xlsx -o out.csv", "predict m new.csv -o new.csv",
        "predict m bare.csv -o out.csv", "predict m new.csv other.csv -o out.csv",
        "evaluate m --data new.csv --target nothing", "evaluate m --data new.csv --target b*",
        *(f"predict m new.csv -o out.csv {options}" for options in (
            "--rejects new.csv", "--rejects notes.csv", "--force --rejects notes.csv",
            "--keep nme", "--smiles nothing", "--calibration-data new.csv --target big",
        )),
    ):  # fmt: skip
        refused(*words.split())
    assert sorted(tmp_path.iterdir()) == before


def test_a_pattern_names_the_labels(tmp_path):
    saved, known = bundle(tmp_path / "m", "labels"), tmp_path / "known.csv"
    known.write_text(table(tmp_path / "t.csv", "labels", 3).read_text().replace("tiny", "tiny?"))
    said = run("evaluate", saved, "--data", known, "--target", "big", "--target", "n*t*?", "--json")
    assert {row["variant"] for row in json.loads(said.stdout)["table"]} >= {"", "big"}
    short = save([molecule_with_truth(s) for s in SMILES], tmp_path / "short.safetensors")
    refused("evaluate", saved, "--data", short)


def test_class_numbers_stay_where_a_labelled_file_has_few_of_them(tmp_path):
    """A file with class 4 only is not about class 0: the model's classes have numbers, no names."""
    net = gduq.nn.GNN(9, 8, 6, num_layers=2).eval()
    path, saved = tmp_path / "known.csv", gduq.save(net, tmp_path / "m")
    path.write_text("smiles,y\nCCO,4\nCCC,4\n")
    p, _ = Request(saved, target=["y"]).labelled(Service(net), path)
    assert p.target.tolist() == [4, 4]
    with pytest.raises(InputError):  # nothing says which column holds the labels
        Request(saved).labelled(Service(net), path)


@pytest.mark.parametrize("notes", [{"ids": [3]}, {"smiles": ["x"]}, {"smiles": 1}])
def test_notes_of_a_bundle_that_make_no_sense_are_passed_over(tmp_path, notes):
    new = tmp_path / "new.csv"
    new.write_text("smiles\nCCO\n")
    out = tmp_path / "out.csv"
    run("predict", bundle(tmp_path / "m", **notes), new, "-o", out)
    assert len(rows_of(out)) == 1
