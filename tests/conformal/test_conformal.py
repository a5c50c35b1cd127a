"""Conformal sets: coverage over seeds, agreement with mapie, the warning under shift."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch_geometric.data import Data

from gduq import conformal
from gduq.conformal import APS, DAPS, ShiftWarning, SplitConformal, conformal_quantile, shift_test
from gduq.conformal.predictors import hashed_uniform
from gduq.errors import InputError, NotFittedError
from gduq.prediction import ClassPrediction

ROWS_ONLY = [SplitConformal, APS]


def draw(m: int, seed: int, scale: float = 1.5, classes: int = 6) -> ClassPrediction:
    """An overconfident model: labels follow half the logits."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(m, classes, generator=generator, dtype=torch.float64) * scale
    target = torch.multinomial((logits / 2).softmax(1), 1, generator=generator).squeeze(1)
    return ClassPrediction(logits, target=target, features=logits[:, :3])


def mean_size(sets) -> float:
    return float(sets.size.double().mean())


@pytest.mark.parametrize("alpha", [0.1, 0.35])
@pytest.mark.parametrize("method", ROWS_ONLY)
def test_marginal_coverage_over_seeds(method, alpha):
    coverages = []
    for seed in range(60):
        p = draw(60 + 200, seed)
        exact = method(alpha, nonempty=False, shift_level=0, seed=seed)
        coverages.append(exact.fit(p[:60])(p[60:]).coverage)
    error = 3 * np.std(coverages) / math.sqrt(len(coverages))
    assert 1 - alpha - error <= np.mean(coverages) <= 1 - alpha + 1 / 61 + error


@pytest.mark.parametrize("method", ROWS_ONLY)
def test_nonempty(method):
    p = draw(500, 0)
    plain = method(0.6, shift_level=0, nonempty=False).fit(p)(p)
    full, empty = method(0.6, shift_level=0).fit(p)(p), plain.size == 0
    assert (full.size >= 1).all()
    assert torch.equal(full.mask[~empty], plain.mask[~empty])
    assert torch.equal(full.mask[empty].int().argmax(1), p.label[empty])


class Given:
    """What mapie takes for a fitted model: X are the probabilities of a classifier, or a column of
    it is what a regressor predicts."""

    def __init__(self, column: int | None = None, features: int = 4) -> None:
        self.column, self.n_features_in_, self.classes_ = column, features, np.arange(features)

    def fit(self, X, y):
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict(self, X):
        return X.argmax(1) if self.column is None else X[:, self.column]

    def predict_proba(self, X):
        return X


def mapie_sets(score, p_val, p_test, alpha, **options):
    mapie = pytest.importorskip("mapie.classification", reason="the oracle mapie is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle = mapie.SplitConformalClassifier(
            Given(features=p_val.num_classes), confidence_level=1 - alpha, conformity_score=score,
            prefit=True, random_state=0,
        )  # fmt: skip
        oracle.conformalize(p_val.probs.numpy(), p_val.target.numpy())
        _, sets = oracle.predict_set(p_test.probs.numpy(), conformity_score_params=options or None)
    return torch.from_numpy(sets[:, :, 0])


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("n", [100, 501])
def test_split_conformal_equals_mapie(alpha, n):
    p_val, p_test = draw(n, 1), draw(400, 2)
    sets = SplitConformal(alpha, nonempty=False).fit(p_val)(p_test)
    assert torch.equal(sets.mask, mapie_sets("lac", p_val, p_test, alpha))


def test_aps_covers_and_sizes_like_mapie():
    ours, theirs = [], []
    for seed in range(12):
        p_val, p_test = draw(300, seed), draw(1000, 100 + seed)
        sets = APS(0.2, nonempty=False, shift_level=0, seed=seed).fit(p_val)(p_test)
        other = mapie_sets("aps", p_val, p_test, 0.2, include_last_label="randomized")
        ours.append((sets.coverage, mean_size(sets)))
        hit = other.gather(1, p_test.target.unsqueeze(1)).double().mean().item()
        theirs.append((hit, other.sum(1).double().mean().item()))
    assert np.mean(ours, axis=0) == pytest.approx(np.mean(theirs, axis=0), rel=0.02)


