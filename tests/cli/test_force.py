"""No command replaces a file without ``--force``."""

import json
import shutil

import pytest

from gduq.data import save
from tests.cli.cases import CLASSES, bundle, check_early, refused, rings, run
from tests.cli.test_runs import OPTIONS

OWN = "smiles,logS\nCCO,-0.2\nc1ccccc1,-1.9\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run, a bundle and files of graphs."""
    folder = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDUQ_CACHE", str(folder / "cache"))
        made = run("train", *OPTIONS, "--root", folder, "--json")
        (folder / json.loads(made.stdout)["hash"]).rename(folder / "run")
        bundle(folder / "model")
        save(rings(20, seed=1), folder / "new.safetensors", CLASSES)
        yield folder


def commands(place, folder):
    """Each command with a file it can write, which stands last."""
    new = place / "new.safetensors"
    yield "predict", place / "model", new, "-o", folder / "o.csv"
    yield "predict", place / "model", new, "-o", folder / "p.csv", "--rejects", folder / "r.csv"
    yield "report", place / "run", "-o", folder / "r.html"
    yield "evaluate", place / "run", "-o", folder / "e.md"
    yield "evaluate", place / "run", "-o", folder / "e.json"
    yield "calibrate", place / "run", "--method", "vector", "-o", folder / "calibrated"
    yield "bench", "parameters", "--workers", 0, "--root", folder / "b", "-o", folder / "b.csv"
    yield "demo", "--seeds", 1, "--epochs", 1, "--output", folder


def test_a_file_that_is_there_stays(place, tmp_path):
    for words in commands(place, tmp_path):
        output = tmp_path / "demo.csv" if words[0] == "demo" else words[-1]
        output.write_text(OWN)
        assert output.name in refused(*words, says="--force")
        assert output.read_text() == OWN, words
        output.unlink()


def test_force_replaces_it(place, tmp_path):
    words = ("calibrate", place / "run", "--method", "vector", "-o", tmp_path / "other")
    before = bundle(tmp_path / "other").read_bytes()
    refused(*words, says="--force")
    assert (tmp_path / "other").read_bytes() == before
    run(*words, "--force")
    assert (tmp_path / "other").read_bytes() != before


def test_links_and_folders_stay(place, tmp_path):
    words = ("predict", place / "model", place / "new.safetensors", "--force", "-o")
    (tmp_path / "mine.csv").write_text(OWN)
    for name, target in (("link.csv", "mine.csv"), ("nowhere.csv", "gone.csv")):
        (tmp_path / name).symlink_to(tmp_path / target)
        refused(*words, tmp_path / name, says="a regular file")
    (tmp_path / "folder.csv").mkdir()
    refused(*words, tmp_path / "folder.csv", says="folder")
    assert (tmp_path / "mine.csv").read_text() == OWN


def test_the_report_in_the_run_folder_is_its_own(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    for _ in range(2):
        run("report", tmp_path / "run", "-o", tmp_path / "run" / "report.html")


def test_training_data_is_never_an_output(place, tmp_path):
    """Not even with --force."""
    shutil.copytree(place / "run", tmp_path / "run")
    words = ("predict", tmp_path / "run", place / "new.safetensors", "-o", tmp_path / "mine.csv")
    (tmp_path / "mine.csv").write_text(OWN)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["data"]["source"] = str(tmp_path / "mine.csv")
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    refused(*words, "--force", says="which is read")


def test_it_is_told_at_once(place):
    for name in ("mine.csv", "mine.md"):
        (place / name).write_text(OWN)
    said = "mine.csv, which exists. Choose another name, or pass --force"
    mistakes = {
        "predict model new.safetensors -o mine.csv": said,
        "report run -o rep.pdf": ".html, .json",
        "evaluate run -o mine.md": "mine.md, which exists",
        "bench parameters -o mine.csv": said,
        "calibrate run -o mine.csv": said,
    }
    check_early(mistakes, place)
