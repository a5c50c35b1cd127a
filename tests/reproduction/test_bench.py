"""Tables: made of runs, the same on every engine and after every accident."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gduq.disk import write_json
from gduq.errors import InputError
from gduq.jobs.progress import heard_by
from gduq.runs.build import recipe_of
from gduq.runs.folder import FINISHED, RunFolder
from gduq.runs.run import requirements
from gduq_reproduction import bench as bench_module
from gduq_reproduction import printed, specs
from gduq_reproduction.bench import bench
from gduq_reproduction.bench_result import COLUMNS, BenchResult, record, verdicts
from gduq_reproduction.run_scores import MEASURES, scores_in
from gduq_reproduction.tables import TABLES

NAMES = [
    "node-shift",
    "node-layerwise",
    "size-shift",
    "graph-shift",
    "anchor-source",
    "ood-detection",
    "error-prediction",
    "rotation",
    "feature-noise",
    "pretrained",
    "runtime",
    "parameters",
    "anchor-gaussians",
    "ntk-spectrum",
]
TRAINED = [name for name in NAMES if TABLES[name].producer is None]


QUICK = {"hidden": 4, "graph_epochs": 1, "node_epochs": 2, "limit": 60, "seeds": 2}
SMALL = {"smoke": TABLES["node-shift"].smoke[:1], "variants": ("nfa",), "calibrators": ()}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Even less than smoke: what is tested is the machinery, not the numbers."""
    monkeypatch.setitem(specs.SCALES, "smoke", replace(specs.SCALES["smoke"], **QUICK))


@pytest.fixture
def small(monkeypatch):
    """A table of six runs that are trained in a moment."""
    monkeypatch.setitem(TABLES, "node-shift", replace(TABLES["node-shift"], **SMALL))


def make(name, root, **options):
    return bench(name, "smoke", root, **{"workers": 0, "progress": False, **options})


def made_up(config, root, **_):
    """Leave what a run leaves, with scores that are drawn from its hash."""
    path = Path(root) / config.hash
    path.mkdir(exist_ok=True)
    known = scores_in(path)
    splits = {split for table in TABLES.values() for split in table.splits}
    for calibrator in {"none", *config.calibrators} - {*known}:
        drawn = random.Random(f"{config.hash} {calibrator}")
        known[calibrator] = {split: {m: drawn.random() for m in MEASURES} for split in splits}
    write_json(path / "config.json", config.model_dump(mode="json"))
    write_json(path / "scores.json", known)
    (path / FINISHED).touch()
    return RunFolder(path)


@pytest.fixture
def untrained(monkeypatch):
    """Runs cost nothing; what was asked for is noted."""
    asked = []

    def run(config, root, **options):
        asked.append(config)
        return made_up(config, root, **options)

    monkeypatch.setattr(bench_module, "run", run)
    return asked


def check(result, name, root):
    """What every table has, however it was made."""
    assert not result.failures
    assert result.records
    table = TABLES[name]
    for r in result.records:
        assert tuple(r) == COLUMNS
        assert r["table"] == name
        assert r["mean"] is not None or r["note"]
        assert r["command"].startswith(f"gduq bench {name} --scale smoke")
    assert {r["metric"] for r in result.records} == set(table.metrics)
    text = result.to_markdown()
    assert table.title in text
    assert all(label in text for label in table.labels)
    rows = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert len(rows) == len(result.records)
    assert tuple(rows[0]) == COLUMNS
    latex = result.to_latex()
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") > 0
    assert not re.search(r"[±▲▼·]|(?<!\\)_", re.sub(r"%.*", "", latex))
    saved = root / "tables" / f"{name}-smoke.json"
    again = BenchResult.from_json(saved)
    assert again.records == result.records
    assert json.loads(result.to_json()) == json.loads(again.to_json())
    for figure in result.figures:
        assert (saved.parent / figure).stat().st_size > 5000


