"""Drawn graphs: the right rows, the right neighbourhood, the same picture every time."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gduq.data import Splits, View
from gduq.prediction import Prediction
from gduq.report import Subject
from gduq.report.examples import colour_legend, examples
from gduq.report.graphs import draw
from tests.report.cases import EVIL, three


def path(nodes: int) -> Data:
    ends = torch.arange(nodes - 1)
    return Data(edge_index=torch.stack([ends, ends + 1]), num_nodes=nodes)


def places_in(svg: str) -> np.ndarray:
    """Where nodes are drawn ``[n, 2]``."""
    found = re.findall(r'<use[^>]* x="(.*?)" y="(.*?)"', svg)
    return np.array(found, dtype=float)


def test_examples_are_the_least_sure_and_the_worst():
    subject = three()[0]
    p = subject.predictions["ood_test"]
    uncertain = examples(subject, "ood_test", "uncertain")
    wrong = examples(subject, "ood_test", "wrong")
    assert [e.title for e in uncertain] == [
        f"Graph {i}" for i in p.entropy.topk(4).indices.tolist()
    ]
    sure = torch.where(p.correct, 0.0, p.confidence).topk(4).indices
    assert [e.title for e in wrong] == [f"Graph {i}" for i in sure.tolist()]
    assert all(e.wrong and e.said != e.truth for e in wrong)
    assert not any(EVIL in e.svg for e in uncertain + wrong)
    assert examples(three()[1], "ood_test", "wrong") == []  # it knows no graphs


def test_a_path_is_drawn_as_a_line():
    places = places_in(draw(path(5))[0])
    steps = np.linalg.norm(np.diff(places, axis=0), axis=1)
    assert steps == pytest.approx(np.full(4, steps[0]), rel=0.02)
    assert np.linalg.norm(places[0] - places[4]) == pytest.approx(4 * steps[0], rel=0.02)
    assert draw(path(5)) == draw(path(5))


def test_parts_without_a_path_do_not_overlap():
    graph = Data(edge_index=torch.tensor([[0, 2], [1, 3]]), num_nodes=5)
    places = places_in(draw(graph)[0])
    gaps = np.linalg.norm(places[:, None] - places[None], axis=2)[np.triu_indices(5, 1)]
    assert np.isfinite(places).all()
    assert gaps.min() > 0.1 * gaps.max()


@pytest.mark.parametrize("nodes", [1, 2, 60, 61, 400])
def test_any_size_is_drawn(nodes):
    svg, note = draw(path(nodes), label="a<b")
    assert svg.count("<use") == min(nodes, 60)
    assert 'aria-label="a&lt;b"' in svg
    assert note == (f"{nodes} nodes" if nodes <= 60 else f"60 of {nodes} nodes")
    assert "nan" not in svg


def test_a_node_is_drawn_with_two_steps_around_it():
    svg, note = draw(path(9), node=4)
    assert note == "5 nodes within 2 steps"
    assert svg.count("<use") == 5
    assert "stroke: var(--ink)" in svg  # the ring
    lonely, note = draw(Data(edge_index=torch.zeros(2, 0).long(), num_nodes=3), node=1)
    assert "2 steps" in note
    assert lonely.count("<use") <= 1


def test_given_places_are_kept():
    graph = path(3)
    graph.pos = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    places = places_in(draw(graph)[0])
    assert places[0][1] == places[1][1] < places[2][1]  # downwards, as in images
    assert places[0][0] < places[1][0] == places[2][0]


def test_nodes_of_several_graphs_are_found():
    view = View([path(3), path(4)], rows=torch.tensor([1, 4, 6]))
    p = Prediction(torch.tensor([[0.2, 0.0], [0.1, 0.0], [0.0, 0.0]]), torch.zeros(3).long())
    train = View([path(3), path(4)], rows=torch.tensor([0]))
    subject = Subject("a", {"ood_test": p}, splits=Splits(train, ood_test=view))
    drawn = examples(subject, "ood_test", "uncertain")
    assert [e.title for e in drawn] == ["Node 3", "Node 1", "Node 1"]
    assert [e.svg.count("<use") for e in drawn] == [3, 4, 3]


def test_a_node_task_colours_by_class():
    graph = path(6)
    graph.y = torch.tensor([0, 1, 2, 0, 1, 2])
    view = View(graph, rows=torch.arange(3, 6))
    train = View(graph, rows=torch.arange(3))
    p = Prediction(torch.eye(3), torch.tensor([0, 1, 2]), ("x", "y", "z"))
    subject = Subject("a", {"ood_test": p}, splits=Splits(train, ood_test=view))
    assert colour_legend([subject], "ood_test") == tuple(
        (name, f"var(--s{i})") for i, name in enumerate("xyz")
    )
    drawn = examples(subject, "ood_test", "uncertain")
    assert [e.title for e in drawn] == ["Node 3", "Node 4", "Node 5"]
    assert all(f"var(--s{c})" in drawn[0].svg for c in (0, 1, 2))
    assert examples(subject, "ood_test", "wrong") == []
