"""The harness of all tables: jobs, files, resuming, printed figures, and the command."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

import gduq
from gduq.data import catalog
from gduq.errors import InputError
from gduq_reproduction.bench import BenchResult, bench
from gduq_reproduction.cells import CBAS, MOTIF_BASIS, comparison_cells, scaled
from gduq_reproduction.harness import Job, Store, long, run_jobs
from gduq_reproduction.layouts import LAYOUTS, load, shaped
from gduq_reproduction.methods import LAST, METHODS, Work
from gduq_reproduction.scoring import LEVELS, POST_HOC, work_rows
from gduq_reproduction.tables import TABLES, find_table
from tests.cli.cases import refused, run

FILES = sorted({layout.printed for layout in LAYOUTS.values()})
SEED = Path(__file__).parents[3] / "shared" / "seed"
TINY = replace(CBAS[0], epochs=8, hidden=8, head="mlp", dropout=0.2)


# -- figures ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return Work(TINY, 0, folder=tmp_path_factory.mktemp("networks"))


@pytest.fixture(scope="module")
def figures(work):
    methods = {"plain": (*LEVELS, *POST_HOC), "choose 1.2": (), "NFA": LEVELS, "novelty": ()}
    rows = [row for name, levels in methods.items() for row in work_rows(work, name, levels)]
    last = Work(work.cell, work.seed, last=True)
    return pd.DataFrame([*rows, *work_rows(last, f"plain{LAST}", ("none",))])


def test_every_method_has_every_calibration_and_measure(figures):
    tests = figures[figures["split"].isin(("id_test", "ood_test"))]
    shown = ["nll", "brier", "ece", "ece_debiased", "ece100", "aurc", "accuracy", "errors"]
    assert tests[shown].notna().all(axis=None)
    levels = tests.groupby(["method", "split"])["calibration"].apply(set)
    assert levels["plain", "ood_test"] == {*LEVELS, *POST_HOC}
    assert levels["NFA", "ood_test"] == set(LEVELS)
    assert {"T = 2", "density", "choose 1.2, tempered", "NFA, mean logits", "NFA, paper rule",
            "NFA, released rule", "plain, last epoch", "gebm", "gnnsafe", "novelty"} <= set(
        figures["method"]
    )  # fmt: skip
    cost = figures[figures["split"] == "training"].set_index("method")["cost"]
    assert cost["plain"] < cost["choose 1.2"]


def test_figures_are_those_of_the_library(figures, work):
    rows = figures.set_index(["method", "calibration", "split"])
    model = gduq.Network(work.plain)
    work.train(model, epochs=0)
    p = {split: gduq.predict(model, view) for split, view in work.views.items()}
    scaled = gduq.calibration.TemperatureScaling().fit(p["id_val"])(p["ood_test"])
    for level, q in (("none", p["ood_test"]), ("validation", scaled)):
        found = rows.loc[("plain", level, "ood_test")]
        assert found["nll"] == pytest.approx(gduq.metrics.nll(q), abs=1e-6)
        assert found["ece100"] == pytest.approx(gduq.metrics.ece(q, bins=100, strict=False))
    auroc = gduq.metrics.auroc(p["id_test"].novelty, p["ood_test"].novelty)
    assert rows.loc[("novelty", "novelty", "detection"), "auroc"] == pytest.approx(auroc)


def test_one_training_gives_both_choices_of_weights_and_goes_on(tmp_path):
    cell = replace(TINY, both=True, epochs=30, lr=0.3, patience=4, bank="id_val")
    found = {last: Work(cell, 0, last, tmp_path) for last in (False, True)}
    models = {last: METHODS["L1"](work) for last, work in found.items()}
    assert found[True].kept > 0  # the first call trained for both
    first, last = (m.state_dict() for m in models.values())
    assert not all(torch.equal(first[k], last[k]) for k in first if "running" in k)
    alone = Work(cell, 0)
    again = METHODS["L1"](alone).state_dict()
    assert all(torch.equal(first[k], again[k]) for k in first)  # whatever the folder holds
    rows = found[True].views["id_val"].rows
    for model in (models[True], METHODS["anchored ensemble"](found[True]).members[0]):
        read = model.point.prefix(found[True].like)[rows]
        assert all((read == anchor).all(dim=1).any() for anchor in model.bank)  # of validation rows


def test_encodings_may_be_all_that_there_is():
    cell = replace(scaled(MOTIF_BASIS, "paper")[0], limit=240, epochs=1, hidden=8, num_layers=2)
    assert METHODS["readout"](Work(cell, 0)).bank.shape == (10, 8)


def test_a_pretrained_network_gets_a_head_that_is_new_and_learns(work):
    recipe = gduq.Recipe.paper("node", at="readout", freeze=True)
    start = gduq.anchor(work.plain, recipe=recipe, like=work.like).state_dict()
    end, net = METHODS["pretrained"](work).state_dict(), work.plain.state_dict()
    changed = {name for name in start if not torch.equal(start[name], end.get(name, start[name]))}
    assert {n for n in start if "tail.rest" in n or n.startswith("linear.")} <= changed
    assert not any(".net." in name for name in changed)
    assert not torch.equal(start["point.tail.rest.2.weight"], net["head.rest.2.weight"])


# -- jobs and files --------------------------------------------------------------------------------


def made_up(work, job, fail=()):
    if job in fail:
        raise RuntimeError("no power")
    yield {"method": job, "calibration": "none", "split": "ood_test", "nll": 0.1 + work.seed}


def jobs(*names, **options):
    return [Job(TINY, seed, name, made_up, **options) for seed in (0, 1) for name in names]


def test_what_is_done_is_not_repeated(tmp_path):
    store = Store(tmp_path / "a.csv")
    first, failures = run_jobs(jobs("x", "y", options=(("y",),)), store, workers=0, progress=False)
    assert sorted(first["method"]) == ["x", "x"]
    assert len(failures) == 2
    assert "no power" in next(iter(failures.values()))
    again = jobs("x", "y", options=(("x",),))
    assert len(run_jobs(again, store, "x, seed", workers=0, progress=False)[0]) == 2
    second, failures = run_jobs(again, store, workers=0, progress=False)
    assert not failures  # x, which would fail now, is not done again
    assert len(second) == 4
    assert sorted(long(second)["value"]) == [0.1, 0.1, 1.1, 1.1]


def test_figures_of_other_settings_are_made_again(tmp_path):
    store = Store(tmp_path / "a.csv")
    for cell in (TINY, replace(TINY, seeds=2), replace(TINY, epochs=3)):
        job = Job(cell, 0, "x", made_up)
        assert (job.key in store.done()) == (cell.seeds == 2)
        run_jobs([job], store, workers=0, progress=False)
    assert len(store.read()) == 1  # the newest


def test_a_killed_call_goes_on(tmp_path):
    code = f"""
