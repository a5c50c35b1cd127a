"""RESULTS.md, README and picture say what the summary says, and the bars are judged right."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import results
from gduq import metrics
from gduq.calibration import TemperatureScaling
from gduq.prediction import Prediction
from results_bars import bars
from results_cells import KEYS, rounded
from results_choice import KEPT, choose, chosen_calibrator, crossed_nll
from results_html import html_page
from results_pages import pages
from results_picture import MARKS, data, picture
from results_readme import readme_block

ROOT = Path(__file__).parents[2]
README = f"# Title\n\n{results.BEGIN}stale\n{results.END}\n\nThe rest.\n"


# -- the repository's own -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def summary():
    path = ROOT / results.SUMMARY
    if not path.is_file():
        pytest.skip(
            "results/summary.json is not there yet: python benchmarks/results.py --root ..."
        )
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_record_has_these_keys(summary):
    assert summary["records"]
    assert {tuple(r) for r in summary["records"]} == {KEYS}
    assert all(r["mean"] is None or math.isfinite(r["mean"]) for r in summary["records"])
    cells = [tuple(r[k] for k in KEYS[:8]) for r in summary["records"]]
    assert len(set(cells)) == len(cells)


def skip_first_edition():
    """The figures on disk are measured again with the second edition (issue 17)."""
    if "first edition" in (ROOT / "RESULTS.md").read_text(encoding="utf-8")[:600]:
        pytest.skip("RESULTS.md is of the first edition, what makes it is of the second")


def test_the_bars_follow_from_the_records(summary):
    skip_first_edition()
    notes = results.read_notes(ROOT / results.NOTES)
    assert summary["bars"] == bars(summary, notes)


def test_every_page_says_what_the_summary_says(summary):
    skip_first_edition()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    made = results.files(summary, readme)
    for name, text in made.items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, f"{name}: make it again"
    pages_there = {f"results/{p.name}" for p in (ROOT / "results").glob("*.md")}
    assert pages_there <= set(made)


def test_one_page_holds_all_of_them(summary):
    """Every number of every page; links lead within it, and figures are part of it."""
    made = pages(summary)
    html = html_page(made, picture(summary), results.REPOSITORY)
    anchors = set(re.findall(r'<section id="([^"]+)"', html))
    assert len(anchors) == len(made)
    assert set(re.findall(r'href="#([^"]+)"', html)) <= anchors
    assert not re.findall(r'(?:href|src)="(?!#|data:)[^"]*"', html)
    there = set(re.findall(r"\d\.\d{3}", html))
    for text in made.values():
        rows = "\n".join(line for line in text.splitlines() if line.startswith("| "))
        assert set(re.findall(r"\d\.\d{3}", rows)) <= there
    assert html.count("<table>") == sum(text.count("\n|---") for text in made.values())


def test_figures_of_tables_are_there(summary):
    for name in (figure for table in summary["tables"] for figure in table["figures"]):
        assert (ROOT / "results" / name).is_file()


def test_nothing_is_of_smoke_scale(summary):
    assert {r["scale"] for r in summary["records"]} <= {"small", "paper"}


# -- a summary made by hand -----------------------------------------------------------------------


def record(value, metric="ece", split="ood_test", **more):
    where = {"table": "graph-shift", "dataset": "d1", "shift": "covariate", "model": "gin"}
    method = {"variant": "vanilla", "calibrator": "none", "split": split, "metric": metric}
    values = {"mean": value, "std": 0.01, "seeds": 3, "paper": None, "scale": "small"}
    return {**where, **method, **values, "command": "gduq bench graph-shift", **more}


def methods(dataset, metric="ece", split="ood_test", **values):
    """Records of a cell: vanilla, t2, ts, ensemble, mcdropout, gduq ..., by name."""
    names = {"t2": ("vanilla", "t2"), "ts": ("vanilla", "temperature"),
             "pretrained": ("gduq-pretrained", "none"), "chosen": ("gduq", "chosen"),
             "vanilla_chosen": ("vanilla", "chosen")}  # fmt: skip
    made = []
    for name, value in values.items():
        variant, calibrator = names.get(name, (name.replace("_", "-"), "none"))
        made.append(record(value, metric, split, dataset=dataset, variant=variant,
                           calibrator=calibrator))  # fmt: skip
    return made


def table(name="graph-shift", settings=()):
    command = f"gduq bench {name} --scale small"
    head = {"name": name, "row": 4, "title": "Graphs", "labels": ["tab:x"], "made": True}
    cells = {"scale": "small", "command": command, "settings": [list(s) for s in settings]}
    return {**head, **cells, "note": "", "failures": [], "figures": [], "hours": 1.5}


def schedule(dataset):
    where = {"table": "graph-shift", "dataset": dataset, "shift": "covariate", "model": "gin"}
    size = {"scale": "small", "seeds": 3, "epochs": 50, "hidden": 64, "layers": 3, "lr": 0.001}
    size |= {"task": "graph", "weight_decay": 0.0}
    more = {"batch_size": 32, "select": "last", "limit": 3000, "rows": {"train": 100}}
    return {**where, **size, **more, "gduq": {"at": "readout"}, "unequal": {}}


def made_by_hand():
    records = []
    for i, dataset in enumerate(("d1", "d2", "d3")):
        records += methods(dataset, vanilla=0.3, t2=0.25, ts=0.2, ensemble=0.22, mcdropout=0.28,
                           gduq=0.1 + 0.1 * i)  # fmt: skip
        records += methods(dataset, "accuracy", vanilla=0.7, gduq=0.71)
    records[0]["paper"] = 0.4
    better = next(r for r in records if r["variant"] == "gduq" and r["metric"] == "ece")
    key = {k: better[k] for k in KEYS[:8]}
    tables = [table()]
    about = {"date": "2025-01-01", "versions": {"gduq": "0.1.0"}, "machine": "m", "cpu": "c",
             "runs": 3, "hours": 2.0}  # fmt: skip
    return {
        "about": about,
        "bars": bars({"records": records, "tables": tables}),
        "schedule": [schedule(d) for d in ("d1", "d2", "d3")],
        "choices": [],
        "tables": tables,
        "tests": [{**key, "versus": "vanilla, none", "verdict": "better", "p": 0.01}],
        "records": records,
    }


def test_the_summary_is_read_back_and_has_a_line_a_record():
    given = made_by_hand()
    text = results.to_json(given)
    assert json.loads(text) == given
    lines = [line.rstrip(",") for line in text.splitlines() if line.startswith('{"table"')]
    read = [json.loads(line) for line in lines]
    assert [r for r in read if tuple(r) == KEYS] == given["records"]


def test_counts_are_not_rounded():
    assert rounded(2001310.0) == 2001310.0
    assert rounded(1234567.8) == 1234600.0
    assert rounded(3) == 3
    counted = {**record(2001310.0, "parameters", "", table="parameters"), "paper": 2001310.0}
    page = pages({**made_by_hand(), "records": [counted], "tables": [table("parameters")]})
    assert "1 figures, 1 of them in the paper: 1 are equal" in page["RESULTS.md"]


def test_pages_change_with_a_record():
    given = made_by_hand()
    before = pages(given)
    given["records"][5]["mean"] = 0.1234
    after = pages(given)
    assert "**0.123** ± 0.010" in after["RESULTS.md"]
    assert before["RESULTS.md"] != after["RESULTS.md"]
    assert before["results/graph-shift.md"] != after["results/graph-shift.md"]


def test_only_what_stands_between_the_marks_is_replaced():
    made = results.files(made_by_hand(), README)["README.md"]
    assert made.startswith("# Title\n\n")
    assert made.endswith("\n\nThe rest.\n")
    assert "stale" not in made
    assert (
        "| all | 3 | 0.300 | 0.250 | **0.200** | 0.280 | 0.220 | **0.200** | 0.700 → 0.710 |"
        in made
    )
    assert results.files(made_by_hand(), made)["README.md"] == made


def test_a_readme_without_marks_is_an_error():
    with pytest.raises(results.InputError, match="marks of the results"):
        results.files(made_by_hand(), "# Title\n")


def test_bold_is_what_the_test_says_better():
    page = pages(made_by_hand())["RESULTS.md"]
    line = next(line for line in page.splitlines() if "**G-ΔUQ**" in line)
    assert "**0.100** ± 0.010" in line  # d1, which has a verdict
    lines = [line for line in page.splitlines() if "**G-ΔUQ**" in line]
    assert "| 0.200 ± 0.010 |" in lines[1]  # d2, which has none


def test_the_paper_stands_beside():
    assert "0.300 ± 0.010 [0.4]" in pages(made_by_hand())["results/graph-shift.md"]


def test_tables_not_made_are_named_with_their_command():
    given = made_by_hand()
    given["tables"].append({**table("rotation"), "made": False})
    made = pages(given)
    assert "`gduq bench rotation --scale small`: not run." in made["RESULTS.md"]
    assert "results/rotation.md" not in made


def test_the_picture_has_a_mark_a_number():
    given = made_by_hand()
    drawn = data(given)
    assert [len(values) for values in drawn.values()] == [5, 5, 5]
    svg = picture(given)
    marks = svg.count("<circle") + svg.count("<polygon")
    assert marks == 3 * 5 + len(MARKS)
    assert "d1 covariate · gin" in svg


def test_without_numbers_the_block_says_so():
    given = {**made_by_hand(), "records": []}
    assert readme_block(given) == "\nNot measured yet.\n"


# -- bars -----------------------------------------------------------------------------------------


def judged(records, tables=(), more=None, **notes):
    summary = {"records": records, "tables": tables, **(more or {})}
    return {bar["name"]: bar for bar in bars(summary, notes)}


def test_a_share_counts_cells_and_names_those_lost():
    records = [r for i in range(7) for r in methods(f"d{i}", vanilla=0.3, gduq=0.2)]
    records += methods("lost", vanilla=0.2, gduq=0.2)  # equal is not lower
    bar = judged(records)["ece-vanilla"]
    assert bar["parts"][0]["value"] == 0.875
    assert bar["met"] is True
    assert bar["losing"] == [{"cell": "lost covariate, gin", "ours": 0.2, "theirs": 0.2}]
    worse = judged([*records, *methods("lost2", vanilla=0.2, gduq=0.3)])["ece-vanilla"]
    assert worse["met"] is False


def test_no_worse_takes_equal_ones():
    records = methods("d", "nll", "id_test", vanilla=0.5, gduq=0.5)
    records += methods("d", vanilla=0.2, gduq=0.1)
    assert judged(records)["id-nll"]["met"] is True


def test_networks_of_a_dataset_and_shift_are_one_cell_and_are_also_shown_alone():
    records = methods("d", vanilla=0.3, gduq=0.1)
    records += [{**r, "model": "gcn"} for r in methods("d", vanilla=0.3, gduq=0.31)]
    bar = judged(records)["ece-vanilla"]
    cells, alone = bar["parts"]
    assert (cells["value"], alone["value"]) == (1.0, 0.5)
    assert (cells["wanted"], alone["wanted"]) == (0.85, None)
    assert [lost["cell"] for lost in bar["losing"]] == ["d covariate, gcn"]


def test_accuracies_of_a_cell_are_means_of_its_networks_too():
    records = methods("d", "accuracy", vanilla=0.5, gduq=0.6)
    records += [{**r, "model": "gcn"} for r in methods("d", "accuracy", vanilla=0.5, gduq=0.46)]
    bar = judged(records)["ood-accuracy"]
    assert [p["value"] for p in bar["parts"]] == [pytest.approx(v) for v in (0.03, 0.03, -0.04)]
    assert bar["met"] is True


def test_one_bad_cell_fails_the_accuracy():
    records = [r for i in range(9) for r in methods(f"d{i}", "accuracy", vanilla=0.5, gduq=0.6)]
    assert judged(records)["ood-accuracy"]["met"] is True
    records += methods("bad", "accuracy", vanilla=0.5, gduq=0.47)
    bar = judged(records)["ood-accuracy"]
    assert [p["met"] for p in bar["parts"]] == [True, False, None]
    assert bar["met"] is False


def test_what_was_not_measured_is_neither_met_nor_missed():
    assert {bar["met"] for bar in judged([]).values()} == {None}


def cost(kind, seconds, **more):
    return record(seconds, f"{kind}_seconds", "", **more)


def timing(seconds, step="train", variant="gduq", dataset="x"):
    """A record of the table that measures in one process."""
    where = {"table": "runtime", "dataset": dataset, "shift": "", "variant": variant}
    return record(seconds, f"{step}_seconds", "", **where)


def side_by_side(ours, step, dataset="x"):
    return [timing(100.0, step, "vanilla", dataset), timing(ours, step, dataset=dataset)]


def test_the_ensemble_is_beaten_only_at_the_cost_of_one_network():
    records = methods("d1", ensemble=0.2, gduq=0.2)
    for step in ("train", "predict"):
        records += side_by_side(110.0, step)
    assert judged(records)["ensemble"]["met"] is True
    for step, kept in (("train", [False, True]), ("predict", [True, False])):
        bar = judged([*records, *side_by_side(200.0, step, "y")])["ensemble"]
        asked = [p["met"] for p in bar["parts"] if p["unit"] == "ratio" and p["wanted"]]
        assert asked == kept
        assert bar["met"] is False


def test_costs_are_measured_in_one_process_and_those_of_all_runs_stand_beside():
    records = methods("d1", ensemble=0.2, gduq=0.2)
    for kind in ("train", "predict"):
        records += [cost(kind, 100.0), cost(kind, 250.0, variant="gduq")]
    assert judged(records)["ensemble"]["met"] is None  # nothing was measured in one process
    for step in ("train", "predict"):
        records += [*side_by_side(110.0, step), *side_by_side(120.0, step, "y")]
    bar = judged(records)["ensemble"]
    assert bar["met"] is True
    found = {p["what"]: (p["value"], p["wanted"]) for p in bar["parts"] if p["unit"] == "ratio"}
    assert found == {
        "the training time of one network (in one process, all datasets together)": (1.15, 1.3),
        "the training time of one network on the dataset where it is most": (1.2, None),
        "the training time of one network (all runs, on a shared machine)": (2.5, None),
        "the prediction time of one network (in one process, all datasets together)": (1.15, 1.2),
        "the prediction time of one network on the dataset where it is most": (1.2, None),
        "the prediction time of one network (all runs, on a shared machine)": (2.5, None),
    }


def head_beside(seconds):
    return [timing(100.0, variant="vanilla"), timing(seconds, variant="gduq-pretrained")]


def test_pretrained_is_held_against_its_own_frozen_network():
    records = [*methods("d1", vanilla=0.3, pretrained=0.2), *head_beside(5.0)]
    assert judged(records)["pretrained"]["met"] is True
    own = record(0.1, variant="gduq-pretrained base")
    assert judged([*records, own])["pretrained"]["met"] is False


def test_pretrained_has_a_tenth_of_the_time():
    records = methods("d1", vanilla=0.3, pretrained=0.2)
    for seconds, met in ((10.0, True), (11.0, False)):
        bar = judged([*records, *head_beside(seconds)])["pretrained"]
        costs = [(p["value"], p["wanted"]) for p in bar["parts"] if p["unit"] == "ratio"]
        assert costs == [(seconds / 100, 0.1), (seconds / 100, None), (None, None)]
        assert bar["met"] is met


def detection(count, plain=(), **scores):
    """The bar, from AUROCs on corrupted validation rows (one for all settings) and on test rows."""
    settings = [(f"d{i}", "covariate", "gin") for i in range(count)]
    records = [r for i in range(count) for r in methods(f"d{i}", "auroc", vanilla=0.6, gduq=0.5)]
    for score, (corrupted, values) in scores.items():
        metric = "auroc" if score == "msp" else f"auroc_{score}"
        for i, value in enumerate(values):
            records += methods(f"d{i}", metric, gduq=value)
            records += methods(f"d{i}", metric, "corrupted", gduq=corrupted)
    for score, (corrupted, value) in dict(plain).items():
        for i in range(count):
            records += methods(f"d{i}", f"auroc_{score}", vanilla=value)
            records += methods(f"d{i}", f"auroc_{score}", "corrupted", vanilla=corrupted)
    return judged(records, [table("ood-detection", settings)])["detection"]


def test_detection_is_judged_with_one_score_for_all():
    split = detection(8, entropy=(0.6, [0.7] * 4 + [0.5] * 4), energy=(0.5, [0.5] * 4 + [0.7] * 4))
    one, strong, best = split["parts"]
    assert (one["value"], best["value"]) == (4.0, 8.0)
    assert strong["wanted"] is best["wanted"] is None
    assert "entropy (chosen on corrupted validation rows)" in one["what"]
    assert split["met"] is False
    assert detection(8, energy=(0.5, [0.7] * 6 + [0.5] * 2))["met"] is True
    assert detection(5, energy=(0.5, [0.7] * 5))["met"] is False  # six are wanted, of how many ever


def test_no_score_is_chosen_on_the_test():
    best_there = detection(8, knn=(0.4, [0.9] * 8), mahalanobis=(0.6, [0.5] * 8))
    assert "mahalanobis" in best_there["parts"][0]["what"]
    assert (best_there["met"], best_there["parts"][2]["value"]) == (False, 8.0)


def test_vanilla_may_choose_its_score_too():
    bar = detection(8, plain={"energy": (0.9, 0.8)}, knn=(0.6, [0.7] * 8))
    assert bar["met"] is True  # against confidence, as in the paper
    assert bar["parts"][1]["value"] == 0.0
    assert "energy" in bar["parts"][1]["what"]


def test_a_score_that_a_setting_lacks_is_not_chosen():
    bar = detection(8, knn=(0.9, [0.9] * 7), energy=(0.6, [0.7] * 8))
    assert "energy" in bar["parts"][0]["what"]


def test_without_corrupted_rows_the_default_is_judged():
    records = methods("d", "auroc", vanilla=0.6, gduq=0.5)
    records += methods("d", "auroc_energy", gduq=0.9)
    tables = [table("ood-detection", [("d", "covariate", "gin")])]
    judged_part = judged(records, tables)["detection"]["parts"][0]
    assert judged_part["value"] == 0.0
    assert "msp (the default" in judged_part["what"]


def errors(count=8, chosen=True):
    """Ours is best by disagreement, vanilla by its average confidence, on corrupted rows."""
    records = methods("d0", vanilla=0.2, gduq=0.1)
    for i in range(count):
        found = {"gep_error": {"vanilla": (0.2, 0.2), "gduq": (0.3, 0.1)},
                 "gep_error_average_confidence": {"vanilla": (0.1, 0.3)},
                 "gep_error_disagreement": {"gduq": (0.1, 0.2 if i < 6 else 0.4)}}  # fmt: skip
        for metric, sides in found.items():
            records += methods(f"d{i}", metric, **{side: v[1] for side, v in sides.items()})
            if chosen:
                copies = {side: v[0] for side, v in sides.items()}
                records += methods(f"d{i}", metric, "corrupted", **copies)
    settings = [(f"d{i}", "covariate", "gin") for i in range(count)]
    return judged(records, [table("error-prediction", settings)])["error-prediction"]


def test_error_prediction_counts_smaller_errors():
    bar = errors()
    assert (bar["parts"][0]["value"], bar["met"], len(bar["losing"])) == (6.0, True, 2)
    assert bar["losing"][0] == {"cell": "d6 covariate, gin", "ours": 0.4, "theirs": 0.3}
    ours, theirs = bar["parts"][0]["what"].split(" against ")
    assert "disagreement (chosen on corrupted" in ours
    assert "average confidence (chosen on corrupted" in theirs
    assert (bar["parts"][1]["value"], bar["parts"][1]["wanted"]) == (8.0, None)
    assert errors(chosen=False)["parts"][0]["value"] == 8.0  # by the paper's threshold


def test_the_stronger_control_stands_beside_temperature_scaling():
    records = [*methods("d1", ts=0.3, gduq=0.2), *methods("d2", ts=0.3, gduq=0.2)]
    copies = {"calibrator": "temperature+corrupted"}
    records += [record(0.1, dataset="d1", **copies), record(0.25, dataset="d2", **copies)]
    records += [record(0.05, dataset=d, variant="gduq", **copies) for d in ("d1", "d2")]
    bar = judged(records)["ece-ts"]
    assert [(p["value"], p["wanted"]) for p in bar["parts"][-2:]] == [(0.5, None), (1.0, None)]
    assert bar["met"] is True
    page = pages({**made_by_hand(), "records": records})["RESULTS.md"]
    assert "|  | vanilla, temperature scaling on clean and corrupted rows | – | 0.100" in page


def test_verdicts_of_the_paired_test_are_counted():
    records = [r for i in range(3) for r in methods(f"d{i}", vanilla=0.3, gduq=0.2)]
    ours = [r for r in records if r["variant"] == "gduq"]
    said = [{**{k: r[k] for k in KEYS[:8]}, "versus": "vanilla, none", "verdict": v, "p": 0.01}
            for r, v in zip(ours, ("better", "better", "worse"), strict=True)]  # fmt: skip
    parts = judged(records, more={"tests": said})["ece-vanilla"]["parts"]
    assert (parts[-1]["value"], parts[-1]["wanted"]) == (2.0, None)
    assert parts[-1]["what"] == "networks better and 1 worse by the paired test"


def test_a_note_stands_beside_its_bar():
    records = methods("d1", vanilla=0.1, gduq=0.2)
    found = judged(records, **{"ece-vanilla": " Why. "})
    assert found["ece-vanilla"]["note"] == "Why."
    with pytest.raises(ValueError, match="which is no bar"):
        judged(records, nonsense="?")


# -- the choice of a calibrator -------------------------------------------------------------------


def overconfident(rows=400, seed=0, scale=5.0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(rows, 3)) * 1.5
    odds = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    target = np.array([generator.choice(3, p=p) for p in odds])
    return Prediction(torch.tensor(logits * scale), target=torch.tensor(target))


def fit_temperature(p):
    return lambda seen: TemperatureScaling().fit(p, rows=seen)


def test_the_score_is_that_of_rows_not_fitted_on():
    p, used = overconfident(101), []
    numbered = Prediction(p.samples, target=p.target, features=torch.arange(101.0)[:, None])

    def fit(seen):
        def held_out(q):
            used.append((set(seen.tolist()), set(q.features.flatten().long().tolist())))
            return q

        return held_out

    score = crossed_nll(numbered, [numbered], fit)
    assert score == pytest.approx(metrics.nll(p))  # the identity, whatever it was fitted on
    assert len(used) == 4  # two halves, clean and corrupted
    for seen, held in used:
        assert not seen & held
    assert set.union(*(held for _, held in used)) == set(range(101))


def test_half_of_the_score_is_that_of_corrupted_copies():
    p, copies = overconfident(100), [overconfident(100, seed=1), overconfident(100, seed=2)]
    score = crossed_nll(p, copies, lambda seen: lambda q: q)
    spoilt = sum(metrics.nll(copy) for copy in copies) / 2
    assert score == pytest.approx((metrics.nll(p) + spoilt) / 2)


def test_what_does_not_hold_up_on_copies_is_not_chosen():
    p, spoilt = overconfident(scale=0.5), overconfident(scale=20.0)
    fit = fit_temperature(p)  # sharpens, as the clean rows ask for

    def scores(copies):
        none = crossed_nll(p, copies, lambda seen: lambda q: q)
        return {"none": none, "temperature": crossed_nll(p, copies, fit)}

    for copies, best in (([], "temperature"), ([spoilt], "none")):
        assert choose(["none", "temperature"], scores(copies).__getitem__) == best


def by_heart(p):
    """A calibrator that is perfect on the rows it was fitted on and certain elsewhere."""

    def fit(seen):
        known = {tuple(row) for row in p.logits[seen].tolist()}

        def predict(q):
            there = [tuple(row) in known for row in q.logits.tolist()]
            label = torch.where(torch.tensor(there), q.target, 0)
            sure = 9.0 * torch.nn.functional.one_hot(label, 3).double()
            return Prediction(sure, target=q.target)

        assert metrics.accuracy(predict(p[seen])) == 1.0
        return predict

    return fit


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_what_was_learnt_by_heart_is_not_chosen(scale):
    p = overconfident(scale=scale)
    scores = {"by heart": crossed_nll(p, [], by_heart(p)), "none": metrics.nll(p)}
    assert choose(list(scores), scores.__getitem__) == "none"


def test_temperature_is_chosen_for_the_overconfident():
    p = overconfident()
    scores = {"none": metrics.nll(p), "temperature": crossed_nll(p, [], fit_temperature(p))}
    assert choose(list(scores), scores.__getitem__) == "temperature"


def test_what_cannot_be_fitted_on_half_is_not_chosen():
    def fit(seen):
        raise results.InputError("more rows", len(seen))

    assert crossed_nll(overconfident(10), [], fit) == math.inf


# -- from runs on disk ----------------------------------------------------------------------------


def run_of(root, variant):
    """The run of the first seed: its config's method tells which."""
    asked = {"gduq": 3, "gduq-pretrained": 4}
    found = {}
    for path in sorted(root.glob("*/config.json")):
        config = json.loads(path.read_text())
        if config["method"]["kind"] == "anchored":
            found[config["training"]["epochs"]] = path.parent
    return found[asked[variant]]


