"""`gduq data`: list, prepare, describe, convert; one sentence and code 2 for a mistake."""

import json
import subprocess
import sys

import pytest
import torch
from torch_geometric.data import Data

from gduq.data import names, save
from tests.cli.cases import refused, run


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
    table = run("data", "list").output
    rows = json.loads(run("data", "list", "--json").output)
    assert [row["name"] for row in rows] == list(names())
    for row in rows:
        assert row["name"] in table
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


@pytest.mark.parametrize("by", ["size", "degree", "feature"])
def test_describe_ones_own_file(graphs, by):
    extra = ("--attribute", "price") if by == "feature" else ()
    rows = json.loads(run("data", "describe", graphs, "--by", by, *extra, "--json").output)
    (row,) = [r for r in rows if (r["split"], r["quantity"]) == ("ood_test", "domain")]
    assert row["distance"] == 1.0


def test_json_has_no_infinities(tmp_path):
    equal = [Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, 0).long(), y=0) for n in [3] * 30]
    more = [Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, 0).long(), y=0) for n in (5, 6, 7)]
    path = save(equal + more, tmp_path / "graphs.safetensors")
    output = run("data", "describe", path, "--json").output
    rows = json.loads(output, parse_constant=lambda name: pytest.fail(name))
    assert "inf" in {row["shift"] for row in rows}


def test_convert_a_table(tmp_path):
    pytest.importorskip("rdkit")
    table = tmp_path / "molecules.csv"
    lines = ["smiles,active"] + ["CCO,1", "c1ccccc1,0"] * 10 + ["not a molecule,1"]
    table.write_text("\n".join(lines) + "\n")
    target = tmp_path / "molecules.safetensors"
    result = run("data", "convert", table, target, "--target", "active", code=3)
    assert "20 graphs written" in result.output
    assert "1 row left out" in result.stderr
    assert target.exists()
    again = run("data", "convert", table, target, "--target", "active", code=2)
    assert "exists" in again.stderr
    options = ("--target", "active", "--force", "--json")
    done = run("data", "convert", table, target, *options, code=3)
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
        (("--by", "colour"), "--by from size, degree"),
        (("--by", "time"), "--attribute NAME"),
        (("--by", "time", "--attribute", "weight"), "an attribute 'weight'"),
        (("--by", "time", "--attribute", "x"), "one 'x' per graph"),
        (("--by", "group", "--attribute", "price", "--test", "x"), "test groups"),
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


def test_describe_by_group_time_and_class(graphs):
    assert sizes(graphs, "--by", "time", "--attribute", "price")["ood_test"] == 8
    assert sizes(graphs, "--by", "class", "--test", 0)["ood_test"] == 10
    assert "1" in run("data", "describe", graphs, "--by", "class").output.splitlines()[0]
    group = ("--by", "group", "--attribute", "price")
    left_out = sizes(graphs, *group, "--test", "3.0", "--test", "4.0")
    assert (left_out["ood_val"], left_out["ood_test"]) == (1, 1)


def test_target_columns_are_named(tmp_path):
    pytest.importorskip("rdkit", reason="needs the molecules extra")
    table, out = tmp_path / "mols.csv", tmp_path / "mols.safetensors"
    rows = "".join(f"{'C' * n},{n % 2}\n" for n in range(1, 31))
    table.write_text("smiles,toxic\n" + rows)
    run("data", "convert", table, out, "--target", "toxic")
    assert "label" in run("data", "describe", out).output
    assert "label" in run("data", "describe", table, "--target", "toxic").output