def test_scores_equal_their_formulas():
    p = draw(30, 0)
    u = hashed_uniform(p.log_probs, seed=1)
    aps = APS(seed=1)._scores(p)
    for i in range(30):
        for c in range(6):
            above = p.probs[i] > p.probs[i, c]
            expected = p.probs[i][above].sum() + u[i] * p.probs[i, c]
            assert aps[i, c].item() == pytest.approx(expected.item())


def test_quantile():
    scores = torch.tensor([3.0, 1.0, 2.0, 4.0])
    found = [conformal_quantile(scores, alpha) for alpha in (0.1, 0.2, 0.4, 0.99)]
    assert found == [math.inf, 4.0, 3.0, 1.0]


def homophilous(seed: int, n: int = 400) -> tuple[Data, ClassPrediction]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=generator)
    edges = torch.randint(n, (2, 20 * n), generator=generator)
    same = y[edges[0]] == y[edges[1]]
    edges = edges[:, same | (torch.rand(20 * n, generator=generator) < 0.02)]
    logits = torch.nn.functional.one_hot(y, 4) * 1.5
    logits = logits + 1.5 * torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return Data(edge_index=edges, num_nodes=n), ClassPrediction(logits, target=y)


def test_daps_covers_with_smaller_sets_than_aps():
    found = {"aps": [], "daps": []}
    for seed in range(25):
        data, p = homophilous(seed)
        half = torch.randperm(400, generator=torch.Generator().manual_seed(seed)) < 200
        for name, options in (("aps", {"weight": 0.0}), ("daps", {})):
            method = DAPS(data, 0.1, nonempty=False, shift_level=0, seed=seed, **options)
            sets = method.fit(p, rows=half)(p, rows=~half)
            found[name].append((sets.coverage, mean_size(sets)))
    (covered_aps, size_aps), (covered, size) = (np.mean(v, axis=0) for v in found.values())
    assert (covered_aps, covered) == pytest.approx((0.9, 0.9), abs=0.02)
    assert size < 0.8 * size_aps


def test_daps_scores_equal_a_dense_matrix():
    data, p = homophilous(0, n=40)
    data.edge_index = data.edge_index[:, (data.edge_index != 7).all(0)]  # node 7 is alone
    method = DAPS(data, weight=0.3)
    mixed, scores = method._scores(p), APS()._scores(p)
    adjacency = torch.zeros(40, 40, dtype=torch.float64)
    adjacency[data.edge_index[0], data.edge_index[1]] = 1
    adjacency = torch.maximum(adjacency, adjacency.t()).fill_diagonal_(0)
    degree = adjacency.sum(1, keepdim=True)
    around = torch.where(degree > 0, adjacency @ scores / degree.clamp_min(1), scores)
    assert torch.allclose(mixed, 0.7 * scores + 0.3 * around)
    assert torch.allclose(mixed[7], scores[7])


def test_daps_rows_as_calibrators_take_them():
    (data, p), last = homophilous(0), torch.arange(400) >= 390
    fitted = DAPS(data, shift_level=0).fit(p, rows=last)
    for rows in (torch.arange(390, 400), slice(390, None), list(range(-10, 0))):
        assert DAPS(data).fit(p, rows=rows).quantile == fitted.quantile
    assert torch.equal(fitted(p).mask[~last], fitted(p, rows=~last).mask)


def several(m: int, seed: int) -> ClassPrediction:
    """Five hypotheses that differ."""
    p, generator = draw(m, seed), torch.Generator().manual_seed(seed)
    return ClassPrediction(p.samples + 2 * torch.randn(5, m, 6, generator=generator), p.target)


@pytest.mark.parametrize("drawn", [draw, several])
def test_a_row_gets_the_same_set_alone_and_in_any_batch(drawn):
    p_val, p_test = drawn(300, 1), drawn(100, 2)
    fitted = APS(shift_level=0.0).fit(p_val)
    whole = fitted(p_test).mask
    alone = torch.cat([fitted(p_test[i : i + 1]).mask for i in range(100)])
    assert torch.equal(alone, whole)
    assert torch.equal(fitted(p_test[torch.arange(99, -1, -1)]).mask, whole.flip(0))
    assert not torch.equal(APS(shift_level=0.0, seed=1).fit(p_val)(p_test).mask, whole)


