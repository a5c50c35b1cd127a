"""`evaluate` against the functions it gathers, for predictions and for models."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch_geometric.data import Data

from gduq import conformal, generalization, metrics
from gduq.abstention import Abstention
from gduq.anchoring import anchor
from gduq.calibration import (
    AnchorAwareTemperature,
    DensityAwareCalibration,
    TemperatureScaling,
    VectorScaling,
)
from gduq.data.splits import Splits
from gduq.data.view import View
from gduq.errors import InputError
from gduq.evaluation import Evaluation, corrupted_predictions, evaluate
from gduq.evaluation.calibrated import Calibrated
from gduq.evaluation.evaluation import COLUMNS
from gduq.nn import GNN
from gduq.novelty import ood_scores as ood
from gduq.prediction import Prediction, ValuePrediction, predict

FAST = {"resamples": 20}


def draw(m: int, seed: int, noise: float = 1.0, k: int = 3) -> Prediction:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (m,), generator=generator)
    h = torch.nn.functional.one_hot(y, 3) * 2 + noise * torch.randn(m, 3, generator=generator)
    samples = 2 * h + 0.3 * torch.randn(k, m, 3, generator=generator)
    return Prediction(samples, target=y, features=h, novelty=h.norm(dim=1).div(20).clamp_max(1))


@pytest.fixture(scope="module")
def predictions() -> dict[str, Prediction]:
    return {
        "train": draw(150, 0),
        "id_val": draw(120, 1),
        "id_test": draw(110, 2),
        "ood_val": draw(90, 3, noise=2.0),
        "ood_test": draw(80, 4, noise=3.0),
    }


@pytest.fixture(scope="module")
def found(predictions) -> Evaluation:
    return evaluate(predictions, calibrators=["temperature", VectorScaling()], **FAST)


# -- what is in the table ----------------------------------------------------------------------


def test_metrics_restate_the_functions(found, predictions):
    for split, p in predictions.items():
        assert found.value(split, "accuracy").value == pytest.approx(metrics.accuracy(p))
        assert found.value(split, "ece").value == pytest.approx(metrics.ece(p))
        hundred = metrics.ece(p, bins=100, strict=False)
        assert found.value(split, "ece100").value == pytest.approx(hundred)
        for measure in ("adaptive_ece", "classwise_ece", "smooth_ece", "nll", "brier", "aurc",
                        "excess_aurc", "sharpness"):  # fmt: skip
            value, low, high = found.value(split, measure)
            assert value == pytest.approx(getattr(metrics, measure)(p))
            assert low <= value <= high
        debiased = metrics.ece(p, debias=True)
        assert found.value(split, "ece_debiased").value == pytest.approx(debiased)
        for term, expected in metrics.brier_decomposition(p)._asdict().items():
            assert found.value(split, f"brier_{term}").value == pytest.approx(expected)


def test_calibrated_rows_are_of_the_calibrated_predictions(found, predictions):
    p_val, p_test = predictions["id_val"], predictions["ood_test"]
    for name, method in (("temperature", TemperatureScaling), ("vector", VectorScaling)):
        q = method().fit(p_val)(p_test)
        assert found.value("ood_test", "nll", name).value == pytest.approx(metrics.nll(q))
        assert found.calibrators[name].fitted
    assert found.predictions["ood_test"] is p_test


def test_ood_rows(found, predictions):
    train, p_id = predictions["train"], predictions["id_test"]
    for split in ("ood_val", "ood_test"):
        for score in (*ood.scores_for("classes"), "mahalanobis", "knn"):
            value = found.value(split, "auroc", variant=score).value
            assert value == pytest.approx(ood.auroc(p_id, predictions[split], score, train))
            assert found.value(split, "fpr95", variant=score).value == pytest.approx(
                ood.fpr_at(p_id, predictions[split], score, train)
            )
    rows = found.table[found.table.kind == "ood"]
    assert set(rows.split) == {"ood_val", "ood_test"}
    assert set(rows.against) == {"id_test"}
    calibrated = rows[rows.calibrator == "temperature"]
    # a calibrator does not change these
    assert not {"novelty", "mahalanobis"} & set(calibrated.variant)


def test_error_prediction_rows(found, predictions):
    for method in generalization.METHODS:
        expected = generalization.estimate(predictions["id_val"], predictions["ood_test"], method)
        value = found.value("ood_test", "predicted_accuracy", variant=method).value
        assert value == pytest.approx(expected.predicted)
        assert found.value("ood_test", "error", variant=method).value == pytest.approx(
            expected.error
        )


@pytest.mark.filterwarnings("ignore::gduq.conformal.ShiftWarning")
def test_conformal_rows(found, predictions):
    for name in ("lac", "aps", "raps"):
        fitted = conformal.METHODS[name](alpha=0.1).fit(predictions["id_val"])
        for split in ("id_test", "ood_test"):
            sets = fitted(predictions[split])
            value, low, high = found.value(split, "set_size", variant=name)
            assert value == pytest.approx(sets.mean_size)
            assert low < value < high
            rows = found.table[(found.table.kind == "conformal") & (found.table.split == split)]
            coverage = rows[(rows.variant == name) & (rows.measure == "coverage")].iloc[0]
            assert coverage.value == pytest.approx(sets.coverage)
            assert coverage.low <= coverage.value <= coverage.high
            shift = found.value(split, "shift_pvalue", variant=name)
            assert shift.value == pytest.approx(sets.shift.pvalue)
            assert math.isnan(shift.low)
    assert found.value("ood_test", "shift_pvalue", variant="lac").value < 0.01


def test_abstention_rows(found, predictions):
    rows = found.table[(found.table.kind == "abstention") & (found.table.calibrator == "none")]
    for wish in ("coverage", "accuracy"):
        share = {"coverage": 0.8, "accuracy": 0.9}[wish]
        decision = Abstention(**{wish: share}).fit(predictions["id_val"])(predictions["ood_test"])
        part = rows[(rows.variant == f"{wish}={share}") & (rows.split == "ood_test")]
        values = dict(zip(part.measure, part.value, strict=True))
        assert values["coverage"] == pytest.approx(decision.coverage)
        assert values["accuracy"] == pytest.approx(decision.accuracy)


def test_unreachable_accuracy_answers_nothing(predictions):
    wrong = {
        name: Prediction(p.samples, target=(p.label + 1) % 3) for name, p in predictions.items()
    }
    table = evaluate(wrong, abstain={"accuracy": 0.9}, **FAST).table
    rows = table[(table.kind == "abstention") & (table.split == "id_test")]
    values = dict(zip(rows.measure, rows.value, strict=True))
    assert values["coverage"] == 0.0
    assert math.isnan(values["accuracy"])


def test_validation_and_training_are_not_judged_by_what_was_fitted_on_them(found):
    fitted = found.table[found.table.kind.isin(["conformal", "abstention", "error prediction"])]
    assert set(fitted.split) == {"id_test", "ood_val", "ood_test"}
    assert set(fitted.against) == {"id_val"}


@pytest.mark.filterwarnings("ignore::gduq.conformal.ShiftWarning")
def test_no_row_serves_a_calibrator_and_a_threshold(found, predictions):
    order = torch.randperm(120, generator=torch.Generator().manual_seed(0))
    p_val, p_test = predictions["id_val"], predictions["id_test"]
    cal = TemperatureScaling().fit(p_val[order[:60]])
    rest, q = cal(p_val[order[60:]]), cal(p_test)
    sets = conformal.SplitConformal(alpha=0.1).fit(rest)(q)
    assert found.value("id_test", "set_size", "temperature", "lac").value == sets.mean_size
    guess = generalization.predict_accuracy(rest, q, "average_confidence")
    value = found.value("id_test", "predicted_accuracy", "temperature", "average_confidence").value
    assert value == pytest.approx(guess)
    kept = Abstention(coverage=0.8).fit(rest)(q).coverage
    table = found.table[(found.table.kind == "abstention") & (found.table.split == "id_test")]
    row = table[(table.calibrator == "temperature") & (table.variant == "coverage=0.8")].iloc[0]
    assert row.value == pytest.approx(kept)
    ready = TemperatureScaling().fit(p_test)  # comes fitted: thresholds take all of id_val
    given = evaluate(predictions, calibrators=[ready], **FAST)
    sets = conformal.SplitConformal(alpha=0.1).fit(ready(p_val))(ready(p_test))
    assert given.value("id_test", "set_size", "temperature", "lac").value == sets.mean_size


def many_classes(rows: int, seed: int) -> Prediction:
    generator = torch.Generator().manual_seed(seed)
    truth = 1.5 * torch.randn(rows, 10, generator=generator)
    target = torch.multinomial(truth.softmax(1), 1, generator=generator).squeeze(1)
    return Prediction(3 * truth, target)


@pytest.mark.filterwarnings("ignore::gduq.conformal.ShiftWarning")
def test_conformal_coverage_holds_for_a_flexible_calibrator():
    """Thresholds on the calibrator's own rows cover 0.86 and 0.87 here; 0.9 is promised."""
    covered = []
    for seed in range(25):
        splits = {"id_val": many_classes(100, seed), "id_test": many_classes(300, 1000 + seed)}
        judged, found = Calibrated(splits), []
        for name in ("vector", "isotonic"):
            flexible = VectorScaling(penalty=0.0, missing="keep")
            given = flexible if name == "vector" else judged.make(name)
            q = judged.held_out(given, name, 0).raw
            sets = conformal.SplitConformal(alpha=0.1).fit(q["id_val"])(q["id_test"])
            found.append(sets.coverage)
        covered.append(found)
    assert torch.tensor(covered).mean(0).min() > 0.88  # standard error: 0.01


