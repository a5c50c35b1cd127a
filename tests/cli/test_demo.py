"""The demo: what is compared, at which stages, and what it costs."""

from __future__ import annotations

import pytest

from gduq.cli.demo import OURS, PLAIN, compare, means_by_stage


@pytest.mark.filterwarnings("ignore")
def test_the_models_their_stages_and_costs(tmp_path):
    steps = []
    results, subjects = compare(seeds=1, epochs=20, hidden=8, root=tmp_path, notify=steps.append)
    names = [PLAIN, OURS, "ensemble of 3", "plain, calibrated"]
    assert [one.name for one in subjects] == names
    assert len(steps) == 3
    found = [one.predictions["ood_test"] for one in subjects]
    assert [p.calibrated for p in found] == [None, *["shifted"] * 3]
    assert [p.num_samples for p in found] == [1, 10, 3, 1]
    assert (found[0].label == found[3].label).all()
    seconds = results.groupby("model")["seconds"].mean()
    for name in names[1:]:  # what it stands on is part of the cost
        assert seconds[name] > seconds[PLAIN]
    stages = means_by_stage(results)
    assert (stages.index[0], stages.index[-1]) == ("id_test", "ood_test")
    novelty = stages["novelty"].tolist()[:-1]
    assert novelty == sorted(novelty)