import time
from dataclasses import replace
from pathlib import Path
from gduq_reproduction.cells import CBAS
from gduq_reproduction.harness import Job, Store, run_jobs
from tests.reproduction.test_bench import TINY, made_up

def slow(work, job):
    if job == "b":
        time.sleep(600)
    yield from made_up(work, job)

run_jobs([Job(TINY, 0, n, slow) for n in "ab"], Store(Path({str(tmp_path / "t.csv")!r})), workers=0,
         progress=False)
"""
    root, store = Path(__file__).parents[2], Store(tmp_path / "t.csv")
    with subprocess.Popen([sys.executable, "-c", code], cwd=root) as call:
        while call.poll() is None and not store.path.exists():
            time.sleep(0.1)
        call.kill()
    assert [key[2] for key in store.done()] == ["a"]
    found, failures = run_jobs(
        [Job(TINY, 0, n, made_up) for n in "ab"], store, workers=0, progress=False
    )
    assert not failures
    assert sorted(found["method"]) == ["a", "b"]


def test_every_table_names_known_cells_and_methods():
    for name, table in TABLES.items():
        for scale in ("smoke", "small", "paper"):
            made = table.jobs(scale, None, Path())
            assert made, name
            assert len({job.key for job in made}) == len(made)
            for job in made:
                catalog.find(job.cell.data)
    assert len(comparison_cells("small")) == 31
    assert len(comparison_cells("paper")) == 13


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_made(name, tmp_path):
    if name == "molecules" and "GDUQ_DATA" not in os.environ:
        pytest.skip("GDUQ_DATA is not set: no tables of molecules")
    result = bench(name, "smoke", tmp_path, 1, workers=0, progress=False)
    assert not result.failures
    assert len(result.blocks()) >= 1
    assert (tmp_path / "tables" / f"{name}-smoke.md").is_file()


def test_a_table_has_the_papers_shape_and_its_figures():
    keys = {"cell": "cbas/color/concept gcn", "split": "ood_test"}
    numbers = {("plain", "none"): 0.5, ("NFA", "none"): 0.9, ("NFA, paper rule", "none"): 0.4,
               ("plain", "vector"): 0.8, ("plain", "vector, published"): 0.3}  # fmt: skip
    rows = [
        {**keys, "seed": s, "job": m, "settings": "", "method": f"{m}{end}", "calibration": c,
         "ece100": e + 0.01 * s + shift, "ece": 0.1}
        for s in (0, 1, 2) for (m, c), e in numbers.items() for end, shift in (("", 5), (LAST, 0))
    ]  # fmt: skip
    result = BenchResult("T12", "paper", long(pd.DataFrame(rows)), {"x": "Error: y"})
    as_paper, as_gduq = result.blocks().values()
    ours, theirs = (("concept", "ECE ↓", name) for name in ("No G-ΔUQ", "G-ΔUQ"))
    line = ("cbas/color", "✗")
    assert as_paper.cells[line, ours] == ["0.510 ± 0.010", "0.169 ± 0.013"]
    assert as_paper.cells[line, theirs] == ["__0.410__ ± 0.010", "0.151 ± 0.014"]  # second to VS
    assert as_paper.cells[("cbas/color", "VS"), ours][0] == "**0.310** ± 0.010"
    assert as_gduq.cells[line, theirs] == ["**0.100** ± 0.000"]  # of the mixture, in 15 bins
    assert len(as_paper.lines) == 4 * 9  # datasets and calibrators, as printed
    assert "- x: `Error: y`" in result.to_markdown()
    assert r"\underline{0.410} $\pm$ 0.010 \\ 0.151" in result.to_latex()
    assert r"\multicolumn{4}{c}{covariate}" in result.to_latex()


@pytest.mark.parametrize("number", LAYOUTS)
def test_printed_tables_have_a_place_for_every_figure(number):
    """A layout that lacked a key would put several figures into one cell."""
    layout = LAYOUTS[number]
    figures = pd.DataFrame(load(layout.printed)["entries"])
    shown = shaped(layout, figures)
    kept = all(figures[k].isin(v).all() for k, v in layout.keep.items())
    assert len(shown.cells) == len(figures) or not kept
    assert find_table(number).labels.count(number) == 1


# -- the paper's figures ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_printed_figures_are_sound(name):
    content = load(name)
    assert content["label"]
    keys = pd.DataFrame(content["entries"]).drop(columns=["mean", "std"])
    assert not keys.duplicated().any()
    for entry in content["entries"]:
        if entry["measure"] in ("accuracy", "ece100", "auroc_val", "gep_error"):
            assert 0 <= entry["mean"] <= 1


SAMPLE = [
    # table's label, a line of the seed text, what the data file has for it
    ("gengap", r"$\mathbf{0.030 \pm 0.026}$",
     {"dataset": "sst2/length", "shift": "covariate", "method": "pretrained"}, 0.03),
    ("gaussians", r"GOODSST2     & length     & covariate & -4.902",
     {"dataset": "sst2/length", "shift": "covariate", "measure": "min_mu"}, -4.902),
]  # fmt: skip


@pytest.mark.parametrize(("name", "line", "key", "value"), SAMPLE)
def test_a_sample_of_figures(name, line, key, value):
    entries = [e for e in load(name)["entries"] if key.items() <= e.items()]
    assert [e["mean"] for e in entries] == [value]
    texts = list(SEED.glob("*.txt"))
    if not texts:
        pytest.skip("the paper's text is not at hand")
    text = texts[0].read_text()
    assert line in text
    assert load(name)["label"] in text


def test_parameter_counts_are_exact(tmp_path):
    result = bench("parameters", root=tmp_path, workers=0, progress=False)
    cells = result.blocks()["T19"].cells.values()
    assert len(cells) == 23
    assert all(ours == theirs for ours, theirs in cells)


# -- the command -----------------------------------------------------------------------------------


def test_a_table_by_the_command(tmp_path):
    root, out = tmp_path / "bench", tmp_path / "t.csv"
    assert "2001310" in run("bench", "parameters", "--root", root, "--workers", 0, "-o", out).stdout
    assert len(pd.read_csv(out)) >= 23
    refused("bench", "parameters", "--root", root, "-o", out)


def test_mistakes_are_one_sentence(tmp_path):
    refused("bench", "size-shft")
    refused("bench", "size-shift", "--scale", "huge")
    refused("bench", "size-shift", "-o", tmp_path / "t.pdf")


def test_datasets_of_the_package_are_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(catalog, "entry_points", lambda group: ())
    catalog.families.cache_clear()
    try:
        with pytest.raises(InputError, match="reproduction"):
            catalog.load("cora-ml/word/concept")
    finally:
        catalog.families.cache_clear()
