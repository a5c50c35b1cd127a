"""`gduq data`: list, prepare, describe, convert; one sentence and code 2 for a mistake."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from gduq.data import names, save
from tests.cli.cases import refused, run
from tests.cli.tables import table


@pytest.fixture
def graphs(tmp_path):
    """Forty paths of one to forty nodes."""
    path = tmp_path / "graphs.safetensors"
    out = []
    for n in range(1, 41):
        line = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
        edges = torch.cat([line, line.flip(0)], 1)
        out.append(Data(x=torch.ones(n, 2), edge_index=edges, y=n % 2, price=float(n)))
    return save(out, path)


def test_list_shows_every_name():
    shown = run("data", "list").output
    rows = json.loads(run("data", "list", "--json").output)
    assert [row["name"] for row in rows] == list(names())
    for row in rows:
        assert row["name"] in shown
        assert all(row[k] for k in ("size", "task", "domain", "shift", "source", "target"))


def test_prepare_builds_the_cache(tmp_path):
    text = run("data", "prepare", "cbas/color/covariate", "--root", tmp_path).output
    assert "train 420, id_val 70" in text
    assert len(list((tmp_path / "processed").glob("*.safetensors"))) == 1
    done = json.loads(
        run(
            *("data", "prepare", "cbas/color/concept", "--root", tmp_path),
            *("--json", "--limit", 70, "--seed", 3),
        ).output
    )
    assert done["splits"] == dict.fromkeys(
        ("train", "id_val", "id_test", "ood_val", "ood_test"), 14
    )


def test_describe_a_benchmark(tmp_path):
    picture = tmp_path / "moved.png"
    arguments = ("data", "describe", "cbas/color/covariate", "--root", tmp_path)
    text = run(*arguments, "--plot", picture).output
    assert "ood_test" in text
    assert "which moved most" in text
    assert picture.exists()
    rows = json.loads(run(*arguments, "--json").output)
    assert {row["split"] for row in rows} == {"id_val", "id_test", "ood_val", "ood_test"}
    assert {"degree", "label", "domain", "mean of x"} <= {row["quantity"] for row in rows}


@pytest.mark.parametrize("by", ["size", "time=price"])
def test_describe_ones_own_file(graphs, by):
    rows = json.loads(run("data", "describe", graphs, "--by", by, "--json").output)
    (row,) = [r for r in rows if (r["split"], r["quantity"]) == ("ood_test", "domain")]
    assert row["distance"] == 1.0


def test_json_has_no_infinities(tmp_path):
    nodes = [3] * 30 + [5, 6, 7]
    none = torch.zeros(2, 0).long()
    equal = [Data(x=torch.ones(n, 1), edge_index=none, y=i % 2) for i, n in enumerate(nodes)]
    path = save(equal, tmp_path / "graphs.safetensors")
    output = run("data", "describe", path, "--json").output
    rows = json.loads(output, parse_constant=lambda name: pytest.fail(name))
    assert "inf" in {row["shift"] for row in rows}


def test_convert_a_table(tmp_path):
    pytest.importorskip("rdkit")
    molecules = tmp_path / "molecules.csv"
    lines = ["smiles,active"] + ["CCO,1", "c1ccccc1,0"] * 10 + ["not a molecule,1"]
    molecules.write_text("\n".join(lines) + "\n")
    target = tmp_path / "molecules.safetensors"
    result = run("data", "convert", molecules, target, "--target", "active", code=3)
    assert "20 graphs written" in result.output
    assert "1 row left out" in result.stderr
    assert target.exists()
    again = run("data", "convert", molecules, target, "--target", "active", code=2)
    assert "exists" in again.stderr
    options = ("--target", "active", "--force", "--json")
    done = run("data", "convert", molecules, target, *options, code=3)
    assert json.loads(done.stdout)["graphs"] == 20


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("prepare", "motif/basis/covarate"), "Did you mean 'motif/basis/covariate'"),
        (("prepare", "cbas/color/covariate", "--limit", "9999"), "a limit from 5"),
        (("describe", "no/such/thing"), "the name of a dataset"),
        (("convert", "nowhere", "out.safetensors"), "does not exist"),
        (("convert", "nowhere", "out.pt"), "ends in .safetensors"),
    ],
)
def test_a_mistake_is_one_sentence_and_code_two(tmp_path, arguments, says):
    root = () if arguments[0] == "convert" else ("--root", tmp_path)
    assert refused("data", *arguments, *root, says=says).startswith("Error: ")


def test_other_mistakes_on_own_data(graphs):
    for options, says in (
        (("--by", "colour"), "--by scaffold, size"),
        (("--by", "time"), "--by time=COLUMN"),
        (("--by", "time=weight"), "an attribute 'weight'"),
        (("--by", "time=x"), "one 'x' per graph"),
    ):
        refused("data", "describe", graphs, *options, says=says)
    run("data", "describe", code=2)  # usage: an argument is missing


def test_the_installed_command_answers_without_a_traceback(tmp_path):
    code = "import sys; sys.argv[0] = 'gduq'; from gduq.cli import main; main()"
    command = [sys.executable, "-c", code, "data", "prepare", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: expected the name of a dataset")
    assert "Traceback" not in done.stderr


def sizes(*arguments):
    text = run("data", "describe", *arguments).output.splitlines()[1]
    return {name: int(n) for name, n in (part.split() for part in text.split(", "))}


def test_describe_limits_own_data(graphs):
    assert sum(sizes(graphs).values()) == 40
    assert sum(sizes(graphs, "--limit", 17).values()) == 17


@pytest.mark.parametrize(
    "by", [None, "size", "scaffold", "group=lab", "time=measured on", "random"]
)
def test_describe_shows_the_cut_that_train_makes(by, tmp_path):
    pytest.importorskip("rdkit", reason="needs the molecules extra")
    path = table(tmp_path / "t.csv", "values")
    asked = () if by is None else ("--by", by)
    small = ("--set", "model.hidden_channels=4", "--set", "model.num_layers=1")
    quick = ("--method", "vanilla", "--epochs", 1, "-o", tmp_path / "runs", *small)
    done = json.loads(run("train", path, *asked, *quick, "--json", code=3).stdout)
    rows = json.loads((Path(done["run"]) / "info.json").read_text())["rows"]
    assert sizes(path, *asked) == rows


def test_target_columns_are_named(tmp_path):
    pytest.importorskip("rdkit", reason="needs the molecules extra")
    path, out = tmp_path / "mols.csv", tmp_path / "mols.safetensors"
    rows = "".join(f"{'C' * n},{n % 2}\n" for n in range(1, 31))
    path.write_text("smiles,toxic\n" + rows)
    run("data", "convert", path, out, "--target", "toxic")
    assert "label" in run("data", "describe", out, "--by", "size").output
    assert "label" in run("data", "describe", path, "--target", "toxic", "--by", "size").output
