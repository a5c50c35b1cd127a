"""`gduq train FILE`: a user's own data becomes a model, a report and a verdict."""

import json

import pandas
import pytest

import gduq
from gduq.bundle import describe
from gduq.cli.train import next_commands
from gduq.data import save
from gduq.report.verdict import Advice, Verdict
from gduq.runs.folder import RunFolder
from tests.cli.cases import CLASSES, refused, rings, run
from tests.cli.tables import LABELS, TARGETS, table

pytestmark = [  # few rows and hardly any training, on purpose
    pytest.mark.filterwarnings("ignore:calibrated on"),
    pytest.mark.filterwarnings("ignore:the network explains nothing"),
]
TINY = ("--epochs", "2", "--set", "model.hidden_channels=8", "--set", "model.num_layers=2",
        "--set", "resamples=20")  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def train(path, root, *options, code=3):
    """Train a little; the tables have one row that is no molecule."""
    return run("train", path, *options, *TINY, "--root", root, code=code)


@pytest.mark.parametrize(
    "kind",
    ["values", "labels", *(pytest.param(k, marks=pytest.mark.slow) for k in ("rare", "words"))],
)
def test_a_table_becomes_a_model_a_report_and_a_verdict(kind, root):
    path = table(root / f"{kind}.csv", kind)
    before = path.read_bytes()
    result = train(path, root, *TARGETS[kind])
    (folder,) = root.glob(f"{kind}-choose-*")
    assert {"train", "id_val", "id_test", "ood_test"} <= set(result.stdout.split())
    assert f"gduq predict {folder} new.csv" in result.stdout
    assert result.stdout.count("-o answers.csv") == 1  # the commands work one after the other
    assert (folder / "report.html").stat().st_size > 10_000
    assert "'C1CC(' is no valid SMILES" in (folder / "rejects.csv").read_text()
    assert path.read_bytes() == before

    info = describe(folder / "bundle")
    assert info.preprocessing["smiles"] == "Structure SMILES"
    assert info.preprocessing["ids"] == ["compound"]
    model, _ = gduq.load(folder / "bundle")
    p = gduq.predict(model, gduq.data.smiles.molecules(["CCOc1ccccc1"]))
    assert p.kind == {"values": "values", "labels": "labels"}.get(kind, "classes")
    assert len(RunFolder(folder).predictions()["id_val"]) >= 10
    names = {"values": ["logS"], "words": ["binds", "no binding"], "labels": list(LABELS)}
    assert info.class_names == names.get(kind)
    if kind == "values":
        assert model.target.units == ("log mol/L",)
        assert -12 < p.mean.item() < 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["head", "paper", "thawed", "ensemble", "laplace"])
def test_methods_for_molecules(method, root):
    path = root / "methods.csv"
    if not path.is_file():
        table(path, "words", 60)
    train(path, root, "--target", "activity", "--method", method)
    (folder,) = root.glob(f"methods-{method}-*")
    p = RunFolder(folder).predictions()["ood_test"]
    assert p.num_samples > 1 or method == "laplace"  # which has its integral in closed form
    assert p.novelty is not None
    assert p.names == ("binds", "no binding")


def test_other_graphs_from_a_file_get_the_other_network(root, tmp_path):
    path = save(rings(80), tmp_path / "rings.safetensors", CLASSES)
    text = train(path, root, "--method", "plain", code=0).stdout
    assert "new.safetensors" in text
    (folder,) = root.glob("rings-*")
    info = describe(folder / "bundle")
    assert info.model["net"]["kind"] == "GNN"
    assert info.class_names == CLASSES


def test_names_of_classes_hold_for_other_files(root, tmp_path):
    """R2, R3: a file with one class only is judged by the names; numbers say nothing of them."""
    path = table(tmp_path / "named.csv", "words", 60)
    train(path, root, "--method", "plain")  # a column called activity is the target
    (folder,) = root.glob("named-*")
    rows = ["CCN", "CCOc1ccccc1", "CCCN"]
    file, numbers = tmp_path / "one.csv", tmp_path / "numbers.csv"
    file.write_text("smiles,y\n" + "".join(f"{smiles},no binding\n" for smiles in rows))
    told = run("evaluate", folder, "--data", file, "--target", "y", "--json").stdout
    (found,) = [r["value"] for r in json.loads(told)["table"] if r["measure"] == "nll"]
    model, _ = gduq.load(folder / "bundle")
    p = gduq.predict(model, gduq.data.smiles.molecules(rows))
    assert found == pytest.approx(-p.probs[:, 1].log().mean().item(), rel=1e-4)

    numbers.write_text("smiles,toxic\n" + "CCN,0\nCCOc1ccccc1,1\n" * 20)
    known = ("--calibration-data", numbers, "-o", tmp_path / "out.csv")
    for command in (("evaluate", folder, "--data", numbers), ("predict", folder, file, *known)):
        refused(*command, "--target", "toxic")


def test_a_file_that_changed_makes_another_run(root, tmp_path):
    path = table(tmp_path / "growing.csv", "values", 40)
    train(path, root, "--method", "plain", "--by", "random")
    (folder,) = root.glob("growing-*")
    with path.open("a") as file:
        file.write("M-new,CCCCCO,-2.0,a,2020-01-01\n")
    train(path, root, "--method", "plain", "--by", "random")
    assert len(list(root.glob("growing-*"))) == 2
    page = tmp_path / "report.html"
    run("report", folder, "-o", page)  # the old one goes without its data
    assert page.is_file()


