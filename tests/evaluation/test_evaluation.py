"""`evaluate` against the functions it gathers: predictions of every kind."""

from __future__ import annotations

import json
import math
from functools import partial

import pytest
import torch

from gduq import conformal, metrics, ood
from gduq.calibration import METHODS, TemperatureScaling
from gduq.errors import InputError
from gduq.evaluation import Evaluation, evaluate
from gduq.evaluation.evaluation import COLUMNS
from gduq.ood import Abstention
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction
from tests.evaluation.cases import (
    CALIBRATORS,
    FAST,
    KINDS,
    NAN,
    draw_classes,
    draw_values,
    judged,
    numbers,
    part,
    splits_of,
)

pytestmark = pytest.mark.filterwarnings("ignore::gduq.conformal.ShiftWarning")

LABELS = ("accuracy", "balanced_accuracy", "roc_auc", "average_precision", "nll", "brier",
          "sharpness")  # fmt: skip
NAMES = {
    "classes": (*LABELS, "ece", "adaptive_ece", "classwise_ece", "aurc", "gap"),
    "labels": LABELS,
    "values": ("rmse", "mae", "r2", "nll", "crps", "miscalibration_area", "ence", "spearman",
               "aurc", "sharpness"),
}  # fmt: skip
OTHERS = {
    "classes": {
        "ece100": partial(metrics.ece, bins=100, strict=False),
        "ece_debiased": partial(metrics.ece, debias=True),
        "majority": metrics.majority,
    },
    "labels": {
        "ece": partial(metrics.ece, strict=False),
        "majority": metrics.majority,
    },
    "values": {f"{name}_{level}": partial(getattr(metrics, name), level=level / 100)
               for name in ("coverage", "width") for level in (50, 80, 90, 95)},
}  # fmt: skip


# -- what is in the table ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_measures_restate_the_functions(kind):
    predictions, found = judged(kind)
    for split, p in predictions.items():
        for name in NAMES[kind]:
            value, low, high = found.value(split, name)
            assert value == pytest.approx(getattr(metrics, name)(p))
            assert low <= value <= high
        for name, function in OTHERS[kind].items():
            assert found.value(split, name).value == pytest.approx(function(p))
    assert found.settings["about"] == kind


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in KINDS for name in CALIBRATORS[kind]]
)
def test_calibrated_rows_are_of_the_calibrated_predictions(kind, name):
    predictions, found = judged(kind)
    q = METHODS[name]().fit(predictions["id_val"])(predictions["ood_test"])
    assert found.value("ood_test", "nll", name).value == pytest.approx(metrics.nll(q))
    assert found.calibrators[name].fitted
    assert found.predictions["ood_test"] is predictions["ood_test"]


@pytest.mark.parametrize("kind", KINDS)
def test_ood_rows(kind):
    predictions, found = judged(kind)
    train, p_id = predictions["train"], predictions["id_test"]
    rows = part(found, kind="ood", calibrator="none")
    assert set(rows.variant) == {*p_id.ood_scores, "mahalanobis"}
    fitted = {"mahalanobis": ood.Mahalanobis().fit(train)}
    assert set(rows.split) == {"ood_val", "ood_test"}
    assert set(rows.against) == {"id_test"}
    for split in set(rows.split):
        for score in set(rows.variant):
            value = found.value(split, "auroc", variant=score).value
            by = fitted.get(score, score)
            assert value == pytest.approx(ood.auroc(p_id, predictions[split], by))
    calibrated = found.table[(found.table.kind == "ood") & (found.table.calibrator != "none")]
    # a calibrator does not change these
    assert not {"novelty", "mahalanobis"} & set(calibrated.variant)


def columns(kind: str, *names: str) -> list[tuple[str, ClassPrediction | ValuePrediction]]:
    """What thresholds are fitted and judged on: the prefix of its rows, and predictions."""
    predictions = judged(kind)[0]
    found = [predictions[name] for name in names]
    return [("b: ", *(p.column(1) for p in found))] if kind == "labels" else [("", *found)]


@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_error_prediction_rows(kind):
    found = judged(kind)[1]
    for prefix, p_val, p_test in columns(kind, "id_val", "ood_test"):
        expected = ood.predict_accuracy(p_val, p_test)
        error = abs(expected - metrics.accuracy(p_test))
        for measure, wanted in (("predicted_accuracy", expected), ("error", error)):
            value = found.value("ood_test", measure, variant=f"{prefix}threshold").value
            assert value == pytest.approx(wanted)
    assert part(judged("values")[1], kind="error prediction").empty


