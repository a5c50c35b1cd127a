"""`gduq predict`: files of graphs in, rows of decisions out."""

import csv
import gc
import json
import sys
import weakref

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import gduq
from gduq.cli.request import make_network
from gduq.data import save
from gduq.serve import files
from gduq.serve.files import predict_files
from gduq.serve.service import Service
from tests.cli.cases import CLASSES, anchored, bundle, refused, ring, rings, run, spoilt

PLAIN = ["file", "row", "label", "class", "confidence", "entropy", "spread", "aleatoric",
         "epistemic", "prob_small", "prob_large", "ood_score"]  # fmt: skip
FULL = [*PLAIN[:-1], "conformal_set", "ood_score", "ood_rank", "abstain"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("predict")


@pytest.fixture(scope="module")
def model(place):
    return bundle(place / "model")


@pytest.fixture(scope="module")
def graphs(place):
    return save(rings(30, seed=1), place / "graphs.safetensors")


@pytest.fixture(scope="module")
def known(place):
    return save(rings(60, seed=2), place / "known.safetensors", CLASSES)


def rows_of(path):
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# -- what is written -----------------------------------------------------------------------------


def test_the_columns_say_what_the_library_says(tmp_path, model, graphs):
    out = tmp_path / "out.parquet"
    result = run("predict", model, graphs, "-o", out)
    assert "30 row(s) for 30 graph(s)" in result.stdout
    assert result.stderr.startswith("Note: ")
    rows = rows_of(out)
    assert list(rows[0]) == PLAIN
    numbers = [v for row in rows for v in row.values() if isinstance(v, float)]
    assert all(float(str(np.float32(v))) == v for v in numbers)  # no digits of doubles
    p = gduq.predict(anchored(), rings(30, seed=1))
    for name in ("confidence", "epistemic", "aleatoric"):
        found = torch.tensor([row[name] for row in rows])
        torch.testing.assert_close(found, getattr(p, name), rtol=1e-4, atol=1e-6)
    assert [row["label"] for row in rows] == p.label.tolist()
    assert [row["class"] for row in rows] == [CLASSES[i] for i in p.label]
    probs = torch.tensor([[row[f"prob_{c}"] for c in CLASSES] for row in rows])
    torch.testing.assert_close(probs, p.probs)
    score = torch.tensor([row["ood_score"] for row in rows])
    torch.testing.assert_close(score, gduq.ood.score(p, "msp"))
    assert [row["row"] for row in rows] == list(range(30))
    assert {row["file"] for row in rows} == {str(graphs)}


def test_all_formats_hold_the_same(tmp_path, model, graphs, known):
    found = {}
    for ending in ("parquet", "csv", "jsonl"):
        out = tmp_path / f"out.{ending}"
        run("predict", model, graphs, "-o", out, "--calibration-data", known)
        found[ending] = rows_of(out)
    assert found["parquet"] == found["jsonl"]
    for text, value in zip(found["csv"], found["parquet"], strict=True):
        assert list(text) == FULL
        assert float(text["confidence"]) == value["confidence"]
        assert json.loads(text["conformal_set"]) == value["conformal_set"]
        assert text["abstain"] == (value["abstain"] or "")


def test_json_for_machines(tmp_path, model, graphs, known):
    out = tmp_path / "out.jsonl"
    result = run("predict", model, graphs, "-o", out, "--calibration-data", known, "--json")
    done = json.loads(result.stdout)
    assert result.stderr == ""
    assert (done["graphs"], done["rows"], done["rejected"]) == (30, 30, 0)
    assert done["columns"] == FULL
    assert done["notes"] == []
    strange = [ring(5, i) for i in range(60)]
    for graph in strange:
        graph.x = graph.x * 30
    path = save(strange, tmp_path / "strange.safetensors")
    words = ("predict", model, path, "-o", out, "--force", "--calibration-data", known, "--json")
    done = json.loads(run(*words).stdout)
    assert done["shift_pvalue"] < 0.01
    assert len(done["notes"]) == 1


# -- bad graphs ----------------------------------------------------------------------------------


def test_bad_graphs_are_listed_and_the_rest_is_answered(tmp_path, model, graphs):
    path = save(spoilt(rings(30, seed=1), 3, 17), tmp_path / "spoilt.safetensors")
    good, out = tmp_path / "good.jsonl", tmp_path / "out.jsonl"
    run("predict", model, graphs, "-o", good)
    run("predict", model, path, "-o", out, "--batch-size", 8, code=3)
    found = {row["row"]: row["confidence"] for row in rows_of(out)}
    assert set(found) == set(range(30)) - {3, 17}
    for row in rows_of(good):
        if row["row"] in found:
            assert found[row["row"]] == pytest.approx(row["confidence"], rel=1e-5)
    rejects = rows_of(tmp_path / "out.jsonl.rejects.csv")
    assert [row["row"] for row in rejects] == ["3", "17"]
    assert all(row["reason"] for row in rejects)
    done = run("predict", model, path, "-o", out, "--force", "--json", code=3)
    assert json.loads(done.stdout)["rejected"] == 2
    run("predict", model, graphs, "-o", out, "--force")
    assert rows_of(tmp_path / "out.jsonl.rejects.csv") == []


def test_when_no_graph_can_be_read_all_are_listed(tmp_path, model):
    wide = save([ring(4, i, channels=5) for i in range(3)], tmp_path / "wide.safetensors")
    assert "out.csv.rejects.csv" in refused("predict", model, wide, "-o", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    assert len(rows_of(tmp_path / "out.csv.rejects.csv")) == 3


class Reads(torch.nn.Module):
    """Looks for something that not every graph has."""

    def forward(self, graph):
        mean = graph["pos"].mean(dim=0, keepdim=True)
        return mean.expand(graph.num_graphs, 2)


def test_a_graph_that_lacks_what_the_network_reads_is_a_bad_graph(tmp_path):
    given = rings(3, label=False)
    for graph in given:
        graph.pos = torch.zeros(graph.num_nodes, 2)
    bare = save(rings(1, label=False), tmp_path / "bare.safetensors")
    full = save(given, tmp_path / "full.safetensors")
    done = predict_files(Service(Reads()), [full, bare], tmp_path / "out.csv")
    assert (done.graphs, done.rejected) == (3, 1)
    assert "pos" in done.first


# -- memory --------------------------------------------------------------------------------------


def test_memory_does_not_grow_with_the_number_of_graphs(tmp_path, monkeypatch):
    seen, most = [], []

    def endless(source, **_):
        for i in range(1200):
            graph = ring(3, i)
            seen.append(weakref.ref(graph.x))
            yield i, graph
            del graph
            if i % 400 == 399:
                gc.collect()
                most.append(sum(ref() is not None for ref in seen))

    monkeypatch.setattr(files, "stream", endless)
    (tmp_path / "any.safetensors").touch()
    service = Service(anchored(), class_names=CLASSES)
    service.refer_to(service.answer(rings(40)))
    any_file, out = tmp_path / "any.safetensors", tmp_path / "out.parquet"
    done = predict_files(service, [any_file], out, batch_size=50)
    assert done.rows == 1200
    assert max(most) <= 200  # a batch, and the one before
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 1200


# -- nothing of the user's is lost -----------------------------------------------------------------


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def lossy_calls(folder, model, known):
    """Calls that would write over something that is read, or write one file twice."""
    out = folder / "out.csv"
    own = save(rings(4), folder / "own.safetensors")
    table = folder / "same.csv"
    table.write_text("smiles\nCCO\n")
    link = folder / "link.csv"
    link.symlink_to(own)
    notes = folder / "notes.csv"
    notes.write_text("what I found out\n")
    corrected = folder / "all.csv.rejects.csv"
    corrected.write_text("file,row,line,reason,text\n")
    return [
        (model, table, "-o", table),
        (model, own, "-o", out, "--rejects", own),
        (model, own, "-o", out, "--rejects", link),
        (model, own, "-o", out, "--rejects", folder / "." / "sub" / ".." / own.name),
        (model, own, "-o", out, "--rejects", out),
        (model, own, "-o", out, "--rejects", model),
        (model, own, "-o", out, "--rejects", notes),
        (model, own, "-o", out, "--rejects", folder),
        (model, corrected, "-o", folder / "all.csv"),  # the default place of the rejects
        (model, own, "-o", link, "--calibration-data", link),
        (model, own, "-o", out, "--calibration-data", known, "--rejects", known),
    ]


def test_no_path_destroys_what_is_there(tmp_path):
    (tmp_path / "sub").mkdir()
    known = save(rings(60, seed=2), tmp_path / "known.safetensors", CLASSES)
    calls = lossy_calls(tmp_path, bundle(tmp_path / "model"), known)
    before = contents(tmp_path)
    for call in calls:
        refused("predict", *call)
        assert contents(tmp_path) == before


# -- mistakes ------------------------------------------------------------------------------------


def test_mistakes_are_one_sentence(tmp_path, model, graphs):
    out, damaged = tmp_path / "out.csv", tmp_path / "damaged"
    damaged.write_bytes(model.read_bytes()[:-8])
    bare = save(rings(5, label=False), tmp_path / "bare.safetensors")
    for words in (
        (tmp_path / "nowhere", graphs, "-o", out),
        (damaged, graphs, "-o", out),
        (graphs, model, "-o", out),
        (model, tmp_path / "no.csv", "-o", out),
        (model, graphs, "-o", tmp_path / "out.xlsx"),
        (model, graphs, "-o", tmp_path / "no" / "out.csv"),
        *((model, graphs, "-o", out, *more) for more in (
            ("--alpha", "nan"), ("--coverage", "7"), ("--max-epistemic", "-1"),
            ("--calibration-data", bare), ("--device", "moon"), ("--keep", "id"),
            ("--net", "math"), ("--net", "math:pi"), ("--net", "no_such_module:x"),
        )),
    ):  # fmt: skip
        refused("predict", *words)
        assert not out.exists()


# -- networks that are not ours ------------------------------------------------------------------

MODULE = """
from torch import nn
from torch_geometric.nn import GCNConv, global_mean_pool

class Mine(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.conv, self.out = GCNConv(width, 8), nn.Linear(8, 2)

    def forward(self, x, edge_index, batch=None):
        return self.out(global_mean_pool(self.conv(x, edge_index).relu(), batch))

def needs(width): return Mine(width)
"""


def test_a_network_of_ones_own(tmp_path, monkeypatch, graphs):
    (tmp_path / "own_network.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    net = make_network("own_network:Mine")
    model = gduq.anchor(net, at="out", num_anchors=3).fit_anchors(rings(9)).eval()
    path, out = gduq.save(model, tmp_path / "mine"), tmp_path / "out.jsonl"
    for more in ((), ("--net", "own_network:needs"), ("--net", "own_network:nothing")):
        refused("predict", path, graphs, "-o", out, *more)
    run("predict", path, graphs, "-o", out, "--net", "own_network:Mine")
    found = torch.tensor([row["confidence"] for row in rows_of(out)])
    p = gduq.predict(model, rings(30, seed=1))
    torch.testing.assert_close(found, p.confidence)
