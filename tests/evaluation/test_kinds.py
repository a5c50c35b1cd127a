"""`evaluate` for values, labels and rare classes, against the functions it gathers."""

from __future__ import annotations

import math

import pytest
import torch
from torch_geometric.data import Data

import gduq
from gduq import conformal, metrics
from gduq.abstention import Abstention
from gduq.calibration import DeviationScaling
from gduq.data.splits import Splits
from gduq.data.view import View
from gduq.errors import InputError
from gduq.evaluation import Evaluation, evaluate
from gduq.evaluation.inputs import whole_graph
from gduq.novelty import ood_scores as ood
from gduq.prediction import LabelPrediction, Prediction, ValuePrediction

FAST = {"resamples": 20}
NAN = float("nan")


def draw_values(m: int, seed: int, wrong: float = 1.0, width: int = 1) -> ValuePrediction:
    """True errors are ``wrong`` times what the deviations say."""
    g = torch.Generator().manual_seed(seed)
    mean, std = torch.randn(m, width, generator=g), 0.2 + torch.rand(m, width, generator=g)
    y = mean + wrong * std * torch.randn(m, width, generator=g)
    means = mean + 0.1 * torch.randn(3, m, width, generator=g)
    samples = torch.cat([means, (2 * std.log()).expand_as(means)], dim=2)
    h = torch.randn(m, 4, generator=g) * wrong
    names = ("logS",) if width == 1 else tuple(f"v{t}" for t in range(width))
    return ValuePrediction(samples, y, names, features=h, novelty=torch.rand(m, generator=g))


def draw_labels(m: int, seed: int, noise: float = 1.0, width: int = 3) -> LabelPrediction:
    """Rare positives, some unknown; ``noise`` makes it wrong more often."""
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(m, width, generator=g) - 1.5
    y = (torch.rand(m, width, generator=g) < z.sigmoid()).float()
    y[torch.rand(m, width, generator=g) < 0.2] = NAN
    samples = 2 * z + noise * torch.randn(3, m, width, generator=g)
    h = torch.randn(m, 4, generator=g) * noise
    names = tuple("abc"[:width])
    return LabelPrediction(samples, y, names, features=h, novelty=torch.rand(m, generator=g))


def splits_of(draw, **more) -> dict:
    sizes = {"train": (90, 0, 1.0), "id_val": (80, 1, 1.0), "id_test": (70, 2, 1.0)}
    sizes["ood_test"] = (60, 3, 2.5)
    return {name: draw(m, seed, off, **more) for name, (m, seed, off) in sizes.items()}


@pytest.fixture(scope="module")
def values() -> dict[str, ValuePrediction]:
    return splits_of(draw_values)


@pytest.fixture(scope="module")
def of_values(values) -> Evaluation:
    return evaluate(values, calibrators=["deviation"], **FAST)


@pytest.fixture(scope="module")
def labels() -> dict[str, LabelPrediction]:
    return splits_of(draw_labels)


@pytest.fixture(scope="module")
def of_labels(labels) -> Evaluation:
    return evaluate(labels, calibrators=["per_label"], **FAST)


def part(found: Evaluation, **wanted: str):
    table = found.table
    for column, value in wanted.items():
        table = table[table[column] == value]
    return table


# -- values --------------------------------------------------------------------------------------


def test_measures_of_values_restate_the_functions(of_values, values):
    names = ("rmse", "mae", "r2", "nll", "crps", "miscalibration_area", "ence", "spearman",
             "aurc", "sharpness")  # fmt: skip
    for split, p in values.items():
        for name in names:
            value, low, high = of_values.value(split, name)
            assert value == pytest.approx(getattr(metrics, name)(p))
            assert low <= value <= high
        for level in (50, 80, 90, 95):
            for name in ("coverage", "width"):
                value = of_values.value(split, f"{name}_{level}").value
                assert value == pytest.approx(getattr(metrics, name)(p, level=level / 100))
    assert of_values.settings["about"] == "values"


def test_calibrated_values(of_values, values):
    q = DeviationScaling().fit(values["id_val"])(values["ood_test"])
    found = of_values.value("ood_test", "nll", "deviation").value
    assert found == pytest.approx(metrics.nll(q))