@pytest.fixture(scope="module")
def bench_root(tmp_path_factory):
    """A table of its own with few, short runs, made as `gduq bench` makes them."""
    from dataclasses import replace

    from gduq.paper import bench, specs, tables

    root = tmp_path_factory.mktemp("bench")
    small = replace(
        tables.TABLES["node-shift"],
        smoke=tables.TABLES["node-shift"].smoke[:1],
        variants=("gduq", "gduq-pretrained"),
        calibrators=("cagcn",),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tables.TABLES, "node-shift", small)
        patch.setitem(specs.SCALES, "smoke", replace(specs.SCALES["smoke"], node_epochs=4))
        bench.bench("node-shift", "smoke", root, workers=0, seeds=1, progress=False)
        yield root, small


def collected(bench_root):
    import results_collect

    root, small = bench_root
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results_collect, "TABLES", {"node-shift": small})
        return results_collect.collect([root], ["smoke"])


def test_collecting_keeps_the_table_and_adds_what_it_lacks(bench_root):
    given = collected(bench_root)
    assert {tuple(r) for r in given["records"]} == {KEYS}
    root, _ = bench_root
    known = json.loads((root / "tables" / "node-shift-smoke.json").read_text())["records"]
    index = {tuple(r[k] for k in KEYS[:8]): r for r in given["records"]}
    for r in known:
        found = index[tuple(r[k] for k in KEYS[:8])]
        assert found["mean"] == pytest.approx(r["mean"], rel=1e-4)
    there = {(r["variant"], r["calibrator"], r["split"], r["metric"]) for r in given["records"]}
    for variant in ("vanilla", "ensemble", "mcdropout", "gduq"):
        assert (variant, "none", "", "train_seconds") in there
        for metric in ("accuracy", "ece", "ece100", "nll", "brier", "aurc"):
            assert {(variant, "none", s, metric) for s in ("id_test", "ood_test")} <= there
    assert {
        ("vanilla", "chosen", "ood_test", "ece"),
        ("gduq", "chosen", "ood_test", "ece"),
    } <= there


