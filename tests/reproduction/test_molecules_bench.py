"""The benchmark of molecules: one set of rows for both sides, one code for all scores."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from gduq import metrics
from gduq.errors import InputError
from gduq.prediction import Prediction, ValuePrediction
from gduq_reproduction.bench import bench
from gduq_reproduction.molecules import chemprop_side, ours, peer, plan
from gduq_reproduction.molecules.answers import COPY, SPLITS, StoredAnswers
from gduq_reproduction.molecules.bars import Found, bars
from gduq_reproduction.molecules.molecules_table import collect, work
from gduq_reproduction.molecules.plan import MoleculeJob, MoleculeScale, jobs
from gduq_reproduction.molecules.scoring import MEASURES, likelihood, score

pytest.importorskip("rdkit")
MolGraph = namedtuple("MolGraph", "V E edge_index rev_edge_index")  # as Chemprop has it


@pytest.fixture(scope="module", autouse=True)
def tables(tmp_path_factory):
    """Small tables in the place of the real ones: chains and rings of many lengths."""
    folder = tmp_path_factory.mktemp("raw")
    chains = [start + "C" * n + end for n in range(1, 12) for start in ("", "N", "F")
              for end in ("O", "Cl", "c1ccccc1")]  # fmt: skip
    for name, columns in {"freesolv": ("smiles", "expt"), "bace": ("mol", "Class")}.items():
        path = folder / "MoleculeNet" / name / "raw" / ("SAMPL.csv", "bace.csv")[name == "bace"]
        path.parent.mkdir(parents=True)
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            for i, text in enumerate(chains):
                value = len(text) % 2 if name == "bace" else 0.5 * text.count("C") + 0.01 * i
                writer.writerow([text, value])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDUQ_DATA", str(folder))
        patch.setenv("GDUQ_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setitem(plan.SCALES, "smoke", MoleculeScale(("freesolv", "bace"), 1, 1, peer=True))
        yield


@pytest.fixture(autouse=True)
def fake_chemprop(monkeypatch):
    """In the place of Chemprop: it reads what it is sent and answers by the length of a text."""
    orders = []

    def start(python, folder):
        order = json.loads((folder / "job.json").read_text())
        orders.append(order)
        copies = [f"{change}{s}" for change in order["changes"] for s in (3, 5)]
        found = {}
        for name in (*order["splits"], *copies):
            rows = read(folder / f"{name if name in order['splits'] else 'id_val'}.csv")
            size = torch.tensor([float(len(row["smiles"])) for row in rows])
            said = {"regression": [size], "regression-mve": [size, 0.5 * size],
                    "classification": [torch.sigmoid(size - 8)]}[order["task"]]  # fmt: skip
            one = torch.stack(said, dim=1).double().numpy()
            found[name] = np.stack([one + 0.01 * m for m in range(order["members"])])
        if order["task"] == "classification":
            found = {name: value.clip(0, 1) for name, value in found.items()}
        times = np.array([[9.0, 2.0]] * order["members"])
        np.savez(order["output"], times=times, **found)
        assert len(read(folder / "train.csv")) > 10

    monkeypatch.setattr(peer, "_start", start)
    monkeypatch.setattr(peer, "environment", lambda: Path("python"))
    return orders


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def job(root, side="ours", dataset="freesolv", shift="size", seed=0):
    return MoleculeJob(dataset, shift, seed, side, 1, root)


def gaussians(error, deviation, rows=400, seed=0):
    """One hypothesis about values that are off by ``error`` deviations as said."""
    rng = torch.Generator().manual_seed(seed)
    target = torch.randn(rows, generator=rng) * error * deviation
    said = torch.tensor([0.0, 2 * np.log(deviation)]).expand(1, rows, 2)
    return ValuePrediction(said, target)


# -- jobs and files --------------------------------------------------------------------------------


def test_cheap_jobs_come_first_and_nothing_is_missing(tmp_path):
    found = jobs("small", None, tmp_path)
    assert len(set(found)) == len(found) == 5 * 2 * (3 * 4 + 2 * 3)
    assert found[0].dataset == "freesolv"
    assert found[0].seed == 0
    assert found[-1].dataset == "lipo"
    assert found[-1].side == "ensemble"
    ensemble = next(j for j in found if j.side == "ensemble" and j.dataset == "bace")
    assert [j.side for j in ensemble.needs] == ["default"]
    assert all(found.index(first) < found.index(j) for j in found for first in j.needs)
    with pytest.raises(InputError, match="smoke, small"):
        jobs("paper", None, tmp_path)


@pytest.mark.parametrize("kind", ["values", "classes"])
def test_answers_are_read_as_written(tmp_path, kind):
    target = torch.randn(7) if kind == "values" else torch.arange(7) % 2
    maker = ValuePrediction if kind == "values" else Prediction
    weights = torch.tensor([0.5, 0.25, 0.25])
    parts = {name: maker(torch.randn(3, 7, 2), target, weights=weights) for name in SPLITS}
    parts[f"{COPY}edge_drop3"] = maker(torch.randn(1, 7, 2), target)
    StoredAnswers(parts, 1.5, {"why": "so"}).save(tmp_path / "a" / "one.npz")
    back = StoredAnswers.load(tmp_path / "a" / "one.npz")
    assert (back.seconds, dict(back.notes), list(back.parts)) == (1.5, {"why": "so"}, list(parts))
    assert len(back.copies) == 1
    for name, p in parts.items():
        assert torch.equal(back.parts[name].samples, p.samples)
        assert torch.equal(back.parts[name].target, p.target)
        assert type(back.parts[name]) is maker
    assert torch.equal(back.parts["id_val"].weights, weights)


# -- the peer --------------------------------------------------------------------------------------


def test_the_peer_sees_our_rows_and_is_scored_on_them(tmp_path, fake_chemprop):
    mve = job(tmp_path, "mve")
    peer.run(mve)
    found = StoredAnswers.load(mve.file("chemprop-mve"))
    test = mve.splits().ood_test
    assert torch.equal(found.parts["ood_test"].target, test.target.float())
    length = torch.tensor([float(len(graph.smiles)) for graph in test.graphs])
    assert torch.allclose(found.parts["ood_test"].mean, length)
    assert torch.allclose(found.parts["ood_test"].variance, 0.5 * length)
    assert found.seconds == 2.0  # of the processor, not of the clock
    assert len(found.copies) == 8
    assert fake_chemprop[0]["task"] == "regression-mve"


def test_an_ensemble_of_the_peer_is_one_model_and_two_more(tmp_path, fake_chemprop):
    with pytest.raises(InputError, match="first member"):
        peer.run(job(tmp_path, "ensemble"))
    peer.run(job(tmp_path, "mve"))
    peer.run(job(tmp_path, "ensemble"))
    found = StoredAnswers.load(job(tmp_path).file("chemprop-ensemble"))
    assert found.parts["id_test"].num_samples == 3
    assert found.seconds == 6.0
    seeds = [(order["first_seed"], order["members"]) for order in fake_chemprop]
    assert seeds == [(0, 1), (1, 2)]


def test_probabilities_of_the_peer_become_two_classes(tmp_path):
    one = job(tmp_path, "default", "bace")
    peer.run(one)
    found = StoredAnswers.load(one.file("chemprop")).parts["id_test"]
    length = torch.tensor([float(len(g.smiles)) for g in one.splits().id_test.graphs])
    assert torch.allclose(found.probs[:, 1], torch.sigmoid(length - 8), atol=1e-6)


def test_a_peer_that_fails_says_why(monkeypatch, tmp_path):
    monkeypatch.undo()
    (tmp_path / "job.json").write_text("{}")
    with pytest.raises(RuntimeError, match="KeyError: 'folder'"):
        peer._start(Path(__import__("sys").executable), tmp_path)


def test_the_environment_is_made_once(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("GDUQ_CACHE", str(tmp_path))
    monkeypatch.setattr(peer.venv, "create", lambda folder, **_: folder.mkdir())
    commands, broken = [], [True]

    def install(command, **_):
        commands.append(command[-1])
        return subprocess.CompletedProcess(command, int(broken[0]), "", "no\nnot found")

    monkeypatch.setattr(peer.subprocess, "run", install)
    with pytest.raises(InputError, match="said: not found"):
        peer.environment()
    broken[0] = False
    monkeypatch.setattr(peer.venv, "create", lambda folder, **_: None)
    peer.environment()
    assert peer.environment().name == "python"
    assert commands == ["torch==2.13.0", "torch==2.13.0", "chemprop==2.3.1"]


# -- corruptions on the peer's graphs --------------------------------------------------------------


def chain(atoms):
    pairs = np.array([[i, i + 1] for i in range(atoms - 1)])
    edges = np.stack([pairs.ravel(), pairs[:, ::-1].ravel()])
    bonds = np.repeat(np.arange(atoms - 1.0), 2)[:, None]
    back = np.arange(2 * (atoms - 1)).reshape(-1, 2)[:, ::-1].ravel()
    return MolGraph(np.ones((atoms, 3)) * np.arange(3), bonds, edges, back)


@pytest.mark.parametrize("change", peer.CHANGES)
@pytest.mark.parametrize("level", [0.2, 0.5])
def test_corruptions_of_the_peer_keep_its_graphs_whole(change, level):
    graphs = [chain(n) for n in (2, 5, 11, 30)]
    before = json.dumps([[part.tolist() for part in graph] for graph in graphs])
    copies = chemprop_side.corrupted(graphs, change, level, np.random.default_rng(0))
    assert json.dumps([[part.tolist() for part in graph] for graph in graphs]) == before
    for graph in copies:
        edges, back = graph.edge_index, graph.rev_edge_index
        assert (edges[:, back] == edges[::-1]).all()  # both directions of a bond go together
        assert (graph.E[back] == graph.E).all()
        assert edges.max(initial=0) < len(graph.V)
    bonds = sum(graph.edge_index.shape[1] // 2 for graph in graphs)
    left = sum(graph.edge_index.shape[1] // 2 for graph in copies)
    if change == "edge_drop":
        assert left == bonds - round(level * bonds)
    else:
        assert left == bonds
    same = all((a.V == b.V).all() for a, b in zip(graphs, copies, strict=True))
    assert same == change.startswith("edge")
    if change == "edge_rewire":
        moved = sum(int((a.edge_index[1, ::2] != b.edge_index[1, ::2]).sum())
                    for a, b in zip(graphs, copies, strict=True))  # fmt: skip
        assert 0 < moved <= round(level * bonds)


def test_predictions_are_held_against_those_of_chemprop(tmp_path):
    files = [tmp_path / "one.csv", tmp_path / "two.csv"]
    said = np.array([[[0.1, 9.0], [0.25, 9.0]], [[1.5, 9.0], [2.5, 9.0]]])
    for file, means in zip(files, said[..., 0], strict=True):
        file.write_text("smiles,y\n" + "".join(f"C,{mean:.6f}\n" for mean in means))
    chemprop_side.check(said, files)
    with pytest.raises(RuntimeError, match=r"one\.csv"):
        chemprop_side.check(said[::-1], files)


# -- scores and bars -------------------------------------------------------------------------------


def answers_of(test, val=None, copies=()):
    val = test if val is None else val
    parts = {"id_val": val, "id_test": test, "ood_test": test}
    names = ("edge_drop3", "feature_noise3")
    return StoredAnswers(
        parts | {f"{COPY}{n}": c for n, c in zip(names, copies, strict=False)}, 1.0
    )


def test_levels_of_calibration_differ_as_they_should():
    answers = answers_of(gaussians(2.0, 1.0), copies=[gaussians(4.0, 1.0, seed=1)])
    found = score(answers)
    wide = {level: found[level]["ood_test"]["width90"] for level in found}
    assert wide["validation"] == pytest.approx(2 * wide["none"], rel=0.1)
    assert wide["copies"] == pytest.approx(np.sqrt(10) * wide["none"], rel=0.1)
    assert found["validation"]["ood_test"]["coverage90"] == pytest.approx(0.9, abs=0.03)
    assert found["validation"]["ood_test"]["nll"] < found["none"]["ood_test"]["nll"]
    assert found["none"]["id_test"]["conformal90"] == pytest.approx(0.9, abs=0.01)
    assert found["none"]["ood_test"]["rmse"] == metrics.rmse(answers.parts["ood_test"])


def test_the_peer_is_calibrated_on_the_copies_that_we_have():
    calm, wild = gaussians(2.0, 1.0, seed=1), gaussians(50.0, 1.0, seed=2)
    peers = answers_of(gaussians(2.0, 1.0), copies=[calm, wild])
    ours = answers_of(gaussians(2.0, 1.0), copies=[calm])
    wide = [score(peers, like)["copies"]["ood_test"]["width90"] for like in (ours, peers)]
    assert wide[1] > 5 * wide[0]


def test_classes_are_scored_too():
    rng = torch.Generator().manual_seed(0)
    target = torch.randint(2, (300,), generator=rng)
    logits = torch.randn(1, 300, 2, generator=rng)
    logits[0, torch.arange(300), target] += 1.5
    found = score(answers_of(Prediction(5 * logits, target)))
    assert set(found["none"]["id_test"]) == {*MEASURES["classes"], "conformal90"}
    assert found["validation"]["ood_test"]["nll"] < found["none"]["ood_test"]["nll"]
    assert found["copies"]["ood_test"]["roc_auc"] == found["none"]["ood_test"]["roc_auc"]


def test_recipes_are_chosen_by_rows_and_copies():
    good, bad = gaussians(1.0, 1.0), gaussians(3.0, 1.0)
    best = likelihood(answers_of(good, copies=[good]))
    assert best == pytest.approx(metrics.nll(good), abs=0.01)
    assert best < likelihood(answers_of(good, copies=[bad])) < likelihood(answers_of(bad))


def cell(rmse=1.0, nll=1.0, area=0.1, conformal=0.9, seconds=1.0):
    numbers = {"rmse": rmse, "nll": nll, "crps": nll, "miscalibration": area,
               "conformal90": conformal}  # fmt: skip
    splits = dict.fromkeys(("id_test", "ood_test"), numbers)
    return Found(dict.fromkeys(("none", "validation", "copies"), splits), seconds)


def test_bars_are_met_missed_or_open():
    good = {
        "vanilla": cell(rmse=1.04, area=0.3),
        "gduq": cell(seconds=0.4),
        "gduq-best": cell(nll=0.9),
        "chemprop": cell(),
        "chemprop-mve": cell(),
    }
    places = [(d, s, seed) for d in plan.VALUES for s in plan.SHIFTS for seed in (0, 1)]
    assert [bar.met for bar in bars(dict.fromkeys(places, good))] == [True] * 6
    assert [bar.met for bar in bars({})] == [None] * 6
    worse = good | {
        "vanilla": cell(rmse=1.06, area=0.1),
        "gduq": cell(seconds=0.6),
        "gduq-best": cell(nll=1.1, conformal=0.95),
    }
    assert [bar.met for bar in bars(dict.fromkeys(places, worse))] == [False] * 6
    mixed = {place: good if place[2] else worse for place in places}
    assert "1.050 : 1.000" in bars(mixed)[0].got  # the mean over seeds decides
    few = {place: worse for place in places if place[0] == "esol"}
    assert [bar.met for bar in bars(few)][:3] == [
        None,
        False,
        False,
    ]  # four of six may still be met
    classes = {("bace", "size", 0): worse}
    assert [bar.met for bar in bars(classes)] == [None] * 6


def test_the_hardest_calibration_of_the_peer_counts():
    mve = cell()
    mve.scores["validation"] = {"ood_test": {**mve.scores["none"]["ood_test"], "nll": 0.5}}
    methods = {"gduq-best": cell(nll=0.9), "chemprop-mve": mve}
    places = [(d, s, 0) for d in plan.VALUES for s in plan.SHIFTS]
    found = bars(dict.fromkeys(places, methods))[1]
    assert found.met is False
    assert "6 with none, 0 with validation rows, 6 with shifted copies too" in found.got


# -- all of it -------------------------------------------------------------------------------------


def answered(job):
    """In the place of trainings: the same answers by every method."""
    said = gaussians(2.0, 1.0)
    if not job.is_values:
        target = torch.arange(100) % 2
        said = Prediction(torch.nn.functional.one_hot(target, 2)[None].float(), target)
    for method in job.methods:
        answers_of(said, copies=[said]).save(job.file(method))


@pytest.mark.parametrize("trained", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_bench_is_made_once_and_goes_on_where_it_ended(
    trained, tmp_path, fake_chemprop, monkeypatch
):
    if not trained:
        monkeypatch.setattr(ours, "run", answered)
    monkeypatch.setattr(plan, "SHIFTS", ("size",))
    options = {"workers": 0, "progress": False}
    result = bench("molecules", "smoke", tmp_path, **options)
    assert not result.failures
    places = {(r["dataset"], r["shift"]) for r in result.records}
    assert places == {("freesolv", "size"), ("bace", "size")}
    variants = {r["variant"] for r in result.records if r["dataset"] == "freesolv"}
    assert variants == {*plan.OURS, "gduq-best", *plan.PEERS}
    assert all(r["seeds"] == 1 for r in result.records if r["metric"] == "nll")
    assert len(fake_chemprop) == 3 + 2

    text = result.to_markdown()
    assert "no cell yet" not in text
    assert re.search(r"[01] of 1 \(", text)  # and five cells to come
    assert text.index("## Bars") < text.index("### rmse, regression") < text.index("### ece")
    assert "missing" not in text
    kept = json.loads((tmp_path / "tables" / "molecules-smoke.json").read_text())
    assert [bar["met"] for bar in kept["bars"]] == [bar.met for bar in result.bars]

    some = next(tmp_path.glob("molecules/bace-size-*/0/laplace.npz"))
    some.unlink()
    wanted = jobs("smoke", None, tmp_path / "molecules")
    assert "1 of the methods' answers" in collect(wanted, "smoke", "").to_markdown()
    again = bench("molecules", "smoke", tmp_path, **options)
    assert len(fake_chemprop) == 5  # nothing of the peer was repeated
    assert some.is_file()
    key = ("dataset", "shift", "variant", "calibrator", "split", "metric")
    timed = "train_seconds"
    one, two = ({tuple(r[k] for k in key): r["mean"] for r in some_result.records
                 if r["metric"] != timed} for some_result in (result, again))  # fmt: skip
    assert one.keys() == two.keys()
    differ = [k for k in one if one[k] != two[k] and not (np.isnan(one[k]) and np.isnan(two[k]))]
    assert not differ


def test_two_calls_do_not_do_a_job_twice(tmp_path, monkeypatch):
    one, done = job(tmp_path), []
    monkeypatch.setattr(ours, "run", lambda job: (done.append(job), answered(job)))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, [one, one]))
    assert done == [one]


def test_a_failed_job_leaves_the_rest(tmp_path, monkeypatch):
    monkeypatch.setitem(plan.SCALES, "smoke", MoleculeScale(("freesolv",), 1, 1))
    monkeypatch.setattr(plan, "SHIFTS", ("size",))

    def broken(python, folder):
        raise RuntimeError("no such wheel")

    monkeypatch.setattr(peer, "_start", broken)
    said = answers_of(gaussians(2.0, 1.0), copies=[gaussians(2.0, 1.0)])
    monkeypatch.setattr(ours, "run", lambda job: said.save(job.file("vanilla")))
    result = bench("molecules", "smoke", tmp_path, workers=0, progress=False)
    assert len(result.failures) == 3
    text = result.to_markdown()
    assert "no such wheel" in text
    assert f"{len(plan.OURS) - 1 + 3} of the methods' answers are missing" in text
    assert {r["variant"] for r in result.records} == {"vanilla"}
    assert [bar.met for bar in result.bars] == [None] * 6
