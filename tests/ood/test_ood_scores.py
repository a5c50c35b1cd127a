"""OOD scores on a planted shift, and ranking metrics against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import OAS
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from gduq import metrics, ood
from gduq.errors import InputError, NotFittedError
from gduq.metrics.ranking import separation
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction

ALL = [*ClassPrediction.ood_scores, ood.Mahalanobis()]


def planted(m: int, shift: float, seed: int) -> ClassPrediction:
    """Three clusters read by five noisy linear heads; ``shift`` moves rows between the clusters."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(3, (m,), generator=generator)
    h = torch.eye(3, dtype=torch.float64)[target] * 4
    h = h * (1 - shift) + 0.5 * torch.randn(m, 3, generator=generator, dtype=torch.float64)
    h = torch.cat([h, torch.full((m, 1), 3.0 * shift, dtype=h.dtype)], dim=1)
    fixed = torch.Generator().manual_seed(0)
    noise = torch.randn(5, 4, 3, generator=fixed, dtype=h.dtype)
    heads = 2 * torch.eye(4, 3) + noise * torch.tensor([[0.2], [0.2], [0.2], [2.0]]).double()
    samples = torch.einsum("md,kdc->kmc", h, heads)
    novelty = (shift + torch.rand(m, generator=generator)) / (1 + shift)
    return ClassPrediction(samples, target=target, features=h, novelty=novelty)


@pytest.fixture(scope="module")
def sets() -> tuple[ClassPrediction, ClassPrediction, ClassPrediction]:
    return planted(400, 0.0, 1), planted(300, 0.0, 2), planted(200, 0.7, 3)


@pytest.mark.parametrize("score", ALL)
def test_every_score_finds_the_planted_shift(sets, score):
    train, p_id, p_ood = sets
    by = score if isinstance(score, str) else score.fit(train)
    assert ood.auroc(p_id, p_ood, by) > 0.7
    assert ood.auroc(p_ood, p_id, by) < 0.3  # larger = more OOD
    assert 0.4 < ood.auroc(p_id, planted(300, 0.0, 9), by) < 0.6


def test_scores_restate_the_prediction(sets):
    p = sets[1]
    assert torch.allclose(ood.score(p, "msp"), 1 - p.confidence)
    assert torch.allclose(ood.score(p, "entropy"), p.entropy)
    assert torch.allclose(ood.score(p, "energy"), -p.samples.exp().sum(2).log().mean(0))
    assert torch.equal(ood.score(p, "spread"), p.spread.mean(1))


# -- feature scores ----------------------------------------------------------------------------


def test_mahalanobis_equals_its_definition():
    train = planted(300, 0.3, 1)
    h, y = train.features[:, :3], train.target
    score = ood.Mahalanobis().fit(ClassPrediction(train.samples, y, features=h))
    residual = torch.cat([h[y == c] - h[y == c].mean(0) for c in range(3)])
    inverse = torch.from_numpy(OAS(assume_centered=True).fit(residual.numpy()).precision_)
    gaps = torch.stack([h - h[y == c].mean(0) for c in range(3)])
    expected = torch.einsum("cmi,ij,cmj->cm", gaps, inverse, gaps).amin(0).sqrt()
    measured = score(ClassPrediction(train.samples, features=h))
    assert torch.allclose(measured, expected, rtol=1e-4)


@pytest.mark.parametrize("sparse", [False, True])
def test_wide_representations_are_projected(sparse):
    generator = torch.Generator().manual_seed(0)
    active = (torch.rand(80, 1000, generator=generator) > 0.7).float()
    known, far = (active[:60], torch.zeros(60, 1000)), (torch.zeros(20, 1000), active[60:])
    h, far = torch.cat(known, dim=1), torch.cat(far, dim=1)
    train, p_ood = (ClassPrediction(torch.zeros(len(x), 2), features=x) for x in (h, far))
    score = ood.Mahalanobis()
    dense = score.fit(train)(p_ood)
    assert dense.min() > score(train).max()
    if sparse:
        parts = (ClassPrediction(p.samples, features=p.features.to_sparse_csr())
                 for p in (train, p_ood))  # fmt: skip
        assert torch.allclose(score.fit(next(parts))(next(parts)), dense, atol=1e-6)


# -- ranking -----------------------------------------------------------------------------------


