"""`evaluate` for models: of nodes, of graphs, with and without features."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

import gduq
from gduq import metrics
from gduq.anchoring import anchor
from gduq.calibration import TemperatureScaling
from gduq.evaluation import corrupted_predictions, evaluate
from gduq.evaluation.calibrated import full_graph
from gduq.graphs.view import Splits, View
from gduq.nn import GNN
from gduq.prediction import ClassPrediction, predict
from tests.evaluation.cases import FAST, NAN, graph_views, node_splits, part


@pytest.mark.filterwarnings("ignore::gduq.conformal.ShiftWarning")
def test_node_model_with_graph_methods_copies_and_subgroups():
    splits, copied = node_splits(), "temperature+corrupted"
    torch.manual_seed(0)
    net = GNN(3, 8, 3, num_layers=2, conv="gcn", task="node", dropout=0.0)
    model = anchor(net, at=1, recipe="paper", num_anchors=4)
    model.fit_anchors(splits.train)
    model.eval()
    names = ["temperature", "cagcn", "gats", copied]
    found = evaluate(model, splits, names, subgroups=True, **FAST)
    assert {*names, "none"} == set(found.table.calibrator)
    for name, view in splits:
        p = predict(model, view)
        assert found.value(name, "nll").value == pytest.approx(metrics.nll(p), rel=1e-5)
    variants = set(found.table.variant)
    assert {"daps", "mahalanobis", "epistemic", "threshold"} <= variants
    groups = part(found, kind="subgroups")
    assert {v.split(":")[0] for v in groups.variant} == {"degree"}
    whole = predict(model, splits.train.graphs[0].clone().update({"y": None}))
    view = splits.id_test
    q = found.calibrators["cagcn"](ClassPrediction(whole.samples), rows=view.rows)
    expected = metrics.nll(ClassPrediction(q.samples, target=view.target))
    assert found.value("id_test", "nll", "cagcn").value == pytest.approx(expected, rel=1e-5)
    copies = corrupted_predictions(model, splits.id_val)  # the model makes its own
    cal = TemperatureScaling().fit(predict(model, splits.id_val), corrupted=copies)
    expected = metrics.nll(cal(predict(model, splits.ood_test)))
    assert found.value("ood_test", "nll", copied).value == pytest.approx(expected, rel=1e-5)


def test_graph_model_and_severities():
    views = graph_views()
    torch.manual_seed(0)
    net = GNN(4, 8, 2, num_layers=2, conv="gin", task="graph").eval()
    found = evaluate(net, views, ["temperature"], subgroups=True, batch_size=7, **FAST)
    p = predict(net, views["ood_test"])
    assert found.value("ood_test", "accuracy").value == pytest.approx(metrics.accuracy(p))
    assert "daps" not in set(found.table.variant)
    assert "mahalanobis" in set(found.table.variant)
    groups = part(found, kind="subgroups")
    assert {v.split(":")[0] for v in groups.variant} == {"degree", "size"}
    severe = {"size=12": views.pop("ood_test")}
    found = evaluate(net, Splits(**views, severities=severe), **FAST)
    assert set(part(found, kind="ood").split) == {"size=12"}


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
    rows = torch.arange(n)
    data = Data(x=x, y=y, edge_index=torch.randint(n, (2, 100), generator=g))
    parts = {"train": rows[:30], "id_val": rows[30:50], "id_test": rows[50:70]}
    splits = Splits(**{name: View([data], rows=part) for name, part in parts.items()})
    torch.manual_seed(0)
    net = GNN(3, 8, width, num_layers=2, conv="gcn", task="node")
    model = anchor(net, at=1, recipe="paper", num_anchors=4)
    gduq.fit(model, splits.train, splits.id_val, epochs=2, progress=False)
    whole = full_graph(model, dict(splits))
    assert whole.p.kind == kind
    for name, view in splits:
        truth = whole.p[whole.rows[name]].target
        assert torch.equal(truth.nan_to_num(9.0), view.target.nan_to_num(9.0))
    calibrator = {"values": "deviation", "labels": "per_label"}[kind]
    found = evaluate(model, splits, [calibrator], subgroups=True, **FAST)
    measure = {"values": "rmse", "labels": "roc_auc"}[kind]
    expected = getattr(metrics, measure)(predict(model, splits.id_test).column(1))
    value = found.value("id_test", measure, variant="1").value
    assert value == pytest.approx(expected, rel=1e-5)
    assert calibrator in set(found.table.calibrator)
    names = part(found, kind="subgroups").variant
    assert any("degree: " in name for name in names)
