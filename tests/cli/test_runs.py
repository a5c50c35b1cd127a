"""`gduq train`, `calibrate`, `evaluate`, `report` and `predict` on a run of a dataset."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import gduq
from gduq.bundle import load_reference
from gduq.calibration import GATS, CaGCN, VectorScaling
from gduq.data import save
from gduq.evaluation import corrupted_predictions
from gduq.runs.folder import RunFolder
from tests.cli.cases import CLASSES, anchored, bundle, refused, rings, run

NAME = "cbas/color/concept"
OPTIONS = ("--method", "paper", "--epochs", "10", "--set", "model.conv=gcn",
           "--set", "model.hidden_channels=8", "--set", "training.lr=0.02",
           "--set", "resamples=10", "--set", "calibrators=[]")  # fmt: skip
COPIES = "vector+corrupted"
OWN = "smiles,logS\nCCO,-0.2\nc1ccccc1,-1.9\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDUQ_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def trained(root):
    result = run("train", NAME, *OPTIONS, "--root", root / "runs", "--json")
    return Path(json.loads(result.stdout)["run"])


@pytest.fixture(scope="module")
def splits(root):
    return gduq.data.load(NAME)


@pytest.fixture
def node_file(splits, tmp_path):
    graph = splits.train.graphs[0]
    x = graph.x if graph.x.layout == torch.strided else graph.x.to_dense()
    bare = type(graph)(x=x, edge_index=graph.edge_index)
    return bare, save([bare], tmp_path / "g.safetensors")


# -- train -----------------------------------------------------------------------------------------


def test_asked_again_nothing_is_repeated(root, trained, tmp_path):
    stamp = (trained / "finished").stat().st_mtime_ns
    assert str(trained) in run("train", NAME, *OPTIONS, "--root", root / "runs").stdout
    config = tmp_path / "run.toml"
    config.write_text(
        f'resamples = 10\ncalibrators = []\n[data]\nname = "{NAME}"\n[model]\nconv = "gcn"\n'
        'hidden_channels = 8\n[method]\nkind = "paper"\n'
        "[training]\nepochs = 77\nlr = 0.02\n"
    )
    words = ("train", config, "--epochs", "10", "--root", root / "runs", "--json")
    assert json.loads(run(*words).stdout)["run"] == str(trained)
    assert (trained / "finished").stat().st_mtime_ns == stamp


def test_a_run_is_trained_again_with_one_change(trained, tmp_path):
    words = ("train", trained, "--root", tmp_path, "--epochs", 1, "--json")
    again = Path(json.loads(run(*words).stdout)["run"])
    before, after = (json.loads((f / "config.json").read_text()) for f in (trained, again))
    assert after["training"].pop("epochs") == 1
    before["training"].pop("epochs")
    assert before == after


# -- calibrate and evaluate ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [GATS, pytest.param(CaGCN, marks=pytest.mark.slow)])
def test_graph_calibrators_are_fitted_kept_and_answer(trained, splits, node_file, tmp_path, kind):
    name, path = kind.__name__.lower(), tmp_path / "bundle"
    rows = json.loads(run("calibrate", trained, "--method", name, "-o", path, "--json").stdout)
    (row,) = (r for r in rows if (r["calibrator"], r["split"]) == (name, "ood_test"))
    model, calibrator = gduq.load(path)
    graph = splits.train.graphs[0].clone()
    p = gduq.predict(model, graph)
    options = {"train_rows": splits.train.rows} if kind is GATS else {}
    q = calibrator.on(graph, **options)(p, rows=splits.ood_test.rows)
    assert gduq.metrics.nll(q) == pytest.approx(row["nll"], rel=1e-5)
    assert row["nll"] != pytest.approx(gduq.metrics.nll(p[splits.ood_test.rows]), rel=1e-5)
    bare, file = node_file
    run("predict", path, file, "-o", tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    q = calibrator.on(bare)(gduq.predict(model, bare))
    written = [json.loads(line)["confidence"] for line in lines]
    assert written == pytest.approx(q.confidence.tolist(), abs=1e-5)


def test_corrupted_copies_from_the_command_line(trained, splits, tmp_path):
    words = ("calibrate", trained, "--method", COPIES, "-o", tmp_path / "bundle", "--json")
    assert {row["calibrator"] for row in json.loads(run(*words).stdout)} == {"none", COPIES}
    model, calibrator = gduq.load(tmp_path / "bundle")
    p = RunFolder(trained).predictions()["id_val"]
    copies = corrupted_predictions(model, splits.id_val)
    expected = VectorScaling().fit(p, corrupted=copies).state()["weight"]
    torch.testing.assert_close(calibrator.state()["weight"], expected)
    known = load_reference(tmp_path / "bundle")  # the labelled rows stay with it
    assert len(known) == len(load_reference(trained / "bundle")) > 0


def test_evaluate_shows_and_writes(trained, tmp_path):
    shown = run("evaluate", trained).stdout
    assert shown.split()[0] == "split"
    assert max(map(len, shown.splitlines())) < 120
    run("evaluate", trained, "--subgroups", "-o", tmp_path / "e.json")
    again = gduq.Evaluation.from_json(tmp_path / "e.json")
    assert again.value("id_test", "accuracy").value >= 0
    groups = again.table[again.table.kind == "subgroups"]
    assert {v.split(":")[0] for v in groups.variant} >= {"degree"}


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
    assert {("ood_test", "vector", "metrics"), ("ood_test", "none", "ood")} <= found
    mistakes = [
        (),
        ("--data", files["id_test"], "--method", "vector"),
        ("--data", "motif/basis/covariate"),
        ("--data", files["id_test"], "--data", "nowhere"),
        ("--data", files["id_test"], "--data", files["id_test"]),
        ("--data", save(rings(3, label=False), tmp_path / "u.safetensors")),
    ]
    for arguments in mistakes:
        refused("evaluate", model, *arguments)
    refused("calibrate", model)


def test_predict_with_a_run_has_thresholds(trained, node_file, tmp_path):
    graph, path = node_file
    run("predict", trained, path, "-o", tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == graph.num_nodes
    assert {"node", "conformal_set", "ood_rank", "abstain"} <= set(rows[0])


def test_mistakes_are_one_sentence(trained, tmp_path):
    for words in [
        ("calibrate", trained, "--method", "vectro"),
        ("calibrate", trained, "--method", "gats", "--method", "vector", "-o", tmp_path / "b"),
        ("calibrate", tmp_path / "nowhere"),
        ("evaluate", tmp_path / "nowhere"),
        ("evaluate", trained, "--data", tmp_path / "nope.csv"),
        ("evaluate", trained, "-o", tmp_path / "e.html"),
        ("report", tmp_path / "nowhere", "-o", tmp_path / "r.html"),
        ("report", tmp_path, "-o", tmp_path / "r.html"),
        ("report", trained, "-o", tmp_path / "no" / "r.html"),
    ]:
        refused(*words)
    assert list(tmp_path.iterdir()) == []


# -- no command replaces a file without --force ----------------------------------------------------


def commands(trained, folder):
    """Each command with a file it can write, which stands last."""
    new = save(rings(20, seed=1), folder / "new.safetensors", CLASSES)
    model = bundle(folder / "model")
    yield "predict", model, new, "-o", folder / "o.csv"
    yield "predict", model, new, "-o", folder / "p.csv", "--rejects", folder / "r.csv"
    yield "export", model, "--like", new, "-o", folder / "m.pt2"
    yield "report", trained, "-o", folder / "r.html"
    yield "evaluate", trained, "-o", folder / "e.json"
    yield "calibrate", trained, "--method", "vector", "-o", folder / "calibrated"


def test_a_file_that_is_there_stays(trained, tmp_path):
    for words in commands(trained, tmp_path):
        output = words[-1]
        output.write_text(OWN)
        assert output.name in refused(*words)
        assert output.read_text() == OWN, words
        output.unlink()


def test_force_replaces_files_but_no_links_or_folders(tmp_path):
    model, new = bundle(tmp_path / "model"), save(rings(20), tmp_path / "new.safetensors")
    words = ("predict", model, new, "--force", "-o")
    (tmp_path / "mine.csv").write_text(OWN)
    for name, target in (("link.csv", "mine.csv"), ("nowhere.csv", "gone.csv")):
        (tmp_path / name).symlink_to(tmp_path / target)
        refused(*words, tmp_path / name)
    (tmp_path / "folder.csv").mkdir()
    refused(*words, tmp_path / "folder.csv")
    assert (tmp_path / "mine.csv").read_text() == OWN
    run(*words, tmp_path / "mine.csv")
    assert (tmp_path / "mine.csv").read_text() != OWN


def test_training_data_is_never_an_output(trained, tmp_path):
    """Not even with --force; but the report in the run folder is its own."""
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "report.html").touch()
    run("report", tmp_path / "run", "-o", tmp_path / "run" / "report.html")
    (tmp_path / "mine.csv").write_text(OWN)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["data"]["source"] = str(tmp_path / "mine.csv")
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    new = save(rings(3), tmp_path / "new.safetensors")
    refused("predict", tmp_path / "run", new, "-o", tmp_path / "mine.csv", "--force")
    assert (tmp_path / "mine.csv").read_text() == OWN
