"""Commands replace what they wrote before, and never a user's own file."""

import json
import shutil

import pytest

from gduq.cli.replacing import check_replaced
from gduq.data import save
from tests.cli.cases import CLASSES, bundle, check_early, refused, rings, run
from tests.cli.test_runs import OPTIONS

OWN = "smiles,logS\nCCO,-0.2\nc1ccccc1,-1.9\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run, a bundle, files of graphs, and tables of the user's own in all formats."""
    folder = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDUQ_CACHE", str(folder / "cache"))
        made = run("train", *OPTIONS, "--root", folder, "--json")
        (folder / json.loads(made.stdout)["hash"]).rename(folder / "run")
        bundle(folder / "model")
        save(rings(20, seed=1), folder / "new.safetensors", CLASSES)
        yield folder


def commands(place, folder):
    """Each command with the files it can write, which stand last."""
    new = place / "new.safetensors"
    yield from (("predict", place / "model", new, "-o", folder / f"o.{end}")
                for end in ("csv", "jsonl", "parquet"))  # fmt: skip
    yield from (("report", place / "run", "-o", folder / f"r.{end}")
                for end in ("html", "md", "tex", "json", "csv"))  # fmt: skip
    yield "report", place / "run", "--format", "markdown", "-o", folder / "r.txt"
    yield from (("evaluate", place / "run", "-o", folder / f"e.{end}") for end in ("md", "json"))
    yield "calibrate", place / "run", "--method", "vector", "-o", folder / "calibrated"
    yield from (("bench", "parameters", "--workers", 0, "--root", folder / "b",
                 "-o", folder / f"b.{end}") for end in ("md", "tex", "json", "csv"))  # fmt: skip
    yield "data", "convert", "--overwrite", new, folder / "c.safetensors"


def test_its_own_file_is_replaced_and_no_other(place, tmp_path):
    for words in commands(place, tmp_path):
        output = words[-1]
        output.write_text(OWN)
        assert output.name in refused(*words, says="delete it first")
        assert output.read_text() == OWN, words
        output.unlink()
        run(*words)
        assert output.stat().st_size > len(OWN)
        check_replaced(output, "data convert" if words[0] == "data" else words[0])


def test_an_empty_file_is_replaced_and_so_are_answers(place, tmp_path):
    (tmp_path / "o.csv").touch()
    for _ in range(2):
        run("predict", place / "model", place / "new.safetensors", "-o", tmp_path / "o.csv")
    assert len((tmp_path / "o.csv").read_text().splitlines()) == 21


def test_the_file_of_another_command_stays(place, tmp_path):
    made = tmp_path / "e.json"
    run("evaluate", place / "run", "-o", made)
    before = made.read_bytes()
    run("report", place / "run", "-o", made, code=2)
    assert made.read_bytes() == before


@pytest.mark.parametrize("ending", ["pt2", "onnx"])
def test_an_export_replaces_an_export(tmp_path, ending):
    if ending == "onnx":
        pytest.importorskip("onnxscript")
    from tests.cli.test_export import fitted

    like = save(rings(6), tmp_path / "like.safetensors")
    words = ("export", fitted(tmp_path / "model"), "-o", tmp_path / f"m.{ending}", "--like", like)
    run(*words)
    run(*words)
    shutil.copy(like, words[3])
    refused(*words, says="delete it first")


def test_training_data_is_never_an_output(place, tmp_path):
    """Not even where it looks like something that the command wrote."""
    shutil.copytree(place / "run", tmp_path / "run")
    words = ("predict", tmp_path / "run", place / "new.safetensors", "-o", tmp_path / "mine.csv")
    header = "file,row,ood_score\n"
    (tmp_path / "mine.csv").write_text(header)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["data"]["source"] = str(tmp_path / "mine.csv")
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    refused(*words, says="which is read")
    (tmp_path / "mine.csv").write_text("subject,kind,split,calibrator,measure,value,against\n")
    for runs in (tmp_path / "run", tmp_path):
        refused("report", runs, "-o", words[-1], says="which is read")


def test_it_is_told_at_once(place, tmp_path):
    for name in ("mine.csv", "mine.md"):
        (place / name).write_text(OWN)
    refused = "mine.csv, another file. Choose another name, or delete it first."
    mistakes = {
        "predict model new.safetensors -o mine.csv": refused,
        "report run -o mine.csv": refused,
        "report run -o rep.pdf": ".html, .md",
        "evaluate run -o mine.md": "mine.md, another file",
        "bench parameters -o mine.csv": refused,
        "calibrate run -o mine.csv": refused,
    }
    check_early(mistakes, place)