def test_what_cannot_be_fitted_is_skipped_with_its_reason(predictions):
    some = {"id_val": predictions["id_val"], "id_test": predictions["id_test"]}
    found = evaluate(some, calibrators=["gats", "density", "temperature"], **FAST)
    assert set(found.calibrators) == {"temperature"}
    assert "a node task on one graph" in found.settings["skipped"]["gats"]
    assert "training rows" in found.settings["skipped"]["density"]
    assert Evaluation.from_json(found.to_json()).settings["skipped"] == found.settings["skipped"]
    absent = {"id_val": some["id_val"][some["id_val"].target != 2], "id_test": some["id_test"]}
    names = ["vector", "matrix", "dirichlet", "histogram"]
    found = evaluate(absent, calibrators=names, **FAST)
    assert list(found.calibrators) == names
    assert not found.settings["skipped"]


def test_fixed_maps_learn_nothing(predictions):
    p = predictions["id_test"]
    by_hand = {
        "t2": p.with_samples(p.samples / 2),
        "mean_logits": p.mean_logits(),
        "rescaled_paper": p.rescaled("paper"),
        "rescaled_released": p.rescaled("released"),
    }
    found = evaluate({"id_test": p}, calibrators=list(by_hand), **FAST)  # no rows to fit on
    for name, q in by_hand.items():
        assert found.value("id_test", "nll", name).value == pytest.approx(metrics.nll(q))
    values = ValuePrediction(torch.zeros(9, 2), torch.zeros(9))
    found = evaluate({"id_test": values}, calibrators=["t2"], **FAST)
    assert "predictions about classes for 't2'" in found.settings["skipped"]["t2"]