@pytest.mark.parametrize(
    ("method", "options"), [(SplitConformal, {}), (APS, {"randomized": False})]
)
def test_sets_are_those_of_the_mixture(method, options):
    parts = several(500, 0), several(50, 1)
    fitted = method(shift_level=0.0, **options).fit(parts[0])
    single = [ClassPrediction(p.log_probs, p.target) for p in parts]
    again = method(shift_level=0.0, **options).fit(single[0])
    assert again.quantile == pytest.approx(fitted.quantile)
    assert torch.equal(again(single[1]).mask, fitted(parts[1]).mask)
    mean = method(shift_level=0.0, **options).fit(parts[0].mean_logits())
    assert mean.quantile != pytest.approx(fitted.quantile, rel=1e-5)


@pytest.mark.parametrize("method", ROWS_ONLY)
def test_shift_is_warned_of_and_its_absence_not(method):
    fitted = method(0.1).fit(draw(500, 0))
    quiet = fitted(draw(500, 1))  # warnings are errors here
    assert quiet.shift.pvalue > 0.01
    with pytest.warns(ShiftWarning):
        loud = fitted(draw(500, 2, scale=0.5))
    assert loud.shift.pvalue < 1e-6
    assert method(0.1, shift_level=0).fit(draw(500, 0))(draw(500, 2, scale=0.5)).shift is None


def test_statistic_equals_scipy():
    first, second = draw(40, 0).features, draw(60, 1).features.round(decimals=1)
    found = conformal.shift._distances(first, second)
    for c in range(3):
        expected = ks_2samp(first[:, c].numpy(), second[:, c].numpy())
        assert found[c].item() == pytest.approx(expected.statistic, abs=1e-6)
    test = shift_test(ClassPrediction(first), ClassPrediction(second))
    probs = (rows.softmax(1) for rows in (first, second))
    seen = (torch.cat([p, p.amax(1, True)], 1).numpy() for p in probs)
    smallest = ks_2samp(*seen, method="asymp").pvalue.min()
    assert test.pvalue == pytest.approx(min(1, 4 * smallest), rel=1e-4)


@pytest.mark.parametrize("sparse", [False, True])
def test_shift_of_wide_features_and_many_rows(sparse):
    generator = torch.Generator().manual_seed(0)
    h = (torch.rand(2600, 520, generator=generator) > 0.9).float()
    h[2100:] += (torch.rand(500, 520, generator=generator) > 0.9).float()
    p = ClassPrediction(torch.randn(2600, 2, generator=generator), features=h)
    sets = [p[:500], p[500:1000], p[2100:]]
    if sparse:
        sets = [ClassPrediction(q.samples, features=q.features.to_sparse_csr()) for q in sets]
    assert shift_test(sets[0], sets[1]).pvalue > 0.01 > 1e-6 > shift_test(sets[0], sets[2]).pvalue
    assert shift_test(p, p).pvalue == 1.0


def test_bad_input():
    p, other = draw(60, 0), draw(60, 0, classes=3)
    data, nodes = homophilous(0, n=40)
    for call in [
        *(lambda a=a: SplitConformal(a) for a in (0, 1, -0.1, 2)),
        lambda: SplitConformal(shift_level=1.0),
        lambda: SplitConformal().fit(ClassPrediction(p.samples)),
        lambda: SplitConformal().fit(p[:0]),
        lambda: SplitConformal().fit(p)(other),
        lambda: DAPS(weight=2.0),
        lambda: DAPS().fit(p),
        lambda: DAPS(data).fit(p),
        *(lambda r=r: DAPS(data).fit(nodes, rows=r) for r in ([40], [-41], [0.5], slice(0, 0))),
        lambda: SplitConformal().fit(p)(ClassPrediction(p.samples)).coverage,
        lambda: shift_test(p, other),
        lambda: shift_test(p, ClassPrediction(p.samples, features=p.features[:, :1])),
        lambda: conformal.make(p, "cqr"),
    ]:
        with pytest.raises(InputError):
            call()
    for name in conformal.METHODS["classes"]:
        with pytest.raises(NotFittedError):
            conformal.make(p, name)(p)