def test_a_table_made_with_other_settings_is_refused(bench_root):
    from dataclasses import replace

    root, small = bench_root
    changed = replace(small, smoke=(replace(small.smoke[0], lr=0.5),))
    with pytest.raises(results.InputError, match="made with the settings of now"):
        collected((root, changed))


def test_schedules_say_what_is_equal(bench_root):
    (only,) = collected(bench_root)["schedule"]
    assert (only["epochs"], only["hidden"], only["seeds"]) == (4, 16, 1)
    assert only["rows"]["ood_test"] == 140
    assert only["below"] == {"gduq": 3, "gduq-pretrained": 4}
    assert only["unequal"] == {
        "gduq": {"epochs": "a head on top of 3 of a plain network"},
        "gduq-pretrained": {"epochs": "a head on top of 4 of a plain network"},
    }
    assert only["gduq"] == {"recipe": "head"}


def test_a_cell_of_two_tables_names_the_exceptions_of_both():
    from results_collect import _once

    first = {**schedule("d1"), "below": {"gduq": 45}, "unequal": {"readout": {"lr": 1}}}
    extra = {"gduq-pretrained": {"epochs": "more"}}
    second = {**first, "below": {"gduq-pretrained": 50}, "unequal": extra}
    (only,) = _once([first, second])
    assert only["below"] == {"gduq": 45, "gduq-pretrained": 50}
    assert set(only["unequal"]) == {"readout", "gduq-pretrained"}
    given = {**made_by_hand(), "schedule": [only]}
    assert "| 45 | 50 |" in pages(given)["results/schedule.md"]
    assert " gduq puts an anchored head on a plain network" in pages(given)["RESULTS.md"]
    assert "trained a little shorter" in readme_block(given)
    assert "trained a little shorter" not in readme_block(made_by_hand())


