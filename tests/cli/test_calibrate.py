"""`gduq calibrate` and `evaluate` on a run of a node task: graph methods, corrupted copies."""

import json

import pytest
import torch

import gduq
from gduq.calibration import GATS, CaGCN, VectorScaling
from gduq.data import save
from gduq.evaluation import corrupted_predictions, evaluate
from gduq.runs.folder import RunFolder
from tests.cli.cases import refused, run

OPTIONS = ("--data", "cbas/color/concept", "--method", "anchored", "--at", "1",
           "--epochs", "30", "--set", "training.lr=0.02", "--set", "model.conv=gcn",
           "--set", "model.hidden_channels=8",
           "--set", "resamples=20", "--set", "calibrators=[]")  # fmt: skip
COPIES = "vector+corrupted"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDUQ_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def trained(root):
    return root / json.loads(run("train", *OPTIONS, "--root", root, "--json").stdout)["hash"]


@pytest.fixture(scope="module")
def splits(root):
    return gduq.data.load("cbas/color/concept")


@pytest.mark.parametrize("kind", [CaGCN, GATS])
def test_graph_calibrators_are_fitted_measured_and_kept(trained, splits, tmp_path, kind):
    name, bundle = kind.__name__.lower(), tmp_path / "bundle"
    rows = json.loads(run("calibrate", trained, "--method", name, "-o", bundle, "--json").stdout)
    (row,) = (r for r in rows if (r["calibrator"], r["split"]) == (name, "ood_test"))
    model, calibrator = gduq.load(bundle)
    assert type(calibrator) is kind
    graph = splits.train.graphs[0].clone()
    p = gduq.predict(model, graph)
    options = {"train_rows": splits.train.rows} if kind is GATS else {}
    q = calibrator.on(graph, **options)(p, rows=splits.ood_test.rows)
    assert gduq.metrics.nll(q) == pytest.approx(row["nll"], rel=1e-5)
    assert row["nll"] != pytest.approx(gduq.metrics.nll(p[splits.ood_test.rows]), rel=1e-5)


def test_a_graph_calibrator_serves_new_graphs(trained, splits, tmp_path):
    bundle, out = tmp_path / "bundle", tmp_path / "out.jsonl"
    run("calibrate", trained, "--method", "gats", "-o", bundle)
    graph = splits.train.graphs[0]
    bare = type(graph)(x=graph.x, edge_index=graph.edge_index)
    if bare.x.layout != torch.strided:
        bare.x = bare.x.to_dense()
    run("predict", bundle, save([bare], tmp_path / "g.safetensors"), "-o", out)
    written = [json.loads(line)["confidence"] for line in out.read_text().splitlines()]
    model, calibrator = gduq.load(bundle)
    q = calibrator.on(bare)(gduq.predict(model, bare))
    assert written == pytest.approx(q.confidence.tolist(), abs=1e-5)


def test_corrupted_copies_from_the_command_line(trained, splits, tmp_path):
    bundle = tmp_path / "bundle"
    options = ("--method", "vector", "--corrupted")
    text = run("calibrate", trained, *options, "-o", bundle, "--json").stdout
    assert {row["calibrator"] for row in json.loads(text)} == {"none", COPIES}
    model, calibrator = gduq.load(bundle)
    p = RunFolder(trained).predictions()["id_val"]
    copies = corrupted_predictions(model, splits.id_val)
    expected = VectorScaling(missing="keep").fit(p, corrupted=copies).state()["weight"]
    torch.testing.assert_close(calibrator.state()["weight"], expected)
    alone = VectorScaling(missing="keep").fit(p).state()["weight"]
    assert not torch.allclose(expected, alone)


def test_evaluate_fits_what_is_asked_for(trained, splits):
    options = ("--method", "vector", "--method", "cagcn", "--corrupted", "--json")
    found = gduq.Evaluation.from_json(run("evaluate", trained, *options).stdout)
    model, _ = gduq.load(trained / "bundle")
    expected = evaluate(model, splits, ["cagcn", COPIES], resamples=20)
    for name in ("cagcn", COPIES):  # thresholds too: no row serves a calibrator and a threshold
        for measure, variant in (("nll", ""), ("set_size", "lac"), ("error", "threshold")):
            where = ("ood_test", measure, name, variant)
            assert found.value(*where).value == pytest.approx(expected.value(*where).value)


def test_subgroups_when_asked_for(trained):
    found = gduq.Evaluation.from_json(run("evaluate", trained, "--subgroups", "--json").stdout)
    groups = found.table[found.table.kind == "subgroups"]
    assert {v.split(":")[0] for v in groups.variant} >= {"degree"}
    assert "## Subgroups" not in run("evaluate", trained).stdout


def test_copies_of_graph_tasks(root):
    made = run("train", "--data", "motif/basis/covariate", "--set", "data.limit=100",
               "--method", "anchored", "--recipe", "paper", "--epochs", "1",
               "--set", "model.hidden_channels=8", "--set", "model.num_layers=2",
               "--set", "resamples=5", "--root", root, "--json")  # fmt: skip
    folder = root / json.loads(made.stdout)["hash"]
    found = run("evaluate", folder, "--method", "vector", "--corrupted", "--json")
    assert COPIES in {row["calibrator"] for row in json.loads(found.stdout)["table"]}
    grouped = run("evaluate", folder, "--subgroups", "--json")
    assert "size" in {row["variant"].split(":")[0] for row in json.loads(grouped.stdout)["table"]}
    refused("calibrate", folder, "--method", "gats", says="a node task on one graph")


def test_mistakes_are_one_sentence(trained, tmp_path):
    cases = [
        (("calibrate", trained, "--method", "foo"), "There are temperature, "),
        (("calibrate", trained, "--method", "vectro"), "Did you mean 'vector'"),
        (("evaluate", trained, "--corrupted"), "with --method"),
        (("evaluate", trained, "--data", __file__, "--subgroups"), "--subgroups with a run"),
        (("calibrate", trained, "--method", "gats", "--method", "vector", "-o", tmp_path / "b"),
         "one --method"),
        (("calibrate", trained, "--method", "t2", "-o", tmp_path / "b"), "a calibrator to save"),
    ]  # fmt: skip
    for arguments, says in cases:
        refused(*arguments, says=says)
