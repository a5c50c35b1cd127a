"""What every calibrator must do, those of all kinds and the one that the docs add; their names."""

from __future__ import annotations

import runpy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch_geometric.data import Data

from gduq import calibration
from gduq.calibration import METHODS, Calibrator, make, parse_name
from gduq.calibration.base import MixtureCalibrator
from gduq.errors import InputError, NotFittedError
from tests.calibration.kinds import KINDS, ROWS, SAMPLES, WEIGHTS, Kind, misled

MOVING = ("vector", "dirichlet")  # that may change the label of a single hypothesis
EXAMPLE = Path(__file__).parents[2] / "docs" / "extend" / "add_calibrator.py"
EVERY = [*METHODS, "even_blend"]
OF_CLASSES = [name for name in EVERY if name not in METHODS or METHODS[name].kind == "classes"]


@dataclass(frozen=True)
class Case:
    """An overconfident model's predictions of all nodes of a graph, and which rows are what."""

    name: str  # of the calibrator
    kind: Kind
    p: Any
    graph: Data
    train: Tensor
    val: Tensor
    test: Tensor

    @classmethod
    def of(cls, name: str, **options: Any) -> Case:
        kind, generator = KINDS[METHODS[name].kind], torch.Generator().manual_seed(1)
        edges = torch.randint(ROWS, (2, 400), generator=generator)
        graph = Data(edge_index=torch.cat([edges, edges.flip(0)], dim=1), num_nodes=ROWS)
        place, p = torch.arange(ROWS), kind.drawn(kind.size, **options)
        return cls(name, kind, p, graph, place < 40, (place >= 40) & (place < 180), place >= 180)

    def make(self) -> Calibrator:
        return make(self.name, self.graph, self.train)

    def fit(self, p: Any = None) -> Calibrator:
        return self.make().fit(self.p if p is None else p, rows=self.val)


@pytest.fixture(params=EVERY)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    if request.param not in METHODS:
        monkeypatch.setitem(METHODS, request.param, runpy.run_path(str(EXAMPLE))["EvenBlend"])
    return Case.of(request.param)


@pytest.fixture
def fitted(case: Case) -> Calibrator:
    return case.fit()