def test_shifted_values_are_told_apart(of_values, values):
    train, known, strange = (values[s] for s in ("train", "id_test", "ood_test"))
    rows = part(of_values, kind="ood", calibrator="none")
    assert set(rows.variant) == {*ood.scores_for("values"), "mahalanobis", "knn"}
    for score in ("std", "epistemic", "knn"):
        value = of_values.value("ood_test", "auroc", variant=score).value
        assert value == pytest.approx(ood.auroc(known, strange, score, train))


@pytest.mark.filterwarnings("ignore::gduq.conformal.ShiftWarning")
def test_conformal_intervals(of_values, values):
    for score in ("absolute", "normalised", "cqr"):
        fitted = conformal.ConformalIntervals(0.1, score=score).fit(values["id_val"])
        found = fitted(values["ood_test"])
        rows = part(of_values, kind="conformal", variant=score, split="ood_test",
                    calibrator="none")  # fmt: skip
        got = dict(zip(rows.measure, rows.value, strict=True))
        assert got["coverage"] == pytest.approx(found.coverage)
        assert got["width"] == pytest.approx(float(found.width.mean()))
        assert got["shift_pvalue"] == pytest.approx(found.shift.pvalue)
    text = of_values.to_markdown()
    assert "## Conformal intervals" in text
    assert "## Error and calibration" in text


def test_abstention_of_values(of_values, values):
    decision = Abstention(coverage=0.8).fit(values["id_val"])(values["ood_test"])
    rows = part(of_values, kind="abstention", split="ood_test", calibrator="none")
    got = dict(zip(rows.measure, rows.value, strict=True))
    assert got == pytest.approx({"coverage": decision.coverage, "rmse": decision.rmse})
    assert set(rows.variant) == {"coverage=0.8"}  # there is no accuracy to wish for
    assert part(of_values, kind="error prediction").empty


def test_nothing_kept_has_no_error():
    sure, unsure = draw_values(30, 0), draw_values(20, 1)
    wide = unsure.with_samples(unsure.samples + torch.tensor([0.0, 9.0]))
    rows = part(evaluate({"id_val": sure, "id_test": wide}, **FAST), kind="abstention")
    got = dict(zip(rows.measure, rows.value, strict=True))
    assert got["coverage"] == 0.0
    assert math.isnan(got["rmse"])


def test_several_values_are_blocks_by_name():
    p = splits_of(draw_values, width=2)
    found = evaluate(p, calibrators=["deviation"], **FAST)
    alone = evaluate({s: q.column(1) for s, q in p.items()}, calibrators=["deviation"], **FAST)
    assert set(part(found, kind="metrics").variant) == {"v0", "v1"}
    assert set(part(found, kind="abstention").variant) == {"v0: coverage=0.8", "v1: coverage=0.8"}
    ranked = {"novelty", "mahalanobis", "knn"}
    ranked |= {f"v{t}: {s}" for t in (0, 1) for s in ("std", "epistemic")}
    assert set(part(found, kind="ood").variant) == ranked  # a row is strange or not
    for calibrator in ("none", "deviation"):
        one = found.value("id_test", "rmse", calibrator, "v1")
        assert one == pytest.approx(alone.value("id_test", "rmse", calibrator))
        one = found.value("id_test", "width", calibrator, "v1: cqr")
        assert one == pytest.approx(alone.value("id_test", "width", calibrator, "cqr"))


def test_values_without_truth():
    known, bare = draw_values(40, 0), ValuePrediction(draw_values(30, 1).samples)
    found = evaluate({"id_val": known, "new": bare}, **FAST)
    rows = part(found, split="new")
    widths = {f"width_{level}" for level in (50, 80, 90, 95)}
    assert set(rows[rows.kind == "metrics"].measure) == {"sharpness"} | widths
    assert set(rows[rows.kind == "conformal"].measure) == {"width", "shift_pvalue"}
    assert set(rows[rows.kind == "abstention"].measure) == {"coverage"}


# -- labels --------------------------------------------------------------------------------------