@pytest.mark.parametrize("kind", KINDS)
def test_conformal_rows(kind):
    found = judged(kind)[1]
    names = {"classes": ("lac", "aps", "class_conditional"), "labels": ("lac", "class_conditional"),
             "values": ("absolute", "normalised", "cqr")}[kind]  # fmt: skip
    size = "width" if kind == "values" else "set_size"
    for prefix, p_val, *tests in columns(kind, "id_val", "id_test", "ood_test"):
        for name in names:
            fitted = conformal.make(p_val, name, alpha=0.1).fit(p_val)
            for split, p in zip(("id_test", "ood_test"), tests, strict=True):
                sets, wanted = fitted(p), {"split": split, "variant": prefix + name}
                got = numbers(found, kind="conformal", calibrator="none", **wanted)
                assert got["coverage"] == pytest.approx(sets.coverage)
                expected = float(sets.size.double().mean())
                assert got[size] == pytest.approx(expected)
                assert got["shift_pvalue"] == pytest.approx(sets.shift.pvalue)
                value, low, high = found.value(split, "coverage", variant=prefix + name)
                assert low <= value <= high
    if kind == "labels":
        kinds = {f"{label}: {name}" for label in "abc" for name in names}
        assert set(part(found, kind="conformal").variant) == kinds


@pytest.mark.parametrize("kind", KINDS)
def test_abstention_rows(kind):
    found = judged(kind)[1]
    wishes = {"coverage": 0.8, "accuracy": 0.9}
    for prefix, p_val, p_test in columns(kind, "id_val", "ood_test"):
        # of values there is no accuracy to wish for
        for wish in ("coverage",) if kind == "values" else wishes:
            decision = Abstention(**{wish: wishes[wish]}).fit(p_val)(p_test)
            got = numbers(found, kind="abstention", split="ood_test", calibrator="none",
                          variant=f"{prefix}{wish}={wishes[wish]}")  # fmt: skip
            measure = "rmse" if kind == "values" else "accuracy"
            expected = {
                "coverage": decision.coverage,
                measure: getattr(metrics, measure)(decision.p[decision.kept]),
            }
            assert got == pytest.approx(expected)
    if kind == "values":
        assert set(part(found, kind="abstention").variant) == {"coverage=0.8"}


def test_nothing_kept_has_no_accuracy_and_no_error():
    wrong = {name: ClassPrediction(p.samples, target=(p.label + 1) % 3)
             for name, p in judged("classes")[0].items()}  # fmt: skip
    got = numbers(evaluate(wrong, abstain={"accuracy": 0.9}, **FAST), kind="abstention",
                  split="id_test")  # fmt: skip
    assert got == pytest.approx({"coverage": 0.0, "accuracy": NAN}, nan_ok=True)
    sure, unsure = draw_values(30, 0), draw_values(20, 1)
    wide = unsure.with_samples(unsure.samples + torch.tensor([0.0, 9.0]))
    got = numbers(evaluate({"id_val": sure, "id_test": wide}, **FAST), kind="abstention")
    assert got == pytest.approx({"coverage": 0.0, "rmse": NAN}, nan_ok=True)


def test_several_values_are_blocks_by_name():
    p = splits_of("values", width=2)
    found = evaluate(p, calibrators=["deviation"], **FAST)
    alone = evaluate({s: q.column(1) for s, q in p.items()}, calibrators=["deviation"], **FAST)
    assert set(part(found, kind="metrics").variant) == {"v0", "v1"}
    assert set(part(found, kind="abstention").variant) == {"v0: coverage=0.8", "v1: coverage=0.8"}
    ranked = {"novelty", "mahalanobis"}
    ranked |= {f"v{t}: {s}" for t in (0, 1) for s in ("std", "epistemic")}
    assert set(part(found, kind="ood").variant) == ranked  # a row is strange or not
    for calibrator in ("none", "deviation"):
        for measure, variant in (("rmse", ""), ("width", "cqr")):
            one = found.value("id_test", measure, calibrator, f"v1: {variant}".rstrip(": "))
            other = alone.value("id_test", measure, calibrator, variant)
            assert one == pytest.approx(other, nan_ok=True)


# -- the gap between promise and truth ---


def test_the_gap_of_labels_is_a_mean_over_labels():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(90, 2, generator=generator)
    y = (torch.rand(90, 2, generator=generator) < z.sigmoid()).float()
    y[:9, 0] = NAN
    p = LabelPrediction(2 * z, y, ("a", "b"))
    found = evaluate({"id_test": p}, **FAST)
    each = [found.value("id_test", "gap", variant=name).value for name in "ab"]
    assert each[0] == pytest.approx(metrics.gap(p.column(0)))
    assert found.value("id_test", "gap").value == pytest.approx(sum(each) / 2)


