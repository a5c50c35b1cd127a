"""Monitors: false alarms are as rare as promised on any stream, changes are found soon."""

import pytest
import torch

from gduq.errors import InputError
from gduq.ood.monitor import Monitor, RiskMonitor
from tests.tensors import randn, seeded

STREAMS = 200


def novelty(rows, known):
    """As `Novelty` has it: the share of validation rows that are nearer, ties count half."""
    known = known.sort().values
    ends = torch.searchsorted(known, rows), torch.searchsorted(known, rows, right=True)
    return sum(ends).double() / 2 / len(known)


def stream(seed, late=0.0, count=600, known=50):
    distances = randn(known + count, seed=seed)
    distances[known + count // 2 :] += late
    ranks = novelty(distances, distances[:known])
    return ranks[:known], ranks[known:]


def test_false_alarms_are_rare_however_long_the_stream():
    alarms = 0
    for seed in range(STREAMS):
        known, rows = stream(seed)
        monitor = Monitor(known, seed=seed)
        monitor.update(rows)
        alarms += monitor.alarm
    assert alarms <= 0.05 * STREAMS


@pytest.mark.parametrize(("late", "delay"), [(1.0, 80), (3.0, 25)])
def test_a_late_change_is_found_soon(late, delay):
    found = []
    for seed in range(30):
        known, rows = stream(seed, late)
        monitor = Monitor(known, alpha=0.01, seed=seed)
        capital = monitor.update(rows)
        assert len(capital) == monitor.rows == len(rows)
        found.append((monitor.alarm_at or 10_000) - len(rows) // 2)
    assert 0 < sorted(found)[15] < delay


def test_one_by_one_is_as_all_at_once():
    known, rows = stream(0, late=1.0)
    at_once, each = Monitor(known), Monitor(known)
    expected = at_once.update(rows)
    assert torch.equal(torch.cat([each.update(row[None]) for row in rows]), expected)
    assert each.alarm_at == at_once.alarm_at


def test_risk_above_what_is_tolerated_is_found_and_none_else():
    def after(share, rows, seed):
        monitor = RiskMonitor(tolerated=0.2)
        monitor.update(torch.rand(rows, generator=seeded(seed)) < share)
        return monitor

    assert sum(after(0.2, 500, seed).alarm for seed in range(STREAMS)) <= 0.05 * STREAMS
    assert all(after(0.4, 500, seed).alarm for seed in range(20))


@pytest.mark.parametrize(
    "call",
    [
        lambda: Monitor([]),
        lambda: Monitor([0.5], alpha=1.0),
        lambda: Monitor([0.5]).update([float("nan")]),
        lambda: Monitor([1.5]),
        lambda: RiskMonitor(0.0),
        lambda: RiskMonitor(0.1).update([2.0]),
    ],
)
def test_bad_input(call):
    with pytest.raises(InputError):
        call()
