"""The demo: what is compared, at which stages, and what it costs."""

from __future__ import annotations

import pytest

from gduq.runs.demo import OURS, PLAIN, compare, contenders, stages, story


@pytest.mark.filterwarnings("ignore")
def test_the_contenders_and_their_costs(tmp_path):
    told = []
    found = compare(seeds=1, epochs=3, hidden=8, root=tmp_path, notify=told.append)
    names = [PLAIN, OURS, "ensemble of 3", "plain, calibrated"]
    assert list(found.predictions) == names
    assert len(told) == 3
    said = [found.predictions[name]["ood_test"] for name in names]
    assert [p.calibrated for p in said] == [None, *["shifted"] * 3]
    assert [p.num_samples for p in said] == [1, 10, 3, 1]
    assert (said[0].label == said[3].label).all()
    table = contenders(found.results)
    assert list(table.index) == names
    assert table.loc[PLAIN, "cost"] == 1
    for name in names[1:]:  # what it stands on is part of the cost
        assert found.seconds[name]["train_seconds"] > found.seconds[PLAIN]["train_seconds"]


@pytest.mark.filterwarnings("ignore")
def test_shift_arrives_in_stages(tmp_path):
    found = compare(seeds=1, epochs=30, hidden=8, root=tmp_path)
    views, table = stages(found.splits), story(found.results)
    assert list(table.index) == list(views)
    assert (table.index[0], table.index[-1]) == ("id_test", "ood_test")
    gone = [(view.graphs[0].x == 0).double().mean().item() for view in views.values()][:-1]
    assert gone == sorted(set(gone))
    novelty = table["novelty"].tolist()[:-1]
    assert novelty == sorted(novelty)