def test_the_gap_of_values_ends_where_coverage_does():
    """All of 50 rows lie in their intervals: more such rows may miss, and the gap says so too."""
    p = ValuePrediction(torch.zeros(50, 2), target=torch.zeros(50))
    found = evaluate({"id_test": p}, **FAST)
    held, off = found.value("id_test", "coverage_90"), found.value("id_test", "gap")
    assert held.value == 1.0
    assert held.low < 0.95
    assert off == pytest.approx((0.9 - held.value, 0.9 - held.high, 0.9 - held.low))


def test_rows_that_are_all_right_have_an_interval_of_the_gap():
    p = ClassPrediction(4 * torch.eye(2).repeat(20, 1), torch.tensor([0, 1] * 20))
    found = evaluate({"id_test": p}, **FAST)
    right, off = found.value("id_test", "accuracy"), found.value("id_test", "gap")
    assert off.high - off.low == pytest.approx(right.high - right.low)


# -- calibrators and thresholds ----------------------------------------------------------------


def test_validation_and_training_are_not_judged_by_what_was_fitted_on_them():
    table = judged("classes")[1].table
    fitted = table[table.kind.isin(["conformal", "abstention", "error prediction"])]
    assert set(fitted.split) == {"id_test", "ood_val", "ood_test"}
    assert set(fitted.against) == {"id_val"}


def test_no_row_serves_a_calibrator_and_a_threshold():
    predictions, found = judged("classes")
    order = torch.randperm(120, generator=torch.Generator().manual_seed(0))
    p_val, p_test = predictions["id_val"], predictions["id_test"]
    cal = TemperatureScaling().fit(p_val[order[:60]])
    rest, q = cal(p_val[order[60:]]), cal(p_test)
    sets = conformal.SplitConformal(alpha=0.1).fit(rest)(q)
    assert found.value("id_test", "set_size", "temperature", "lac").value == float(
        sets.size.double().mean()
    )
    value = found.value("id_test", "predicted_accuracy", "temperature", "threshold").value
    assert value == pytest.approx(ood.predict_accuracy(rest, q))
    kept = Abstention(coverage=0.8).fit(rest)(q).coverage
    got = numbers(found, kind="abstention", split="id_test", calibrator="temperature",
                  variant="coverage=0.8")  # fmt: skip
    assert got["coverage"] == pytest.approx(kept)
    ready = TemperatureScaling().fit(p_test)  # comes fitted: thresholds take all of id_val
    given = evaluate(predictions, calibrators=[ready], **FAST)
    sets = conformal.SplitConformal(alpha=0.1).fit(ready(p_val))(ready(p_test))
    assert given.value("id_test", "set_size", "temperature", "lac").value == float(
        sets.size.double().mean()
    )


def test_what_cannot_be_fitted_is_skipped_with_its_reason():
    predictions = judged("classes")[0]
    some = {"id_val": predictions["id_val"], "id_test": predictions["id_test"]}
    found = evaluate(some, calibrators=["gats", "temperature"], **FAST)
    assert set(found.calibrators) == {"temperature"}
    assert "a node task on one graph" in found.settings["skipped"]["gats"]
    assert Evaluation.from_json(found.to_json()).settings["skipped"] == found.settings["skipped"]
    absent = {"id_val": some["id_val"][some["id_val"].target != 2], "id_test": some["id_test"]}
    names = ["vector", "dirichlet"]
    found = evaluate(absent, calibrators=names, **FAST)
    assert list(found.calibrators) == names
    assert not found.settings["skipped"]
    few = {"id_val": predictions["id_val"][:10], "id_test": predictions["id_test"]}
    found = evaluate(few, calibrators=["spline"], **FAST)  # half of them are too few
    assert "knots" in found.settings["skipped"]["spline: thresholds"]
    assert set(part(found, calibrator="spline").kind) == {"metrics"}
    found = evaluate(judged("values")[0], calibrators=["temperature"], **FAST)
    assert "values" in found.settings["skipped"]["temperature"]
    found = evaluate(some, calibrators=["temperature+corrupted"], **FAST)  # no model to copy for
    assert "corrupted" in found.settings["skipped"]["temperature+corrupted"]


# -- less than everything ----------------------------------------------------------------------


def test_one_prediction():
    p = draw_classes(60, 0)
    found = evaluate(p, **FAST)
    assert set(found.table.kind) == {"metrics"}
    assert found.value("test", "accuracy").value == metrics.accuracy(p)