def test_measures_of_labels_and_their_means(of_labels, labels):
    names = ("accuracy", "balanced_accuracy", "roc_auc", "average_precision", "ece", "nll",
             "brier", "sharpness")  # fmt: skip
    for split, p in labels.items():
        table = metrics.label_table(p).set_index("label")
        for name in names:
            options = {"strict": False} if name == "ece" else {}
            mean = getattr(metrics, name)(p, **options)
            assert of_labels.value(split, name).value == pytest.approx(mean)
            for t, label in enumerate("abc"):
                value, low, high = of_labels.value(split, name, variant=label)
                assert value == pytest.approx(getattr(metrics, name)(p.column(t), **options))
                assert low <= value <= high
        for label in "abc":
            majority = of_labels.value(split, "majority", variant=label).value
            assert majority == pytest.approx(table.majority[label])
        rows = part(of_labels, split=split, kind="metrics", calibrator="none", variant="a")
        assert set(rows.rows) == {table.rows["a"]}
    assert of_labels.value("id_test", "majority").value == metrics.majority(
        labels["id_test"]).accuracy  # fmt: skip


@pytest.mark.filterwarnings("ignore::gduq.conformal.ShiftWarning")
def test_thresholds_of_each_label(of_labels, labels):
    p_val, p_test = labels["id_val"].column(1), labels["id_test"].column(1)
    sets = conformal.SplitConformal(0.1).fit(p_val)(p_test)
    size = of_labels.value("id_test", "set_size", variant="b: lac").value
    assert size == pytest.approx(sets.mean_size)
    kinds = {f"{name}: {method}" for name in "abc" for method in ("lac", "class_conditional")}
    assert set(part(of_labels, kind="conformal").variant) == kinds
    decision = Abstention(coverage=0.8).fit(p_val)(p_test)
    rows = part(of_labels, kind="abstention", split="id_test", calibrator="none",
                variant="b: coverage=0.8")  # fmt: skip
    got = dict(zip(rows.measure, rows.value, strict=True))
    expected = {"coverage": decision.coverage, "accuracy": decision.accuracy}
    assert got == pytest.approx(expected)


def test_thresholds_of_answers_hold_in_every_row_of_the_table(labels):
    """The mean over labels and the labels by themselves are about the same answers."""
    limits = [0.1, 0.05, 0.9]
    moved = {s: p.with_thresholds(limits) for s, p in labels.items() if s != "ood_test"}
    found = evaluate(moved, calibrators=["per_label"], **FAST)
    p = moved["id_test"]
    for measure in ("accuracy", "balanced_accuracy"):
        for calibrator in ("none", "per_label"):
            rows = part(found, kind="metrics", measure=measure, split="id_test",
                        calibrator=calibrator).set_index("variant").value  # fmt: skip
            assert rows[""] == pytest.approx(sum(rows[n] for n in "abc") / 3)
    for t, name in enumerate("abc"):
        right = (p.label[:, t] == (p.target[:, t] == 1))[p.known[:, t]].double().mean()
        assert found.value("id_test", "accuracy", variant=name).value == pytest.approx(float(right))
        all_kept = Abstention(coverage=1.0).fit(p.column(t))(p.column(t))
        assert all_kept.accuracy == pytest.approx(float(right))
    wished = Abstention(accuracy=0.95).fit(p.column(0))
    assert wished(p.column(0)).accuracy >= 0.95
    rows = part(found, kind="error prediction", measure="predicted_accuracy", split="id_test")
    assert rows.variant.str.startswith("b: confidence_difference").any()
    one = gduq.generalization.estimate(p.column(1), p.column(1), "confidence_difference")
    assert one.actual == one.predicted == pytest.approx(metrics.accuracy(p.column(1)))


def test_labels_that_nobody_knows_are_left_out(labels):
    some = {s: p for s, p in labels.items() if s in ("id_val", "id_test")}
    target = some["id_test"].target.clone()
    target[:, 2] = NAN
    some["id_test"] = LabelPrediction(some["id_test"].samples, target, ("a", "b", "c"))
    some["id_val"] = LabelPrediction(some["id_val"].samples, some["id_val"].target, ("a", "b", "c"))
    found = evaluate(some, **FAST)
    assert set(part(found, split="id_test", kind="metrics").variant) == {"", "a", "b"}
    assert set(part(found, split="id_val", kind="metrics").variant) == {"", "a", "b", "c"}
    one_sided = LabelPrediction(torch.randn(20, 1), torch.zeros(20, 1))
    found = evaluate({"id_val": one_sided, "id_test": one_sided}, **FAST)
    assert math.isnan(found.value("id_test", "roc_auc").value)
    assert found.value("id_test", "majority").value == 1.0


