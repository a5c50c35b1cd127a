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
from gduq.metrics.ranking import Curve
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction

ALL = [*ClassPrediction.ood_scores, "mahalanobis", "knn"]


def planted(m: int, shift: float, seed: int) -> ClassPrediction:
    """Three clusters read by five noisy linear heads; ``shift`` moves rows between the clusters."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(3, (m,), generator=generator)
    h = torch.eye(3, dtype=torch.float64)[target] * 4
    h = h * (1 - shift) + 0.5 * torch.randn(m, 3, generator=generator, dtype=torch.float64)
    h = torch.cat([h, torch.full((m, 1), 3.0 * shift, dtype=h.dtype)], dim=1)
    fixed = torch.Generator().manual_seed(0)
    heads = torch.eye(4, 3, dtype=h.dtype) * 2 + torch.randn(
        5, 4, 3, generator=fixed, dtype=h.dtype
    ) * torch.tensor([[0.2], [0.2], [0.2], [2.0]], dtype=h.dtype)
    samples = torch.einsum("md,kdc->kmc", h, heads)
    novelty = (shift + torch.rand(m, generator=generator)) / (1 + shift)
    return ClassPrediction(samples, target=target, features=h, novelty=novelty)


@pytest.fixture(scope="module")
def sets() -> tuple[ClassPrediction, ClassPrediction, ClassPrediction]:
    return planted(400, 0.0, 1), planted(300, 0.0, 2), planted(200, 0.7, 3)


@pytest.mark.parametrize("score", ALL)
def test_every_score_finds_the_planted_shift(sets, score):
    train, p_id, p_ood = sets
    assert ood.auroc(p_id, p_ood, score=score, train=train) > 0.7
    assert ood.auroc(p_ood, p_id, score=score, train=train) < 0.3  # larger = more OOD
    assert 0.4 < ood.auroc(p_id, planted(300, 0.0, 9), score=score, train=train) < 0.6


def test_scores_restate_the_prediction(sets):
    p = sets[1]
    assert torch.allclose(ood.score(p, "msp"), 1 - p.confidence)
    assert torch.allclose(ood.score(p, "entropy"), p.entropy)
    assert torch.allclose(ood.score(p, "energy"), -p.samples.exp().sum(2).log().mean(0))
    assert torch.equal(ood.score(p, "novelty"), p.novelty)
    assert torch.equal(ood.score(p, "epistemic"), p.epistemic)
    assert torch.equal(ood.score(p, "spread"), p.spread.mean(1))


def test_msp_still_ranks_where_float32_softmax_is_one():
    p = ClassPrediction(torch.tensor([[50.0, 0.0], [40.0, 0.0]]))
    assert (p.confidence == 1.0).all()
    sure, less = ood.score(p, "msp").tolist()
    assert sure < less


def test_one_sample_has_no_epistemic_information():
    one = ClassPrediction(torch.randn(20, 3, generator=torch.Generator().manual_seed(0)))
    assert ood.auroc(one, one[:5], score="epistemic") == 0.5
    assert ood.auroc(one, one[:5], score="spread") == 0.5


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


def test_knn_equals_brute_force(sets):
    train, p_id, _ = sets
    known, rows = (torch.nn.functional.normalize(p.features, dim=1) for p in (train, p_id))
    distance = (rows.unsqueeze(1) - known).norm(dim=2).sort(dim=1).values[:, 4]
    assert torch.allclose(ood.KNN(5).fit(train)(p_id), distance, atol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
def test_wide_representations_are_projected(sparse):
    generator = torch.Generator().manual_seed(0)
    active = (torch.rand(80, 1000, generator=generator) > 0.7).float()
    known, far = (active[:60], torch.zeros(60, 1000)), (torch.zeros(20, 1000), active[60:])
    h, far = torch.cat(known, dim=1), torch.cat(far, dim=1)
    train, p_ood = (ClassPrediction(torch.zeros(len(x), 2), features=x) for x in (h, far))
    for score in (ood.Mahalanobis(), ood.KNN(3)):
        dense = score.fit(train)(p_ood)
        assert dense.min() > score(train).max()
        if sparse:
            parts = (ClassPrediction(p.samples, features=p.features.to_sparse_csr())
                     for p in (train, p_ood))  # fmt: skip
            assert torch.allclose(score.fit(next(parts))(next(parts)), dense, atol=1e-6)
        other = type(score)(seed=1).fit(train)(p_ood)
        assert not torch.equal(other, dense)


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
    _, precision, false_positives = Curve.of(sets).all()[:, 0].tolist()
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
        lambda: ood.auroc(p_id, p_ood, score="mps"),
        lambda: ood.score(bare, "novelty"),
        lambda: ood.auroc(p_id, p_ood, score=3),
        lambda: ood.auroc(p_id, p_ood, score="knn"),
        lambda: ood.auroc(p_id, bare, score="knn", train=train),
        lambda: ood.Mahalanobis().fit(bare),
        lambda: ood.KNN(0),
        lambda: ood.KNN(500).fit(train),
        lambda: ood.auroc(p_id, p_ood[:0]),
        lambda: metrics.auroc(torch.tensor([float("nan")]), torch.ones(2)),
        lambda: metrics.auroc(torch.ones(2, 2), torch.ones(2)),
    ]:
        with pytest.raises(InputError):
            call()
    other = ClassPrediction(p_id.samples, features=p_id.features[:, :2])
    with pytest.raises(InputError):
        ood.KNN(2).fit(train)(other)
    broken = ClassPrediction(p_id.samples, features=p_id.features * float("nan"))
    with pytest.raises(InputError):
        ood.KNN(2).fit(train)(broken)
    for score in (ood.Mahalanobis(), ood.KNN()):
        with pytest.raises(NotFittedError):
            score(p_id)


# -- values and labels ---------------------------------------------------------------------------


def of_values(m: int, shift: float, seed: int, width: int = 1) -> ValuePrediction:
    """Under shift the hypotheses lie apart, and rows are unlike the training data."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(1, m, width, generator=generator)
    means = means + (0.1 + shift) * torch.randn(4, m, width, generator=generator)
    noise = 0.1 * torch.randn(4, m, width, generator=generator)
    h = torch.randn(m, 3, generator=generator) + torch.tensor([6.0, 9 * shift, 0.0])
    novelty = (shift + torch.rand(m, generator=generator)) / (1 + shift)
    y = means.mean(dim=0)
    return ValuePrediction(torch.cat([means, noise], dim=2), y, features=h, novelty=novelty)