def test_splits_without_labels_features_or_samples():
    p_val = ClassPrediction(draw_classes(60, 0).logits, draw_classes(60, 0).target)
    found = evaluate(
        {"id_val": p_val, "ood_new": ClassPrediction(draw_classes(50, 1).logits)}, **FAST
    )
    rows = part(found, split="ood_new").groupby("kind").measure.agg(set)
    assert rows.drop("ood").to_dict() == {
        "metrics": {"sharpness"}, "error prediction": {"predicted_accuracy"},
        "conformal": {"set_size", "shift_pvalue"}, "abstention": {"coverage"},
    }  # fmt: skip
    scores = part(found, split="ood_new", kind="ood", against="id_val").variant
    assert set(scores) == {"msp", "entropy", "energy"}
    bare = ValuePrediction(draw_values(30, 1).samples)
    rows = part(evaluate({"id_val": draw_values(40, 0), "new": bare}, **FAST), split="new")
    assert rows.groupby("kind").measure.agg(set).to_dict() == {
        "metrics": {"sharpness", *(f"width_{level}" for level in (50, 80, 90, 95))},
        "conformal": {"width", "shift_pvalue"}, "abstention": {"coverage"},
    }  # fmt: skip
    found = evaluate({"new": LabelPrediction(torch.randn(20, 2))}, **FAST)
    assert set(found.table.measure) == {"sharpness"}


def test_labels_that_nobody_knows_are_left_out():
    labels = judged("labels")[0]
    target = labels["id_test"].target.clone()
    target[:, 2] = NAN
    some = {"id_val": LabelPrediction(labels["id_val"].samples, labels["id_val"].target),
            "id_test": LabelPrediction(labels["id_test"].samples, target)}  # fmt: skip
    found = evaluate(some, **FAST)
    assert set(part(found, split="id_test", kind="metrics").variant) == {"", "0", "1"}
    assert set(part(found, split="id_val", kind="metrics").variant) == {"", "0", "1", "2"}
    one_sided = LabelPrediction(torch.randn(20, 1), torch.zeros(20, 1))
    found = evaluate({"id_val": one_sided, "id_test": one_sided}, **FAST)
    assert math.isnan(found.value("id_test", "roc_auc").value)
    assert found.value("id_test", "majority").value == 1.0
    assert set(part(found, kind="metrics").variant) == {""}  # one label needs no name
    assert "lac" in set(found.table.variant)


# -- files and bad input -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_json_goes_there_and_back(kind, tmp_path):
    found, path = judged(kind)[1], tmp_path / "evaluation.json"
    text = found.to_json(path)
    assert path.read_text() == text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    for source in (text, path, str(path)):
        back = Evaluation.from_json(source)
        assert list(back.table.columns) == list(COLUMNS)
        assert len(back.table) == len(found.table)
        assert back.value("id_test", "nll") == found.value("id_test", "nll")
        assert back.settings["ood"] == ["ood_val", "ood_test"]


@pytest.mark.parametrize("text", ["{", '{"a": 1}', '{"table": 3, "settings": {}}'])
def test_broken_json(text):
    with pytest.raises(InputError, match="JSON of an Evaluation"):
        Evaluation.from_json(text)


def test_bad_input():
    predictions, found = judged("classes")
    some = {"id_val": predictions["id_val"], "id_test": predictions["id_test"]}
    bare = {"id_val": ClassPrediction(predictions["id_val"].samples)}
    mixed = {**some, "x": judged("values")[0]["train"]}
    fast = {**FAST, "abstain": {}}
    for call in [
        lambda: evaluate({}),
        lambda: evaluate(3),
        lambda: evaluate({"a": 3}),
        lambda: evaluate({"a": predictions["train"][:0]}),
        lambda: evaluate(torch.nn.Linear(2, 2)),
        lambda: evaluate(some, splits=3),
        lambda: evaluate(some, splits={"id_val": 3}),
        lambda: evaluate(some, subgroups=True),
        lambda: evaluate({**some, "x": draw_classes(9, 0, k=2)}),
        lambda: evaluate(mixed),
        lambda: evaluate(some, alpha=1.0),
        lambda: evaluate(some, negatives="nope"),
        lambda: evaluate(some, ood=["nope"]),
        lambda: evaluate(some, abstain={"risk": 0.1}),
        lambda: evaluate(some, bins=0),
        lambda: evaluate(some, calibrators=["spine"], **fast),
        lambda: evaluate(some, calibrators=[3], **fast),
        lambda: evaluate(some, calibrators=["temperature"] * 2, **fast),
        lambda: evaluate(some, calibrators="vector", fit_on="val", **fast),
        lambda: evaluate(bare, calibrators=["temperature"], **fast),
        lambda: found.value("test", "ece"),
        lambda: found.value("id_test", "ece", "spline"),
    ]:
        with pytest.raises(InputError):
            call()