def spoilt(p: Prediction, seed: int) -> Prediction:
    """The same rows, wrong more often, with hypotheses that disagree."""
    generator = torch.Generator().manual_seed(seed)
    noise = 2 * torch.randn(p.samples.shape, generator=generator)
    return p.with_samples(p.samples + noise)


def test_corrupted_copies_teach_the_anchor_aware_temperature(predictions):
    p_val, p_test = predictions["id_val"], predictions["id_test"]
    copies = [spoilt(p_val, 0), spoilt(p_val, 1)]
    names = ["anchor_aware", "anchor_aware+corrupted"]
    found = evaluate(predictions, calibrators=names, corrupted=copies, **FAST)
    for name, given in zip(names, ([], copies), strict=True):
        cal = AnchorAwareTemperature().fit(p_val, corrupted=given)
        expected = metrics.nll(cal(p_test))
        assert found.value("id_test", "nll", name).value == pytest.approx(expected)
    # a threshold's rows are in no copy either
    order = torch.randperm(120, generator=torch.Generator().manual_seed(0))
    first, rest = order[:60], order[60:]
    half = AnchorAwareTemperature().fit(p_val[first], corrupted=[p[first] for p in copies])
    guess = generalization.predict_accuracy(half(p_val[rest]), half(p_test), "average_confidence")
    value = found.value("id_test", "predicted_accuracy", names[1], "average_confidence").value
    assert value == pytest.approx(guess)