def test_one_label_needs_no_name():
    found = evaluate(splits_of(draw_labels, width=1), **FAST)
    assert set(part(found, kind="metrics").variant) == {""}
    assert "lac" in set(found.table.variant)
    bare = LabelPrediction(torch.randn(20, 2))
    found = evaluate({"new": bare}, **FAST)
    assert set(found.table.measure) == {"sharpness"}


# -- classes -------------------------------------------------------------------------------------


def test_rare_classes_count_as_much_as_others():
    g = torch.Generator().manual_seed(0)
    y = (torch.rand(200, generator=g) < 0.1).long()
    p = Prediction(torch.randn(200, 2, generator=g) + torch.tensor([3.0, 0.0]), y)
    found = evaluate(p, **FAST)
    for name in ("balanced_accuracy", "roc_auc", "average_precision"):
        value, low, high = found.value("test", name)
        assert value == pytest.approx(getattr(metrics, name)(p))
        assert low <= value <= high
    assert found.value("test", "majority").value == metrics.majority(p).accuracy
    assert found.value("test", "balanced_accuracy").value < found.value("test", "accuracy").value


# -- bad input and node tasks --------------------------------------------------------------------


def test_kinds_are_not_mixed(values, labels):
    with pytest.raises(InputError, match="splits of one kind, got labels, values"):
        evaluate({"id_val": values["id_val"], "id_test": labels["id_test"]}, **FAST)
    found = evaluate(values, calibrators=["temperature"], **FAST)
    assert "values" in found.settings["skipped"]["temperature"]


@pytest.mark.parametrize("kind", ["values", "labels"])
def test_one_pass_over_the_graph_answers_for_all_splits(kind):
    """The truth is that of each split; nodes of none have none."""
    g = torch.Generator().manual_seed(0)
    n, width = 80, 2
    x = torch.randn(n, 3, generator=g)
    y = x[:, :width] + 0.3 * torch.randn(n, width, generator=g)
    if kind == "labels":
        y = (y > 0).float()
        y[40, 0] = NAN
    edges = torch.randint(n, (2, 100), generator=g)
    rows = torch.arange(n)
    data = Data(x=x, y=y, edge_index=edges)
    parts = {"train": rows[:30], "id_val": rows[30:50], "id_test": rows[50:70]}
    splits = Splits(**{name: View([data], rows=part) for name, part in parts.items()})
    torch.manual_seed(0)
    net = gduq.nn.GNN(3, 8, width, num_layers=2, conv="gcn", task="node")
    model = gduq.anchor(net, at=1, recipe="paper", num_anchors=4)
    gduq.fit(model, splits.train, splits.id_val, epochs=2, progress=False)
    whole = whole_graph(model, dict(splits))
    assert whole.p.kind == kind
    for name, view in splits:
        part = whole.p[whole.rows[name]]
        assert torch.equal(part.target.nan_to_num(9.0), view.target.nan_to_num(9.0))
    if kind == "labels":
        assert whole.p.target[70:].isnan().all()
    calibrator = {"values": "deviation", "labels": "per_label"}[kind]
    found = evaluate(model, splits, [calibrator], subgroups=True, **FAST)
    measure = {"values": "rmse", "labels": "roc_auc"}[kind]
    expected = getattr(metrics, measure)(gduq.predict(model, splits.id_test).column(1))
    value = found.value("id_test", measure, variant="1").value
    assert value == pytest.approx(expected, rel=1e-5)
    assert calibrator in set(found.table.calibrator)
    groups = part_names(found)
    assert {"degree"} <= groups


def part_names(found: Evaluation) -> set[str]:
    """What rows are grouped by."""
    variants = part(found, kind="subgroups").variant
    return {name.removeprefix("0: ").removeprefix("1: ").split(":")[0] for name in variants}