def test_only_the_pretrained_network_was_paid_for_before(bench_root):
    root, _ = bench_root
    costs = {r["variant"]: r["mean"] for r in collected(bench_root)["records"]
             if r["metric"] == "train_seconds"}  # fmt: skip
    for variant, kinds in (("gduq", ("train", "plain")), ("gduq-pretrained", ("train",))):
        seconds = json.loads((run_of(root, variant) / "info.json").read_text())["seconds"]
        assert seconds["plain"] > 0
        assert costs[variant] == pytest.approx(sum(seconds[k] for k in kinds), rel=1e-4)


def test_collected_pages_are_whole(bench_root, tmp_path):
    given = collected(bench_root)
    given["bars"] = bars(given)
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    written = results.write(given, tmp_path)
    assert {"RESULTS.md", "results/node-shift.md", results.SUMMARY, results.PICTURE} <= set(written)
    stored = json.loads((tmp_path / results.SUMMARY).read_text(encoding="utf-8"))
    again = results.files(stored, (tmp_path / "README.md").read_text(encoding="utf-8"))
    assert again == {name: (tmp_path / name).read_text(encoding="utf-8") for name in written}
    assert "None" not in again["RESULTS.md"]
    assert "nan" not in again["RESULTS.md"]


def test_a_folder_without_tables_is_an_error(tmp_path, capsys):
    assert results.main(["--root", str(tmp_path), "-o", str(tmp_path)]) == 2
    assert "expected tables of scale paper or small" in capsys.readouterr().err