def test_copies_come_from_the_model_or_the_caller(predictions):
    alone = evaluate(predictions, calibrators=["anchor_aware+corrupted"], **FAST)
    assert "Pass corrupted=" in alone.settings["skipped"]["anchor_aware+corrupted"]
    for wrong in ([], [predictions["id_test"]]):
        with pytest.raises(InputError, match="corrupted copies of the 120 rows"):
            evaluate(predictions, calibrators=["temperature"], corrupted=wrong, **FAST)
    splits = node_splits()
    model = node_model(splits)
    found = evaluate(model, splits, ["anchor_aware+corrupted"], **FAST)
    copies = corrupted_predictions(model, splits.id_val)
    cal = AnchorAwareTemperature().fit(predict(model, splits.id_val), corrupted=copies)
    expected = metrics.nll(cal(predict(model, splits.ood_test)))
    value = found.value("ood_test", "nll", "anchor_aware+corrupted").value
    assert value == pytest.approx(expected, rel=1e-5)


def test_half_of_the_rows_may_be_too_few_for_thresholds(predictions):
    some = {"id_val": predictions["id_val"][:15], "id_test": predictions["id_test"]}
    found = evaluate(some, calibrators=["histogram"], **FAST)
    assert "rows" in found.settings["skipped"]["histogram: thresholds"]
    kinds = set(found.table[found.table.calibrator == "histogram"].kind)
    assert kinds == {"metrics"}


# -- less than everything ----------------------------------------------------------------------


def test_one_prediction():
    p = draw(60, 0)
    found = evaluate(p, **FAST)
    assert set(found.table.kind) == {"metrics"}
    assert found.value("test", "accuracy").value == metrics.accuracy(p)


def test_splits_without_labels_features_or_samples():
    p_val = Prediction(draw(60, 0).logits, draw(60, 0).target)
    new = Prediction(draw(50, 1).logits)
    found = evaluate({"id_val": p_val, "ood_new": new}, **FAST)
    rows = found.table[found.table.split == "ood_new"]
    assert set(rows[rows.kind == "metrics"].measure) == {"sharpness"}
    assert set(rows[rows.kind == "ood"].variant) == {"msp", "entropy", "energy"}
    assert set(rows[rows.kind == "ood"].against) == {"id_val"}
    predicted = rows[rows.kind == "error prediction"]
    assert set(predicted.measure) == {"predicted_accuracy"}
    assert set(predicted.variant) == {
        "threshold", "confidence_difference", "average_confidence"}  # fmt: skip
    assert set(rows[rows.kind == "conformal"].measure) == {"set_size", "shift_pvalue"}
    assert set(rows[rows.kind == "abstention"].measure) == {"coverage"}


def test_papers_negatives_and_own_ood_names(predictions):
    found = evaluate(predictions, negatives="id_val", ood=["ood_test"], **FAST)
    rows = found.table[found.table.kind == "ood"]
    assert set(rows.split) == {"ood_test"}
    assert set(rows.against) == {"id_val"}


