"""`gduq train`, `calibrate`, `evaluate`, `report` and `predict` on a run: the whole road, once."""

import json

import pytest
import torch

import gduq
from gduq.bundle import load_reference
from gduq.data import save
from tests.cli.cases import CLASSES, anchored, bundle, refused, rings, run

OPTIONS = ("--data", "cbas/color/concept", "--method", "anchored", "--recipe", "paper",
           "--epochs", "2", "--set", "model.conv=gcn", "--set", "model.hidden_channels=8",
           "--set", "resamples=20")  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDUQ_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def trained(root):
    result = run("train", *OPTIONS, "--root", root, "--json")
    return root / json.loads(result.stdout)["hash"]


def test_train_says_where_and_how_well(root, trained):
    text = run("train", *OPTIONS, "--root", root).stdout  # found again, not repeated
    assert str(trained) in text
    assert "ood_test" in text
    assert "balanced_accuracy" in text
    assert len(list(root.glob("*/finished"))) == 1


def test_a_config_file_with_options_on_top(root, trained, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(
        'resamples = 20\n[data]\nname = "cbas/color/concept"\n[model]\nconv = "gcn"\n'
        'hidden_channels = 8\n[method]\nkind = "anchored"\nrecipe = "paper"\n'
        "[training]\nepochs = 77\n"
    )
    result = run("train", config, "--set", "training.epochs=2", "--root", root, "--json")
    assert json.loads(result.stdout)["hash"] == trained.name


def test_calibrate_without_training(trained, tmp_path):
    words = ("calibrate", trained, "--method", "vector", "-o", tmp_path / "bundle", "--json")
    assert {row["calibrator"] for row in json.loads(run(*words).stdout)} == {"none", "vector"}
    _, calibrator = gduq.load(tmp_path / "bundle")
    assert type(calibrator).__name__ == "VectorScaling"
    known = load_reference(tmp_path / "bundle")  # the labelled rows stay with it
    assert len(known) == len(load_reference(trained / "bundle")) > 0
    assert "temperature" in run("calibrate", trained).stdout


def test_a_run_is_trained_again_with_one_change(trained, tmp_path):
    words = ("train", trained, "--root", tmp_path, "--set", "training.weight_decay=0.01", "--json")
    again = tmp_path / json.loads(run(*words).stdout)["hash"]
    before, after = (json.loads((f / "config.json").read_text()) for f in (trained, again))
    assert after["training"].pop("weight_decay") == 0.01
    before["training"].pop("weight_decay")
    assert before == after
    (tmp_path / "no-run").mkdir()
    (tmp_path / "no-run" / "config.json").write_text("[1]")
    assert "which is no config" in run("train", tmp_path / "no-run", code=2).output


def test_evaluate_shows_and_writes(trained, tmp_path):
    shown = run("evaluate", trained).stdout
    assert shown.splitlines()[0].split()[:3] == ["split", "calibrator", "accuracy"]
    assert max(map(len, shown.splitlines())) < 120
    run("evaluate", trained, "-o", tmp_path / "e.md")
    assert "## Metrics" in (tmp_path / "e.md").read_text()
    found = json.loads(run("evaluate", trained, "--json").stdout)
    assert {row["split"] for row in found["table"]} >= {"id_test", "ood_test"}
    run("evaluate", trained, "-o", tmp_path / "e.json")
    again = gduq.Evaluation.from_json(tmp_path / "e.json")
    assert again.value("id_test", "accuracy").value >= 0


def test_evaluate_a_bundle_on_files(tmp_path):
    cal = gduq.calibration.TemperatureScaling().fit(gduq.predict(anchored(), rings(60, seed=2)))
    model = bundle(tmp_path / "model", cal)
    files = {s: save(rings(40, i), tmp_path / f"{s}.safetensors", CLASSES)
             for i, s in enumerate(("id_val", "id_test", "strange"))}  # fmt: skip
    one = json.loads(run("evaluate", model, "--data", files["id_test"], "--json").stdout)
    rows = {(r["split"], r["calibrator"], r["measure"]): r["value"] for r in one["table"]}
    p = gduq.predict(anchored(), rings(40, 1))
    assert rows["id_test", "none", "nll"] == pytest.approx(gduq.metrics.nll(p), rel=1e-5)
    assert rows["id_test", "temperature", "nll"] == pytest.approx(gduq.metrics.nll(cal(p)), 1e-5)
    named = [f"--data=id_val={files['id_val']}", f"--data=ood_test={files['strange']}"]
    two = json.loads(run("evaluate", model, *named, "--method", "vector", "--json").stdout)
    found = {(r["split"], r["calibrator"], r["kind"]) for r in two["table"]}
    assert ("ood_test", "vector", "metrics") in found
    assert ("ood_test", "none", "ood") in found
    mistakes = [
        ((), "gduq evaluate"),
        (("--data", files["id_test"], "--method", "vector"), "--data id_val=FILE"),
        (("--data", "motif/basis/covarite"), "Did you mean 'motif/basis/covariate'"),
        (("--data", files["id_test"], "--data", "nowhere"), "'nowhere'"),
        (("--data", files["id_test"], "--data", files["id_test"]), "--data split=FILE"),
        (("--data", save(rings(3, label=False), tmp_path / "u.safetensors")), "no labels"),
    ]
    for arguments, says in mistakes:
        refused("evaluate", model, *arguments, says=says)
    refused("calibrate", model, says="gduq predict --calibrator")


def test_evaluate_a_model_on_a_dataset(root, trained):
    result = run("evaluate", trained, "--data", "cbas/color/covariate", "--json")
    found = json.loads(result.stdout)
    assert {r["split"] for r in found["table"]} >= {"id_test", "ood_test"}
    again = json.loads(run("evaluate", trained, "--data", "cbas/color/concept", "--json").stdout)
    own = json.loads(run("evaluate", trained, "--json").stdout)
    assert value(again, "ood_test", "nll") == pytest.approx(value(own, "ood_test", "nll"))
    assert value(found, "ood_test", "nll") != value(own, "ood_test", "nll")


def test_evaluate_adds_the_encodings_a_network_reads(tmp_path):
    made = run("train", "--data", "cbas/color/concept", "--set", "model.positional=laplacian",
               "--set", "model.conv=gcn", "--set", "model.hidden_channels=8",
               "--set", "training.epochs=2", "--root", tmp_path, "--json")  # fmt: skip
    path = tmp_path / json.loads(made.stdout)["hash"]
    again = json.loads(run("evaluate", path, "--data", "cbas/color/concept", "--json").stdout)
    own = json.loads(run("evaluate", path, "--json").stdout)
    assert value(again, "ood_test", "nll") == pytest.approx(value(own, "ood_test", "nll"))


def value(found, split, measure):
    (row,) = (r for r in found["table"] if r["kind"] == "metrics" and r["calibrator"] == "none"
              and (r["split"], r["measure"]) == (split, measure))  # fmt: skip
    return row["value"]


def test_predict_with_a_run_has_thresholds(root, trained, tmp_path):
    splits = gduq.data.load("cbas/color/concept")
    graph = splits.id_test.graphs[0].clone()
    bare = type(graph)(x=graph.x, edge_index=graph.edge_index)
    if bare.x.layout != torch.strided:
        bare.x = bare.x.to_dense()
    path, out = save([bare], tmp_path / "g.safetensors"), tmp_path / "out.jsonl"
    run("predict", trained, path, "-o", out, "--calibrator", "temperature")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == graph.num_nodes
    assert {"node", "conformal_set", "ood_rank", "abstain"} <= set(rows[0])
    run("predict", trained, path, "-o", out, "--force", "--ood-score", "knn")
    scores = [json.loads(line)["ood_score"] for line in out.read_text().splitlines()]
    assert scores != [row["ood_score"] for row in rows]


def test_mistakes_are_one_sentence(trained, tmp_path):
    nowhere = tmp_path / "nowhere"
    cases = [
        (("train", tmp_path / "no.toml"), "a TOML file"),
        (("train", "--data", "cbas/colour/concept"), "Did you mean 'cbas/color/concept'"),
        (("train", *OPTIONS, "--set", "epochs"), "--set key=value"),
        (("train", *OPTIONS, "--set", "training.epochs=-3"), "training.epochs"),
        (("calibrate", trained, "--method", "splin"), "Did you mean 'spline'"),
        (("calibrate", tmp_path), "the folder of a run"),
        (("calibrate", nowhere), "the folder of a run, or a file, got"),
        (("evaluate", nowhere), "which does not exist"),
        (("evaluate", trained, "--data", tmp_path / "nope.csv"), "which does not exist"),
        (("evaluate", trained, "-o", tmp_path / "e.html"), ".json, .md"),
        (("report", nowhere, "-o", tmp_path / "r.html"), "does not exist"),
        (("report", tmp_path, "-o", tmp_path / "r.html"), "has no finished run"),
        (("report", trained, "-o", tmp_path / "r.docx"), ".html, .json"),
        (("report", trained, "-o", tmp_path / "no" / "r.html"), "can be written"),
    ]
    for arguments, says in cases:
        refused(*arguments, says=says)
