"""The demo: what is compared, at which stages, and what it costs."""

from __future__ import annotations

import pytest

from gduq.cli.demo import OURS, PLAIN, compare, means_by_stage


@pytest.mark.filterwarnings("ignore")
def test_both_models_their_stages_and_costs(tmp_path):
    results, subjects = compare(seeds=1, epochs=20, hidden=8, root=tmp_path)
    assert [one.name for one in subjects] == [PLAIN, OURS]
    found = [one.predictions["ood_test"] for one in subjects]
    assert [p.calibrated for p in found] == [None, "shifted"]
    assert [p.num_samples for p in found] == [1, 10]
    seconds = results.groupby("model")["seconds"].mean()
    assert seconds[OURS] > seconds[PLAIN]  # what it stands on is part of the cost
    stages = means_by_stage(results)
    assert (stages.index[0], stages.index[-1]) == ("id_test", "ood_test")
    novelty = stages["novelty"].tolist()[:-1]
    assert novelty == sorted(novelty)