def test_fewer_rows_than_bins_is_measured():
    found = evaluate({"id_val": draw(8, 0), "id_test": draw(5, 1)}, **FAST)
    assert 0 <= found.value("id_test", "ece").value <= 1
    assert "raps" not in set(found.table.variant)


# -- out ---------------------------------------------------------------------------------------


def test_json_goes_there_and_back(found, tmp_path):
    path = tmp_path / "evaluation.json"
    text = found.to_json(path)
    assert path.read_text() == text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    for source in (text, path, str(path)):
        back = Evaluation.from_json(source)
        assert list(back.table.columns) == list(COLUMNS)
        assert len(back.table) == len(found.table)
        assert back.value("id_test", "ece") == found.value("id_test", "ece")
        assert back.settings["ood"] == ["ood_val", "ood_test"]
        assert back.to_markdown() == found.to_markdown()


def test_value_names_what_exists(found):
    with pytest.raises(InputError, match="a split from id_test, id_val"):
        found.value("test", "ece")
    with pytest.raises(InputError, match="a calibrator from none, temperature, vector"):
        found.value("id_test", "ece", "spline")


@pytest.mark.parametrize("text", ["{", '{"a": 1}', '{"table": 3, "settings": {}}'])
def test_broken_json(text):
    with pytest.raises(InputError, match="JSON of an Evaluation"):
        Evaluation.from_json(text)


# -- models ------------------------------------------------------------------------------------


def node_splits(n: int = 240) -> Splits:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (n,), generator=generator)
    x = torch.nn.functional.one_hot(y, 3) + 0.5 * torch.randn(n, 3, generator=generator)
    data = Data(x=x, y=y, edge_index=torch.randint(n, (2, 3 * n), generator=generator))
    data.y[-1] = -1  # a node without a label is in no split
    rows = torch.arange(n - 1)
    parts = {
        name: View([data], rows=rows[rows % 5 == i])
        for i, name in enumerate(("train", "id_val", "id_test", "ood_val", "ood_test"))
    }
    return Splits(**parts)


def node_model(splits: Splits):
    torch.manual_seed(0)
    net = GNN(3, 8, 3, num_layers=2, conv="gcn", task="node", dropout=0.0)
    model = anchor(net, at=1, recipe="paper", num_anchors=4)
    model.fit_bank(splits.train)
    return model.eval()


@pytest.mark.filterwarnings("ignore::gduq.conformal.ShiftWarning")
def test_node_model_with_graph_methods_and_subgroups():
    splits = node_splits()
    model = node_model(splits)
    found = evaluate(
        model, splits, ["temperature", "cagcn", "gats", "density"], subgroups=True, **FAST
    )
    for name, view in splits:
        p = predict(model, view)
        assert found.value(name, "nll").value == pytest.approx(metrics.nll(p), rel=1e-5)
    assert {"cagcn", "gats", "density"} <= set(found.table.calibrator)
    variants = set(found.table.variant)
    assert {"daps", "mahalanobis", "knn", "epistemic", "disagreement"} <= variants
    groups = found.table[found.table.kind == "subgroups"]
    assert {v.split(":")[0] for v in groups.variant} == {"degree", "homophily", "distance"}
    calibrator, whole = found.calibrators["cagcn"], predict(model, splits.train.graphs[0].clone()
                                                            .update({"y": None}))  # fmt: skip
    view = splits.id_test
    q = calibrator(Prediction(whole.samples), rows=view.rows)
    expected = metrics.nll(Prediction(q.samples, target=view.target))
    assert found.value("id_test", "nll", "cagcn").value == pytest.approx(expected, rel=1e-5)