def of_labels(m: int, shift: float, seed: int) -> LabelPrediction:
    generator = torch.Generator().manual_seed(seed)
    logits = (1 - shift) * 4 * torch.randn(1, m, 3, generator=generator)
    samples = logits + (0.2 + 2 * shift) * torch.randn(4, m, 3, generator=generator)
    h = torch.randn(m, 3, generator=generator) + torch.tensor([6.0, 9 * shift, 0.0])
    novelty = (shift + torch.rand(m, generator=generator)) / (1 + shift)
    y = torch.where(torch.rand(m, 3, generator=generator) < 0.2, torch.nan, 1.0)
    return LabelPrediction(samples, y, features=h, novelty=novelty)


@pytest.mark.parametrize("draw", [of_values, of_labels])
def test_scores_of_values_and_labels_find_a_planted_shift(draw):
    train, p_id, p_ood = draw(300, 0.0, 1), draw(300, 0.0, 2), draw(200, 0.9, 3)
    for score in (None, *train.ood_scores, "mahalanobis", "knn"):
        values = ood.score(p_id, score, train)
        assert values.shape == (300,)
        assert ood.auroc(p_id, p_ood, score, train) > 0.7, score
        assert 0.4 < ood.auroc(p_id, draw(300, 0.0, 9), score, train) < 0.6, score


def test_scores_that_do_not_fit_the_kind():
    p, q, two = of_values(20, 0.5, 0), of_labels(20, 0.5, 0), of_values(20, 0.5, 0, width=2)
    assert torch.equal(ood.score(p), p.std)
    assert torch.equal(ood.score(q), q.entropy.mean(dim=1))
    assert torch.equal(ood.score(q, "epistemic"), q.epistemic.mean(dim=1))
    assert ood.score(two, "novelty").shape == (20,)
    for call in (
        lambda: ood.score(p, "msp"),
        lambda: ood.score(q, "energy"),
        lambda: ood.score(planted(9, 0.0, 0), "std"),
        lambda: ood.score(two),
    ):
        with pytest.raises(InputError):
            call()
