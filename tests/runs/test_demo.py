"""The demo: what is compared, and what it costs."""

from __future__ import annotations

import pytest

from gduq.runs.demo import SPLITS, compare, summary


@pytest.mark.filterwarnings("ignore")
def test_the_contenders_and_their_costs(tmp_path):
    told = []
    found = compare(seeds=1, epochs=3, hidden=8, root=tmp_path, notify=told.append)
    names = ["plain", "plain, calibrated", "ensemble of 3", "G-ΔUQ"]
    assert list(found.predictions) == names
    assert len(told) == 3
    plain, calibrated, ensemble, ours = (found.predictions[n]["ood_test"] for n in names)
    assert [p.calibrated for p in (plain, calibrated, ensemble, ours)] == [None, *["shifted"] * 3]
    assert [p.num_samples for p in (plain, calibrated, ensemble, ours)] == [1, 1, 3, 10]
    assert (plain.label == calibrated.label).all()
    table = summary(found.results)
    assert table.loc[("ood_test", "plain"), "cost"] == 1
    for name in names[1:]:  # what it stands on is part of the cost
        assert found.seconds[name]["train_seconds"] > found.seconds["plain"]["train_seconds"]
    assert set(table.index.get_level_values("split")) == set(SPLITS)