def graph_views() -> dict[str, View]:
    generator = torch.Generator().manual_seed(0)

    def graphs(count: int, nodes: int) -> list[Data]:
        made = []
        for i in range(count):
            x = torch.randn(nodes + i % 3, 4, generator=generator) + i % 2
            edges = torch.randint(len(x), (2, 12), generator=generator)
            made.append(Data(x=x, edge_index=edges, y=torch.tensor([i % 2])))
        return made

    sizes = {"train": 30, "id_val": 20, "id_test": 20, "ood_test": 20}
    return {n: View(graphs(c, 12 if n == "ood_test" else 5)) for n, c in sizes.items()}


def test_graph_model():
    views = graph_views()
    torch.manual_seed(0)
    net = GNN(4, 8, 2, num_layers=2, conv="gin", task="graph").eval()
    found = evaluate(net, views, ["temperature"], subgroups=True, batch_size=7, **FAST)
    p = predict(net, views["ood_test"])
    assert found.value("ood_test", "accuracy").value == pytest.approx(metrics.accuracy(p))
    assert "daps" not in set(found.table.variant)
    assert "mahalanobis" in set(found.table.variant)
    groups = found.table[found.table.kind == "subgroups"]
    assert {v.split(":")[0] for v in groups.variant} == {"degree", "size"}


def test_severities_are_judged_as_ood():
    views = graph_views()
    splits = Splits(train=views["train"], id_val=views["id_val"], id_test=views["id_test"],
                    severities={"size=12": views["ood_test"]})  # fmt: skip
    torch.manual_seed(0)
    found = evaluate(GNN(4, 8, 2, num_layers=2, conv="gin", task="graph").eval(), splits, **FAST)
    assert set(found.table[found.table.kind == "ood"].split) == {"size=12"}


def test_a_plain_network_without_features_is_fine():
    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 3))

        def forward(self, x, edge_index):
            return x @ self.weight

    splits = node_splits()
    torch.manual_seed(0)
    found = evaluate(Plain(), splits, **FAST)
    assert "mahalanobis" not in set(found.table.variant)
    assert "daps" in set(found.table.variant)


# -- bad input ---------------------------------------------------------------------------------


def test_bad_input(predictions):
    some = {"id_val": predictions["id_val"], "id_test": predictions["id_test"]}
    bare = {"id_val": Prediction(predictions["id_val"].samples)}
    splits, fast = node_splits(), {**FAST, "abstain": {}}
    for call, message in [
        (lambda: evaluate({}), "an empty mapping"),
        (lambda: evaluate(3), "a model, a Prediction"),
        (lambda: evaluate({"a": 3}), "a Prediction for 'a'"),
        (lambda: evaluate({"a": predictions["train"][:0]}), "at least one row in 'a'"),
        (lambda: evaluate(torch.nn.Linear(2, 2)), "splits to judge a model on"),
        (lambda: evaluate(some, splits=3), "Splits or views"),
        (lambda: evaluate(some, splits=splits), "rows in 'id_val', as its view has"),
        (lambda: evaluate(some, subgroups=True), "splits for subgroups"),
        (lambda: evaluate({**some, "x": draw(9, 0, k=2)}), "equal K and C"),
        (lambda: evaluate(some, alpha=1.0), "alpha between 0 and 1"),
        (lambda: evaluate(some, negatives="nope"), "negatives from"),
        (lambda: evaluate(some, ood=["nope"]), "ood splits from"),
        (lambda: evaluate(some, abstain={"risk": 0.1}), "abstain with"),
        (lambda: evaluate(some, bins=0), "bins as a whole number"),
        (lambda: evaluate(some, calibrators=["spine"], **fast), "Did you mean 'spline'"),
        (lambda: evaluate(some, calibrators=[3], **fast), "calibrators or their names"),
        (lambda: evaluate(some, calibrators=["temperature"] * 2, **fast), "different names"),
        (lambda: evaluate(some, calibrators=[DensityAwareCalibration()], **fast), "training rows"),
        (
            lambda: evaluate(some, calibrators=["temperature"], fit_on="val", **fast),
            "a split 'val'",
        ),
        (lambda: evaluate(bare, calibrators=["temperature"], **fast), "with targets"),
    ]:
        with pytest.raises(InputError, match=message):
            call()