def test_all_tables_are_there():
    assert list(TABLES) == NAMES
    rows = [table.row for table in TABLES.values() if table.row is not None]
    assert rows == list(range(1, 15))  # of the paper's evidence; a table of our own has none


@pytest.mark.parametrize("name", TRAINED)
def test_a_table_of_runs_has_all_its_cells(name, tmp_path, untrained):
    result = make(name, tmp_path)
    check(result, name, tmp_path)
    for group in {(r["dataset"], r["shift"], r["model"]) for r in result.records}:
        cells = {
            (r["variant"], r["calibrator"])
            for r in result.records
            if (r["dataset"], r["shift"], r["model"]) == group
        }
        controls = {("vanilla", c) for c in ("none", "t2", "temperature")}
        assert controls | {("ensemble", "none"), ("mcdropout", "none")} <= cells
        assert all((variant, "none") in cells for variant in TABLES[name].variants)


@pytest.mark.parametrize("name", ["parameters", "anchor-gaussians", "ntk-spectrum"])
def test_a_table_of_its_own_kind(name, tmp_path):
    check(make(name, tmp_path), name, tmp_path)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TRAINED, "runtime"])
def test_every_table_is_made_of_real_runs(name, root):
    check(make(name, root, seeds=1), name, root)


def test_runs_are_shared_between_tables(tmp_path, untrained):
    make("ood-detection", tmp_path)
    assert untrained
    untrained.clear()
    for name in ("error-prediction", "pretrained", "ood-detection"):
        make(name, tmp_path)
    assert [c.title for c in untrained if "temperature" not in c.calibrators] == []
    untrained.clear()
    make("pretrained", tmp_path)
    assert not untrained


def test_records_come_from_the_runs(tmp_path, untrained):
    result = make("node-shift", tmp_path)
    wanted = {"shift": "concept", "variant": "nfa", "calibrator": "temperature", "metric": "ece"}
    wanted["split"] = "ood_test"
    (found,) = (r for r in result.records if wanted.items() <= r.items())
    configs = [c for s, v, _, c in TABLES["node-shift"].configs("smoke", 2)
               if s.shift == "concept" and v == "nfa"]  # fmt: skip
    found_in = [scores_in(tmp_path / c.hash) for c in configs]
    scores = [run["temperature"]["ood_test"]["ece"] for run in found_in]
    assert found["values"] == scores
    assert found["mean"] == pytest.approx(sum(scores) / 2)
    assert found["seeds"] == 2
    assert found["versus"] == "vanilla, temperature"
    assert set(result.runs) >= {c.hash for c in configs}