# -- meaning ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_neutral_is_the_identity(case, weighted):
    p, mixed = replace(case.p, weights=WEIGHTS) if weighted else case.p, case.kind.mixed
    q = case.make().neutral(case.kind.size, SAMPLES)(p)
    torch.testing.assert_close(q.samples, p.samples, rtol=1e-9, atol=1e-8)
    torch.testing.assert_close(mixed(q), mixed(p), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(q.epistemic, p.epistemic, rtol=1e-8, atol=1e-12)


def test_improves_nll_on_other_rows(case, fitted):
    assert case.kind.nll(fitted(case.p, rows=case.test)) < case.kind.nll(case.p[case.test])


def test_the_order_of_hypotheses_does_not_matter(case, fitted):
    order, mixed = [2, 0, 1], case.kind.mixed
    p = replace(case.p, weights=WEIGHTS)
    moved = replace(p, samples=p.samples[order], weights=WEIGHTS[order])
    torch.testing.assert_close(mixed(fitted(moved)), mixed(fitted(p)), rtol=1e-8, atol=1e-9)
    one, other = (mixed(case.fit(x)(x)) for x in (p, moved))
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_corrupted_copies(case):
    """Twice as many of the same copies change nothing; half of the loss is theirs."""
    calibrator, clean, nll, mixed = case.make(), case.p[case.val], case.kind.nll, case.kind.mixed
    copy = misled(clean)
    if calibrator.needs_graph:
        with pytest.raises(InputError):
            calibrator.fit(case.p, rows=case.val, corrupted=[copy])
        assert not calibrator.fitted
        return
    alone = calibrator.fit(clean)
    once = case.make().fit(clean, corrupted=[copy])
    twice = case.make().fit(case.p, rows=case.val, corrupted=[copy, copy])
    torch.testing.assert_close(mixed(once(clean)), mixed(twice(clean)), rtol=2e-3, atol=2e-3)
    assert nll(once(copy)) < nll(alone(copy)) - 0.02
    assert nll(once(clean)) + nll(once(copy)) < nll(alone(clean)) + nll(alone(copy))
    fewer = case.kind.drawn(case.kind.size, samples=2)
    for wrong in (replace(copy, target=None), copy[:0], fewer):
        with pytest.raises(InputError):
            calibrator.fit(clean, corrupted=[wrong])


@pytest.mark.parametrize("case", OF_CLASSES, indirect=True)
def test_which_labels_stay(case, fitted):
    """Of the mixture for any K, or of a single hypothesis only."""
    if isinstance(fitted, MixtureCalibrator):
        assert torch.equal(fitted(case.p).label, case.p.label)
    alone = Case.of(case.name, samples=1)
    q = alone.fit()(alone.p)
    assert torch.equal(q.label, alone.p.label) == (case.name not in MOVING)


@pytest.mark.parametrize("case", [n for n in OF_CLASSES if n not in MOVING], indirect=True)
def test_labels_stay_in_single_precision_at_near_ties(case):
    samples = SAMPLES if isinstance(case.make(), MixtureCalibrator) else 1
    case = Case.of(case.name, samples=samples, dtype=torch.float32)
    base = case.p.samples[:, :, :1].expand_as(case.p.samples)
    ulps = torch.randint(-3, 4, base.shape, generator=torch.Generator().manual_seed(5))
    p = replace(case.p, samples=base * (1 + ulps * torch.finfo(torch.float32).eps))
    assert torch.equal(case.fit()(p).label, p.label)


def test_disagreement_stays(case, fitted):
    """Rows that differed more before still differ more, and equal samples stay equal."""
    before, after = case.p.epistemic.flatten(), fitted(case.p).epistemic.flatten()
    assert torch.isfinite(after).all()
    low, high = before.argsort()[:60], before.argsort()[-60:]
    assert after[high].mean() > 2 * after[low].mean() > 0
    agreed = replace(case.p, samples=case.p.samples[:1].repeat(SAMPLES, 1, 1))
    assert fitted(agreed).epistemic.max() < 1e-9


@pytest.mark.parametrize("case", ["deviation", "per_label"], indirect=True)
def test_huge_outputs_stay_finite(case, fitted):
    factor = torch.ones(case.p.samples.size(-1))
    factor[: factor.numel() if case.name == "per_label" else case.kind.size] = 1e4  # not deviations
    huge = replace(case.p, samples=case.p.samples * factor)
    assert torch.isfinite(case.kind.answers(fitted(huge))).all()


# -- shapes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("samples", [1, SAMPLES])
def test_keeps_shapes_and_what_comes_along(case, dtype, samples):
    case = Case.of(case.name, samples=samples, dtype=dtype)
    q, expected = case.fit()(case.p, rows=case.test), case.p[case.test]
    assert (q.samples.shape, q.samples.dtype) == (expected.samples.shape, dtype)
    torch.testing.assert_close(q.target, expected.target, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(q.features, expected.features)
    for name in ("names", "units"):
        assert getattr(q, name, None) == getattr(expected, name, None)


def test_rows_choose_rows(case, fitted):
    index, answers = torch.nonzero(case.test).flatten(), case.kind.answers
    expected = answers(fitted(case.p)[case.test])
    for rows in (case.test, index, index.tolist(), slice(180, None)):
        torch.testing.assert_close(answers(fitted(case.p, rows=rows)), expected)
    if not fitted.needs_graph:
        assert fitted(case.p[:0]).samples.shape == case.p[:0].samples.shape


def test_rows_do_not_depend_on_their_neighbours_in_the_batch(case, fitted):
    if fitted.needs_graph:
        pytest.skip("rows of a graph calibrator depend on their neighbours by design")
    answers = case.kind.answers
    every = answers(fitted(case.p))
    torch.testing.assert_close(answers(fitted(case.p[[7]])), every[:, [7]])
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(answers(fitted(case.p[order])), every[:, order])
    torch.testing.assert_close(answers(case.make().fit(case.p[case.val])(case.p)), every)


# -- state -----------------------------------------------------------------------------------------


def test_save_and_load_is_bit_identical(case, fitted, tmp_path):
    save_file(fitted.state(), tmp_path / "state.safetensors")
    state = load_file(tmp_path / "state.safetensors")
    again = calibration.restore(type(fitted).__name__, state)
    if fitted.needs_graph:
        with pytest.raises(InputError):
            again(case.p)
        again = again.on(case.graph, train_rows=case.train)
    assert torch.equal(case.kind.answers(again(case.p)), case.kind.answers(fitted(case.p)))


def test_restore_refuses_a_damaged_state(fitted):
    for name in fitted.state():
        state = fitted.state()
        state.pop(name)
        with pytest.raises(InputError):
            calibration.restore(type(fitted).__name__, state)


def test_fitting_again_forgets_and_repeats(case, fitted):
    again = case.make()
    assert again.fit(case.p, rows=case.test) is again
    before = torch.get_rng_state()
    again.fit(case.p, rows=case.val)
    for value in again.state().values():
        value.zero_()  # of a copy
    assert torch.equal(case.kind.answers(again(case.p)), case.kind.answers(fitted(case.p)))
    assert torch.equal(torch.get_rng_state(), before)


# -- mistakes --------------------------------------------------------------------------------------


def test_unfitted_raises(case):
    calibrator = case.make()
    assert not calibrator.fitted
    for call in (lambda: calibrator(case.p), calibrator.state):
        with pytest.raises(NotFittedError):
            call()


def test_other_predictions_raise(case, fitted):
    """Of another number of classes or of samples, or of another kind."""
    size, drawn = case.kind.size, case.kind.drawn
    for p in (drawn(size + 1), drawn(size, samples=SAMPLES + 1)):
        with pytest.raises(InputError):
            fitted(p)
    for p in (kind.drawn(2) for kind in KINDS.values() if kind is not case.kind):
        for call in (fitted, case.make().fit, lambda p: case.make().fit(case.p, corrupted=[p])):
            with pytest.raises(InputError):
                call(p)


def test_targets_and_rows_are_needed_and_a_failed_fit_changes_nothing(case, fitted):
    p, before = case.p, case.kind.answers(fitted(case.p))
    with pytest.raises(InputError):
        fitted.fit(replace(p, target=None))
    for rows in (torch.zeros(ROWS).bool(), torch.ones(ROWS - 1).bool(), [0, ROWS]):
        with pytest.raises(InputError):
            fitted.fit(p, rows=rows)
    assert torch.equal(case.kind.answers(fitted(p)), before)


def test_names():
    for name, cls in METHODS.items():
        for given in (name, cls.__name__, cls.__name__.lower(), name.upper()):
            assert parse_name(given) == (name, False)
        if not cls.needs_graph:
            assert parse_name(f"{name}+corrupted") == (name, True)
    for call in (
        *(partial(parse_name, wrong) for wrong in ("platt", "cagcn+corrupted", "vector+more")),
        partial(calibration.restore, "Platt", {}),
    ):
        with pytest.raises(InputError):
            call()