def test_the_chosen_calibrator_never_sees_a_test_row(bench_root):
    from gduq.runs.folder import RunFolder

    root, _ = bench_root
    folders = [RunFolder(path.parent) for path in sorted(root.glob("*/finished"))]
    folder = next(f for f in folders if "cagcn" in f.scores and f.config.method.kind == "vanilla")
    names = ("none", "temperature", "temperature+corrupted", "cagcn")
    (folder.path / KEPT).unlink(missing_ok=True)
    first = chosen_calibrator(folder, names)
    kept = json.loads((folder.path / KEPT).read_text())
    assert set(kept["nll"]) == set(names[:3])  # cagcn reads the graph
    assert first in kept["nll"]
    for split in ("id_test", "ood_val", "ood_test"):  # labels that would make any choice absurd
        path = folder.path / "predictions" / f"{split}.npz"
        p = Prediction.from_npz(path)
        Prediction(p.samples, target=(p.label + 1) % p.num_classes).to_npz(path)
    (folder.path / KEPT).unlink()
    assert chosen_calibrator(folder, names) == first
    assert json.loads((folder.path / KEPT).read_text())["nll"] == pytest.approx(kept["nll"])


def test_a_choice_is_kept_until_the_rule_changes(bench_root):
    from gduq.runs.folder import RunFolder

    root, _ = bench_root
    folder = RunFolder(run_of(root, "gduq"))
    names = ("none", "temperature")
    chosen_calibrator(folder, names)
    path = folder.path / KEPT
    kept = json.loads(path.read_text())
    for name, other in (names, names[::-1]):
        absurd = {**kept, "nll": {name: -1.0, other: 9.0}}
        path.write_text(json.dumps(absurd))
        assert chosen_calibrator(folder, names) == name  # read, not made again
    path.write_text(json.dumps({**absurd, "version": -1}))
    chosen_calibrator(folder, names)
    assert json.loads(path.read_text())["nll"] == pytest.approx(
        {name: kept["nll"][name] for name in names}
    )