def test_failures_are_kept_and_retried(tmp_path, untrained, monkeypatch):
    def is_weak(config):
        return config.method.kind == "anchored" and config.method.at == "input" and not config.seed

    def fragile(config, *args, **options):
        if is_weak(config):
            raise RuntimeError("the cat sat on the keyboard")
        return made_up(config, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(bench_module, "run", fragile)
        broken = make("node-shift", tmp_path)
    weak = {c.hash for *_, c in TABLES["node-shift"].configs("smoke", 2) if is_weak(c)}
    assert len(broken.failures) == len(weak) > 0
    assert "cbas/color/concept gcn nfa, seed 0" in broken.failures  # in the words of the table
    assert all("the cat" in text and "Traceback" in text for text in broken.failures.values())
    assert "Failed runs" in broken.to_markdown()
    anchored = [r for r in broken.records if r["variant"] == "nfa"]
    assert all(r["seeds"] == 1 and r["note"] == "1 run(s) failed" for r in anchored)
    mended = make("node-shift", tmp_path)
    assert {c.hash for c in untrained} == weak  # the rest was there
    assert not mended.failures
    assert all(r["seeds"] == 2 for r in mended.records)


def test_seeds_can_be_chosen(tmp_path, untrained):
    result = make("node-layerwise", tmp_path, seeds=1)
    assert {r["seeds"] for r in result.records} == {1}
    assert {r["verdict"] for r in result.records if r["versus"]} == {"same"}
    assert result.records[0]["command"].endswith("--seeds 1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "size_shift"}, "size-shift"),
        ({"scale": "huge"}, "smoke, small, paper"),
        ({"seeds": 0}, "seeds"),
        ({"engine": "slurm"}, "local, ray"),
    ],
)
def test_bad_input(options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        bench(**{"name": "node-shift", "root": tmp_path, "progress": False, **options})


def test_a_table_can_be_named_at_every_scale():
    """No data is loaded: configs of the published schedule are what GOOD has."""
    for name in TRAINED:
        for scale in ("small", "paper"):
            configs = [c for *_, c in TABLES[name].configs(scale, 1)]
            assert len({c.hash for c in configs}) == len(configs)
    motif = next(s for s in TABLES["graph-shift"].settings if s.dataset == "motif-lpe/basis")
    config = motif.config("readout", 0, "paper")
    assert (config.training.epochs, config.training.batch_size) == (250, 32)  # 50 more: anchored
    vanilla, frozen = (motif.config(v, 0, "paper") for v in ("vanilla", "pretrained"))
    assert vanilla.training.epochs == frozen.training.epochs == 200
    assert [c.hash for c in requirements(frozen)] == [vanilla.hash]
    assert frozen.method.epochs == 250
    assert config.model.hidden_channels == 300
    assert config.data.limit is None
    small = {s.dataset for s in TABLES["node-shift"].settings_at("small")}
    assert "cora-ml/word" in small
    assert "cora/word" not in small


# -- verdicts ------------------------------------------------------------------------------------


def cell(variant, calibrator, values, metric="ece"):
    key = {"dataset": "d", "variant": variant, "calibrator": calibrator, "metric": metric}
    return record("t", key, values, scale="smoke", command="")


def test_verdicts_are_paired_and_know_the_direction():
    from scipy.stats import ttest_rel

    vanilla, other = [0.30, 0.10, 0.20], [0.29, 0.085, 0.188]  # far apart, but always lower
    for metric, verdict in (("ece", "better"), ("accuracy", "worse")):
        found = verdicts([cell("vanilla", "none", vanilla, metric),
                          cell("nfa", "none", other, metric)])[1]  # fmt: skip
        assert found["verdict"] == verdict
        assert found["p_value"] == pytest.approx(ttest_rel(other, vanilla).pvalue)


def test_whom_a_cell_is_compared_with():
    values = [0.1, 0.2]
    names = ["none", "t2", "temperature"]
    records = [cell("vanilla", c, values) for c in names]
    anchored = ["none", "temperature", "rescaled_paper", "rescaled_released"]
    records += [cell("nfa", c, values) for c in anchored]
    versus = {(r["variant"], r["calibrator"]): r["versus"] for r in verdicts(records)}
    assert versus["vanilla", "none"] == ""
    assert versus["vanilla", "t2"] == "vanilla, none"
    assert versus["nfa", "temperature"] == "vanilla, temperature"
    assert versus["nfa", "rescaled_paper"] == "vanilla, none"
    assert versus["nfa", "rescaled_released"] == "vanilla, t2"  # it halves logits, too


def test_equal_or_missing_values_prove_nothing():
    one, two, three = verdicts(
        [
            cell("vanilla", "none", [0.1, 0.2]),
            cell("nfa", "none", [0.1, 0.2]),
            cell("L1", "none", [None, 0.1]),
        ]
    )
    assert (one["verdict"], two["verdict"], three["verdict"]) == ("", "same", "same")
    assert two["p_value"] == 1.0
    assert three["p_value"] is None
    assert three["seeds"] == 1
    empty = cell("nfa", "none", [None, float("nan")])
    assert (empty["mean"], empty["std"], empty["seeds"]) == (None, None, 0)


def test_wins_are_counted():
    records = verdicts(
        [
            cell("vanilla", "none", [0.30, 0.31, 0.32]),
            cell("vanilla", "t2", [0.2, 0.2, 0.2]),
            cell("nfa", "none", [0.1, 0.12, 0.11]),
            cell("L1", "none", [0.5, 0.52, 0.51]),
        ]
    )
    wins = {w["variant"]: w for w in BenchResult("t", "smoke", records).wins()}
    assert set(wins) == {"nfa", "L1"}
    assert wins["nfa"] == {
        "variant": "nfa",
        "metric": "ece",
        "cells": 1,
        "better mean": 1,
        "better": 1,
        "worse": 0,
    }
    assert (wins["L1"]["better mean"], wins["L1"]["worse"]) == (0, 1)


def test_damaged_results_are_explained(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    for name in ("x.json", "y.json"):
        with pytest.raises(InputError, match="BenchResult"):
            BenchResult.from_json(tmp_path / name)


# -- accidents and engines -----------------------------------------------------------------------

SCRIPT = f"""
import itertools, os, signal, sys
from dataclasses import replace

from gduq_reproduction import bench, specs
from gduq_reproduction.tables import TABLES
from gduq.runs import training

def fit(model, *args, **options):
    print("trained", flush=True)
    return real_fit(model, *args, **options)

def run(*args, **options):
    if next(count) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return real_run(*args, **options)

count, real_fit, real_run = itertools.count(), training.fit, bench.run
training.fit, bench.run = fit, run
specs.SCALES["smoke"] = replace(specs.SCALES["smoke"], **{QUICK!r})
table = TABLES["node-shift"]
TABLES["node-shift"] = replace(
    table, smoke=table.smoke[:1], variants={SMALL["variants"]}, calibrators=()
)
bench.bench("node-shift", "smoke", sys.argv[1], workers=0, seeds=1, progress=False)
"""


def start(root, kill_at=-1):
    command = [sys.executable, "-c", SCRIPT, str(root), str(kill_at)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finished(root):
    return {path.parent.name for path in Path(root).glob("*/finished")}


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a process that imports torch, on a machine that may be busy
def test_killed_in_the_middle_the_second_call_gives_the_same_table(small, tmp_path):
    process = start(tmp_path, kill_at=3)
    whole = make("node-shift", tmp_path / "whole", seeds=1)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    before = finished(tmp_path)
    assert len(before) == 3 < len(finished(tmp_path / "whole"))
    times = {name: (tmp_path / name / "finished").stat().st_mtime_ns for name in before}
    resumed = make("node-shift", tmp_path, seeds=1)
    assert resumed.records == whole.records
    for name, then in times.items():  # what was done was not done again
        assert (tmp_path / name / "finished").stat().st_mtime_ns == then


@pytest.mark.timeout(1800)  # processes that import torch, on a machine that may be busy
@pytest.mark.slow  # two processes that train
def test_two_benches_on_one_folder(small, tmp_path):
    whole = make("node-shift", tmp_path / "whole", seeds=1)
    both = [start(tmp_path) for _ in range(2)]  # in step: both want the same run next
    trained = [process.communicate()[0].count("trained") for process in both]
    assert [process.returncode for process in both] == [0, 0]
    kinds = [RunFolder(tmp_path / name).config.method.kind for name in finished(tmp_path)]
    assert sum(trained) == sum(kind in ("vanilla", "anchored") for kind in kinds)  # each once
    saved = BenchResult.from_json(tmp_path / "tables" / "node-shift-smoke.json")
    assert saved.records == whole.records


@pytest.mark.timeout(1800)  # processes that import torch, on a machine that may be busy
@pytest.mark.slow  # two processes and a Ray of two workers
def test_ray_and_processes_give_the_same(small, tmp_path, ray_of_two):
    here = make("node-shift", tmp_path / "here")
    on_ray = make("node-shift", tmp_path / "ray", engine="ray", workers=2)
    pooled = make("node-shift", tmp_path / "local", workers=2)
    assert not on_ray.failures
    assert on_ray.records == here.records == pooled.records


def test_who_watches_hears_of_the_epochs(tmp_path):
    setting, told = TABLES["node-shift"].smoke[0], []
    work = partial(bench_module._one_run, tmp_path)
    with heard_by(told.append):
        for variant in ("vanilla", "gduq-pretrained"):
            work(setting.config(variant, 0, "smoke"))
    whole_line = r"epoch \d+/2  loss \d\.\d{3}  val accuracy \d\.\d{3}  ECE \d\.\d{3}"
    of_a_head = r"epoch \d+  loss \d\.\d{3}"  # which stops when validation rows say so
    assert all(re.fullmatch(f"{whole_line}|{of_a_head}", text) for text in told)
    assert {"/" in text for text in told} == {True, False}


# -- the paper's figures -------------------------------------------------------------------------

SEED = Path(__file__).parents[3] / "shared" / "seed"


@pytest.mark.parametrize("name", printed.FILES)
def test_printed_figures_are_sound(name):
    content = printed.load(name)
    assert content["label"]
    keys = [tuple(sorted((k, v) for k, v in e.items() if k not in ("mean", "std")))
            for e in content["entries"]]  # fmt: skip
    assert len(set(keys)) == len(keys)
    for entry in content["entries"]:
        if entry["metric"] in ("accuracy", "ece", "auroc", "gep_error"):
            assert 0 <= entry["mean"] <= 1


def test_every_table_with_figures_finds_some():
    for name, table in TABLES.items():
        if not table.printed or table.producer:
            continue
        found = 0
        for setting in table.settings:
            for variant in ("vanilla", *table.variants):
                key = {"dataset": setting.dataset, "shift": setting.shift, "model": setting.model}
                for calibrator in ("none", *table.calibrators):
                    for split in table.splits:
                        for metric in table.metrics:
                            cell = {"calibrator": calibrator, "split": split, "metric": metric}
                            hit = printed.lookup(table.printed, **key, variant=variant, **cell)
                            found += hit is not None
        assert found >= len(table.settings), name


SAMPLE = [
    # table's label, a line of the seed text, what the data file has for it
    ("good_shifts_node", r"&&\ding{53}&$0.607$\small$\pm0.003$&$0.628$",
     {"dataset": "cora/word", "shift": "concept", "variant": "nfa", "calibrator": "none",
      "metric": "accuracy"}, 0.628),
    ("good_shifts_node", r"$0.284$\small$\pm0.009$&$0.111$\small$\pm0.013$",
     {"dataset": "cora/word", "shift": "concept", "variant": "nfa", "calibrator": "none",
      "metric": "ece"}, 0.111),
    ("good_shifts_big", r"$\mathbf{0.047}$\small$\pm0.003$",
     {"dataset": "motif-lpe/basis", "shift": "concept", "variant": "ensemble-readout",
      "calibrator": "none", "metric": "ece"}, 0.047),
    ("ood_detection", r"$\mathbf{0.829 \pm 0.113}$",
     {"dataset": "motif-lpe/size", "shift": "covariate", "variant": "pretrained",
      "metric": "auroc"}, 0.829),
    ("gengap", r"$\mathbf{0.030 \pm 0.026}$",
     {"dataset": "sst2/length", "shift": "covariate", "variant": "pretrained",
      "metric": "gep_error"}, 0.03),
    ("rotation_ece", r"$0.217 $ \small$\pm 0.012$",
     {"model": "gps+lpe", "variant": "pretrained", "split": "rotation=40"}, 0.217),
    ("feature_noise", r"$0.71$\small$\pm0.178$",
     {"model": "gated_gcn", "variant": "vanilla", "split": "noise=0.4", "metric": "ece"}, 0.71),
    ("runtimes", r"& 181.5 ",
     {"dataset": "cmnist/color", "variant": "L1", "metric": "predict_seconds"}, 181.5),
    ("parameters", r"2360110",
     {"dataset": "cmnist", "variant": "L4"}, 2360110),
    ("gaussians", r"GOODSST2     & length     & covariate & -4.902",
     {"dataset": "sst2/length", "shift": "covariate", "metric": "min_mu"}, -4.902),
    ("node_gen_rand", r"$0.58$\small$\pm 0.046$",
     {"dataset": "cbas/color", "shift": "concept", "variant": "batch2",
      "calibrator": "dirichlet", "metric": "accuracy"}, 0.58),
    ("good_shifts_rand", r"\textbf{0.33} $\small$\pm 0.022$",
     {"dataset": "webkb/university", "shift": "concept", "variant": "random2",
      "calibrator": "ensemble_temperature", "metric": "ece"}, 0.33),
    ("batch_vs_random", r"$0.429\pm0.0054$",
     {"dataset": "sst2/length", "shift": "covariate", "variant": "readout-random",
      "calibrator": "vector", "split": "ood_test", "metric": "ece"}, 0.429),
]  # fmt: skip


@pytest.mark.parametrize(("name", "line", "key", "value"), SAMPLE)
def test_a_sample_of_figures(name, line, key, value):
    entries = [e for e in printed.load(name)["entries"] if key.items() <= e.items()]
    assert [e["mean"] for e in entries] == [value]
    texts = list(SEED.glob("*.txt"))
    if not texts:
        pytest.skip("the paper's text is not at hand")
    text = texts[0].read_text()
    assert line in text
    assert printed.load(name)["label"] in text


def test_parameter_counts_are_exact(tmp_path):
    records = make("parameters", tmp_path).records
    printed = [r for r in records if r["paper"] is not None]
    assert len(printed) == 23
    assert all(r["mean"] == r["paper"] for r in printed)


def test_small_scale_leaves_out_what_takes_long():
    table = TABLES["size-shift"]
    for scale in ("small", "smoke", "paper"):
        variants = {}
        for setting, variant, _, _ in table.configs(scale, 1):
            variants.setdefault(f"{setting.data} {setting.conv}", set()).add(variant)
        for network, own in variants.items():
            assert (set(table.large) <= own) == (scale != "small" or network in table.quick)
            assert bool(set(table.large) & own) == (set(table.large) <= own)
            assert "gduq" in own
    assert set(table.quick) < {f"{s.data} {s.conv}" for s in table.settings}


def test_our_rows_are_the_head_recipe_on_a_network_that_cost_no_more():
    for table in ("node-shift", "size-shift"):
        for setting in TABLES[table].settings_at("small"):
            names = ("vanilla", "gduq", "gduq-pretrained")
            plain, ours, on_top = (setting.config(v, 0, "small") for v in names)
            assert ours.training.epochs < plain.training.epochs == on_top.training.epochs
            assert ours.method.recipe_name == on_top.method.recipe_name == "head"
            assert ours.model == plain.model
            assert [c.hash for c in requirements(on_top)] == [plain.hash]


def test_rows_of_the_paper_are_its_recipe_and_average():
    """Runs of a table are not calibrated: the table does that, and says with what."""
    for table in (t for t in TABLES.values() if t.producer is None):
        for setting, variant, _, config in table.configs("small", 1):
            assert config.method.calibrate == "none"
            if config.method.recipe != "paper":
                continue
            recipe = recipe_of(config, "node" if setting.on_nodes else "graph")
            assert (recipe.init, recipe.draws, recipe.masks) == ("random", 1, (0.0,))
            assert recipe.freeze == (variant == "pretrained")
            if variant != "ensemble":
                assert "mean_logits" in table.calibrators_of(variant, "small")