@given(n=st.integers(1, 30), k=st.integers(1, 30), ties=st.booleans(), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=50)
def test_ranking_equals_scikit_learn(n, k, ties, seed):
    random = np.random.default_rng(seed)
    negative, positive = random.normal(size=n), random.normal(0.5, size=k)
    if ties:
        negative, positive = negative.round(), positive.round()
    truth, scores = np.r_[np.zeros(n), np.ones(k)], np.r_[negative, positive]
    sets = torch.from_numpy(negative), torch.from_numpy(positive)
    assert metrics.auroc(*sets) == pytest.approx(roc_auc_score(truth, scores))
    _, precision, false_positives = (found.value for found in separation(*sets, resamples=2))
    assert precision == pytest.approx(average_precision_score(truth, scores))
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    assert false_positives == pytest.approx(false[true >= 0.95 - 1e-12].min())


def test_a_separation_of_very_few_rows_has_no_interval():
    few, many = torch.arange(4.0), torch.arange(20.0) + 2
    for sets in ((few, many), (many, few)):
        found = metrics.separation(*sets, resamples=20)
        assert found.auroc.value == metrics.auroc(*sets)
        assert all(math.isnan(end) for one in found for end in (one.low, one.high))
    assert metrics.separation(many, many + 1, resamples=20).auroc.high < 1


# -- bad input ---------------------------------------------------------------------------------


def test_bad_input(sets):
    train, p_id, p_ood = sets
    bare = ClassPrediction(p_id.samples)
    for call in [
        lambda: ood.auroc(p_id, p_ood, "mps"),
        lambda: ood.score(bare, "novelty"),
        lambda: ood.auroc(p_id, p_ood, 3),
        lambda: ood.Mahalanobis().fit(bare),
        lambda: ood.auroc(p_id, p_ood[:0]),
        lambda: metrics.auroc(torch.tensor([float("nan")]), torch.ones(2)),
        lambda: metrics.auroc(torch.ones(2, 2), torch.ones(2)),
    ]:
        with pytest.raises(InputError):
            call()
    for features in (p_id.features[:, :2], p_id.features * float("nan")):
        with pytest.raises(InputError):
            ood.Mahalanobis().fit(train)(ClassPrediction(p_id.samples, features=features))
    with pytest.raises(NotFittedError):
        ood.Mahalanobis()(p_id)


# -- values and labels ---------------------------------------------------------------------------


def moved(m: int, shift: float, generator: torch.Generator) -> dict[str, torch.Tensor]:
    h = torch.randn(m, 3, generator=generator) + torch.tensor([6.0, 9 * shift, 0.0])
    return {"features": h, "novelty": (shift + torch.rand(m, generator=generator)) / (1 + shift)}


def of_values(m: int, shift: float, seed: int, width: int = 1) -> ValuePrediction:
    """Under shift the hypotheses lie apart, and rows are unlike the training data."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(1, m, width, generator=generator)
    means = means + (0.1 + shift) * torch.randn(4, m, width, generator=generator)
    noise = 0.1 * torch.randn(4, m, width, generator=generator)
    along = moved(m, shift, generator)
    return ValuePrediction(torch.cat([means, noise], dim=2), means.mean(dim=0), **along)


def of_labels(m: int, shift: float, seed: int) -> LabelPrediction:
    generator = torch.Generator().manual_seed(seed)
    logits = (1 - shift) * 4 * torch.randn(1, m, 3, generator=generator)
    samples = logits + (0.2 + 2 * shift) * torch.randn(4, m, 3, generator=generator)
    y = torch.where(torch.rand(m, 3, generator=generator) < 0.2, torch.nan, 1.0)
    return LabelPrediction(samples, y, **moved(m, shift, generator))


@pytest.mark.parametrize("draw", [of_values, of_labels])
def test_scores_of_values_and_labels_find_a_planted_shift(draw):
    train, p_id, p_ood = draw(300, 0.0, 1), draw(300, 0.0, 2), draw(200, 0.9, 3)
    for by in (None, *train.ood_scores, ood.Mahalanobis().fit(train)):
        assert ood.score(p_id, by).shape == (300,)
        assert ood.auroc(p_id, p_ood, by) > 0.7, by
        assert 0.4 < ood.auroc(p_id, draw(300, 0.0, 9), by) < 0.6, by


def test_scores_that_do_not_fit_the_kind():
    p, q, two = of_values(20, 0.5, 0), of_labels(20, 0.5, 0), of_values(20, 0.5, 0, width=2)
    assert torch.equal(ood.score(p), p.std)
    assert torch.equal(ood.score(q), q.entropy.mean(dim=1))
    assert torch.equal(ood.score(q, "epistemic"), q.epistemic.mean(dim=1))
    for wrong in ((p, "msp"), (q, "energy"), (planted(9, 0.0, 0), "std"), (two,)):
        with pytest.raises(InputError):
            ood.score(*wrong)