MISTAKES = [
    "missing.csv", "several.csv", "nothing.csv", "two.csv", "commas.csv", "my.pickle", "my.pt",
    "nowhere", "broken.toml", "cbas/color/concepts", "cbas/color/concept --set epochs",
    *("my.csv " + options for options in (
        "--target log", "--target Nothing", "--target compound", "--target LogS", "--smiles x",
        "--by groups=lab", "--by group", "--by group=labs", "--by time=lab", "--method magic",
        "--task regression", "--target lab --task values", "--epochs 0",
        "--set training.epoch=3", "--set data.units=[\"a\",\"b\"]",
    )),
]  # fmt: skip


def test_mistakes_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "my.csv", "values", 20)
    table(tmp_path / "several.csv", "labels", 20)
    texts = {"my.pickle": "", "my.pt": "", "broken.toml": "[data"}
    texts["nothing.csv"] = "Compound ID,Batch,Structure\n" + "".join(
        f"A-{i},B{i % 7},{'C' * (1 + i % 5)}O\n" for i in range(40)
    )
    texts["two.csv"] = "smiles,y\nCCO,1.5\nCCN,0.5\n"
    texts["commas.csv"] = "Compound;smiles;logS\n" + "A;CCO;0,5\nB;CCN;-1,5\n" * 15
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    before = sorted(tmp_path.iterdir())
    for words in MISTAKES:
        refused("train", *words.split())
    assert sorted(tmp_path.iterdir()) == before


def test_a_dry_run_shows_the_cut_that_train_makes(root, tmp_path):
    path, words = table(tmp_path / "t.csv", "values"), ("--method", "plain", "--by", "group=lab")
    told = run("train", path, *words, *TINY, "-o", tmp_path / "r", "--dry-run", "--json").stdout
    plan = json.loads(told)
    assert not (tmp_path / "r").exists()
    done = json.loads(train(path, tmp_path / "r", *words, "--json").stdout)
    rows = RunFolder(done["run"]).info["rows"]
    assert {line.split()[0]: int(line.split()[1]) for line in plan["cut"]} == rows
    assert (plan["targets"], plan["units"], plan["task"]) == (["logS"], ["log mol/L"], "values")
    assert len(plan["rejected"]) == done["rejected"] == 1


def test_what_is_in_the_way_of_a_run_stays(tmp_path):
    from gduq.runs.config import RunConfig

    path = table(tmp_path / "my.csv", "values", 20)
    name = RunConfig(data={"source": str(path)}).folder_name
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("mine")
    refused("train", path, "--root", tmp_path)
    assert [file.name for file in (tmp_path / name).iterdir()] == ["thesis.txt"]


def test_the_list_of_rejects_is_there_before_training(tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("gduq.runs.run.train", stopped)
    path = table(tmp_path / "my.csv", "values", 40)
    train(path, tmp_path / "runs", "--method", "plain", code=130)
    (listed,) = (tmp_path / "runs").glob("my-*/rejects.csv")
    assert "'C1CC(' is no valid SMILES" in listed.read_text()


def test_what_to_type_next_works_in_that_order(root, tmp_path, monkeypatch):
    """The calibrated bundle takes the place of the run."""
    monkeypatch.chdir(tmp_path)
    path = table(tmp_path / "next.csv", "values", 60)
    train(path, root, "--method", "plain", "--by", "random")
    (folder,) = root.glob("next-*")
    calibrate = f"gduq calibrate {folder} --method deviation -o calibrated"
    advised = Verdict("", "care", (), "", Advice("calibrate", "", calibrate))
    first, second, *rest = next_commands(RunFolder(folder), advised)
    assert first == calibrate
    assert len(rest) == 1
    header, _, *rows = path.read_text().splitlines(keepends=True)
    (tmp_path / "new.csv").write_text("".join([header, *rows]))
    run(*first.split()[1:])
    run(*second.split()[1:])
    said = pandas.read_csv("answers.csv")
    model, calibrator = gduq.load("calibrated")
    p = gduq.predict(model, gduq.data.smiles.molecules(list(said["smiles"])))
    assert said["std"].tolist() == pytest.approx(calibrator(p).std.tolist(), rel=1e-5)
    assert said["std"].tolist() != pytest.approx(p.std.tolist(), rel=1e-3)


def test_the_bundle_knows_the_columns_of_a_labelled_file(root, tmp_path):
    path = table(tmp_path / "columns.csv", "labels", 60)
    names = [word for name in LABELS[:3] for word in ("--target", name)]
    train(path, root, *names, "--method", "plain", "--by", "random")
    (folder,) = root.glob("columns-*")
    test = table(tmp_path / "test.csv", "labels", 40, seed=5)
    done = run("evaluate", folder, "--data", test, "--json", code=3)  # its line 2 is no molecule
    assert "test.csv, line 2: 'C1CC(' is no valid SMILES" in done.stderr
    found = json.loads(done.stdout)
    assert len(found["settings"]["rejected"]) == 1
    assert {row["variant"] for row in found["table"]} >= {"", *LABELS[:3]}
    assert {row["rows"] for row in found["table"]} >= {40}

    header, bad, *_ = test.read_text().splitlines()
    (tmp_path / "bad.csv").write_text(f"{header}\n{bad}\n{bad}\n")
    refused("evaluate", folder, "--data", tmp_path / "bad.csv")
