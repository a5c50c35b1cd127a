"""Histogram binning, against netcal."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gduq.calibration import HistogramBinning
from gduq.errors import InputError
from gduq.prediction import Prediction
from tests.calibration.battery import overconfident


def test_equals_netcals():
    binning = pytest.importorskip("netcal.binning", reason="netcal is not installed")
    p = overconfident(rows=2000, samples=1)
    theirs = binning.HistogramBinning(bins=5)
    theirs.fit(p.probs.numpy(), p.target.numpy())
    ours = HistogramBinning(bins=5).fit(p)
    assert ours.state()["filled"].all()  # netcal fills empty bins with their middle
    np.testing.assert_allclose(ours(p).probs, theirs.transform(p.probs.numpy()), atol=2e-6)


def test_by_hand():
    """Two bins, two classes: 3 of 4 right above one half."""
    z = torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 1.0]] * 4)
    p = Prediction(z, torch.tensor([0, 0, 0, 1, 1, 1, 1, 1]))
    q = HistogramBinning(bins=2).fit(p)(p)
    torch.testing.assert_close(q.probs[0], torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(q.probs[4], torch.tensor([0.0, 1.0]), atol=2e-6, rtol=0)


def test_bins_of_equal_mass_hold_equally_many():
    p = overconfident(rows=1000, samples=1)
    edges = HistogramBinning(bins=10, scheme="mass").fit(p).state()["edges"]
    for c in range(4):
        inside = torch.bucketize(p.probs[:, c].contiguous(), edges[c].contiguous())
        assert torch.bincount(inside, minlength=10).tolist() == [100] * 10


def test_an_empty_bin_changes_nothing():
    sure = Prediction(torch.tensor([[9.0, 0.0], [0.0, 9.0]] * 5), torch.arange(10) % 2)
    cal = HistogramBinning(bins=4).fit(sure)
    unsure = Prediction(torch.tensor([[0.5, 0.0]]))
    torch.testing.assert_close(cal(unsure).probs, unsure.probs)


def test_mistakes():
    p = overconfident(rows=9, samples=1)
    with pytest.raises(InputError, match=r"as many rows as bins, 10, got 9.*fewer bins"):
        HistogramBinning().fit(p)
    with pytest.raises(InputError, match="bins >= 2"):
        HistogramBinning(bins=1)
    with pytest.raises(InputError, match="scheme"):
        HistogramBinning(scheme="both")
    with pytest.raises(InputError, match="missing"):
        HistogramBinning(missing="drop")
