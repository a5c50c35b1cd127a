"""What every calibrator must do: a battery for all kinds of predictions, and what is their own.

A battery for one kind says how to draw predictions (`drawn`), what they give (`answers`) and how
good that is (`nll`); `makers` has the calibrators, by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch_geometric.data import Data

from gduq import calibration
from gduq.calibration import METHODS, Calibrator
from gduq.calibration.base import MixtureCalibrator
from gduq.errors import InputError, NotFittedError
from gduq.prediction import ClassPrediction
from tests.calibration.kinds import DRAWN, ROWS, SAMPLES, overconfident

CLASSES = 4
WEIGHTS = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
MOVING = ("vector", "dirichlet")  # that may change the label of a single hypothesis


@dataclass(frozen=True)
class Case:
    """An overconfident model's predictions of all nodes of a graph, and which rows are what."""

    p: Any
    graph: Data
    train: Tensor
    val: Tensor
    test: Tensor

    @classmethod
    def of(cls, p: Any) -> Case:
        generator = torch.Generator().manual_seed(1)
        edges = torch.randint(ROWS, (2, 400), generator=generator)
        graph = Data(edge_index=torch.cat([edges, edges.flip(0)], dim=1), num_nodes=ROWS)
        position = torch.arange(ROWS)
        return cls(p, graph, position < 40, (position >= 40) & (position < 180), position >= 180)


class AnyBattery:
    """The shared tests of all kinds."""

    kind: str
    size: int  # classes, values or labels of what is drawn
    makers: dict[str, Any]  # from a case to a calibrator, by name

    def __init_subclass__(cls) -> None:
        """The battery for each maker of a class that has some; others define `make`."""
        if "makers" in vars(cls):
            cls.maker = pytest.fixture(autouse=True, params=cls.makers)(cls._chosen)

    def _chosen(self, request) -> None:
        self._make = self.makers[request.param]

    def make(self, case: Case) -> Calibrator:
        return self._make(case)

    def drawn(self, size: int, samples: int = SAMPLES, dtype: torch.dtype = torch.float64) -> Any:
        """240 rows of an overconfident model, with targets, features and names."""
        raise NotImplementedError

    def answers(self, p: Any) -> Tensor:
        """All that predictions say, rows in the second dimension."""
        raise NotImplementedError

    def mixed(self, p: Any) -> Tensor:
        """What the mixture says."""
        raise NotImplementedError

    def nll(self, p: Any) -> float:
        """Of the mixture."""
        raise NotImplementedError

    def misled(self, p: Any) -> Any:
        """Copies of rows about which all hypotheses are misled alike."""
        raise NotImplementedError

    @pytest.fixture
    def case(self) -> Case:
        return Case.of(self.drawn(self.size))

    @pytest.fixture
    def fitted(self, case: Case) -> Calibrator:
        return self.make(case).fit(case.p, rows=case.val)

    def restored(self, fitted: Calibrator, samples: int) -> Calibrator:
        """The same map for another number of hypotheses."""
        state = fitted.state() | {"num_samples": torch.tensor(samples)}
        return calibration.restore(type(fitted).__name__, fitted.config(), state)

    # -- meaning -------------------------------------------------------------------------------

    @pytest.mark.parametrize("weighted", [False, True])
    def test_neutral_is_the_identity(self, case, weighted):
        p = replace(case.p, weights=WEIGHTS) if weighted else case.p
        q = self.make(case).neutral(self.size, SAMPLES)(p)
        torch.testing.assert_close(q.samples, p.samples, rtol=1e-9, atol=1e-8)
        torch.testing.assert_close(self.mixed(q), self.mixed(p), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(q.epistemic, p.epistemic, rtol=1e-8, atol=1e-12)

    def test_improves_nll_on_other_rows(self, case, fitted):
        assert self.nll(fitted(case.p, rows=case.test)) < self.nll(case.p[case.test])

    def test_the_order_of_hypotheses_does_not_matter(self, case, fitted):
        order = [2, 0, 1]
        p = replace(case.p, weights=WEIGHTS)
        moved = replace(p, samples=p.samples[order], weights=WEIGHTS[order])
        one, other = self.mixed(fitted(moved)), self.mixed(fitted(p))
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)
        one, other = (self.mixed(self.make(case).fit(x, rows=case.val)(x)) for x in (p, moved))
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)

    def test_weights_count_in_fitting(self, case):
        """All weight on one hypothesis: the others, spoilt, are not looked at."""
        spoilt = case.p.samples.clone()
        spoilt[1:] = -spoilt[1:]
        p = replace(case.p, samples=spoilt, weights=torch.tensor([1.0, 0.0, 0.0]))
        one = replace(case.p, samples=spoilt[:1])
        q, expected = (self.mixed(self.make(case).fit(x, rows=case.val)(x)) for x in (p, one))
        torch.testing.assert_close(q, expected, rtol=1e-3, atol=1e-4)

    def test_corrupted_copies(self, case):
        """Twice as many of the same copies change nothing; half of the loss is theirs."""
        calibrator, clean, nll = self.make(case), case.p[case.val], self.nll
        copy = self.misled(clean)
        if calibrator.needs_graph:
            with pytest.raises(InputError):
                calibrator.fit(case.p, rows=case.val, corrupted=[copy])
            assert not calibrator.fitted
            return
        alone = calibrator.fit(clean)
        once = self.make(case).fit(clean, corrupted=[copy])
        twice = self.make(case).fit(case.p, rows=case.val, corrupted=[copy, copy])
        same = self.mixed(once(clean)), self.mixed(twice(clean))
        torch.testing.assert_close(*same, rtol=2e-3, atol=2e-3)
        assert nll(once(copy)) < nll(alone(copy)) - 0.02
        half = 0.5 * nll(once(clean)) + 0.5 * nll(once(copy))
        assert half < 0.5 * nll(alone(clean)) + 0.5 * nll(alone(copy))
        bare, fewer = replace(copy, target=None), self.drawn(self.size, samples=2)
        for wrong in (bare, copy[:0], fewer):
            with pytest.raises(InputError):
                calibrator.fit(clean, corrupted=[wrong])

    # -- shapes --------------------------------------------------------------------------------

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("samples", [1, SAMPLES])
    def test_keeps_shapes_and_what_comes_along(self, dtype, samples):
        case = Case.of(self.drawn(self.size, samples=samples, dtype=dtype))
        q = self.make(case).fit(case.p, rows=case.val)(case.p, rows=case.test)
        expected = case.p[case.test]
        assert q.samples.shape == expected.samples.shape
        assert q.samples.dtype == dtype
        torch.testing.assert_close(q.target, expected.target, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(q.features, expected.features)
        assert repr(q) == repr(expected)
        for name in ("names", "units"):
            assert getattr(q, name, None) == getattr(expected, name, None)

    def test_rows_choose_rows(self, case, fitted):
        index = torch.nonzero(case.test).flatten()
        whole = self.answers(fitted(case.p)[case.test])
        for rows in (case.test, index, index.tolist(), slice(180, None)):
            torch.testing.assert_close(self.answers(fitted(case.p, rows=rows)), whole)

    def test_rows_do_not_depend_on_their_neighbours_in_the_batch(self, case, fitted):
        if fitted.needs_graph:
            pytest.skip("rows of a graph calibrator depend on their neighbours by design")
        whole = self.answers(fitted(case.p))
        torch.testing.assert_close(self.answers(fitted(case.p[[7]])), whole[:, [7]])
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2))
        torch.testing.assert_close(self.answers(fitted(case.p[order])), whole[:, order])
        subset = self.make(case).fit(case.p[case.val])(case.p)
        torch.testing.assert_close(self.answers(subset), whole)

    # -- state ---------------------------------------------------------------------------------

    def test_save_and_load_is_bit_identical(self, case, fitted, tmp_path):
        save_file(fitted.state(), tmp_path / "state.safetensors")
        config = json.loads(json.dumps(fitted.config()))
        state = load_file(tmp_path / "state.safetensors")
        again = calibration.restore(type(fitted).__name__, config, state)
        if fitted.needs_graph:
            with pytest.raises(InputError):
                again(case.p)
            again = bind(again, case)
        assert again.fitted
        assert torch.equal(self.answers(again(case.p)), self.answers(fitted(case.p)))

    def test_restore_refuses_a_damaged_state(self, fitted):
        for name in fitted.state():
            state = fitted.state()
            state.pop(name)
            with pytest.raises(InputError):
                calibration.restore(type(fitted).__name__, fitted.config(), state)
        with pytest.raises(InputError):
            type(fitted).restore({"nonsense": 1}, fitted.state())

    def test_fitting_again_forgets_and_repeats(self, case, fitted):
        again = self.make(case)
        assert again.fit(case.p, rows=case.test) is again
        before = torch.get_rng_state()
        again.fit(case.p, rows=case.val)
        for value in again.state().values():
            value.zero_()  # of a copy
        assert torch.equal(self.answers(again(case.p)), self.answers(fitted(case.p)))
        assert torch.equal(torch.get_rng_state(), before)

    # -- mistakes ------------------------------------------------------------------------------

    def test_unfitted_raises(self, case):
        calibrator = self.make(case)
        assert not calibrator.fitted
        with pytest.raises(NotFittedError):
            calibrator(case.p)
        with pytest.raises(NotFittedError):
            calibrator.state()

    def test_another_number_of_classes_or_samples_raises(self, fitted):
        for p in (self.drawn(self.size + 1), self.drawn(self.size, samples=SAMPLES + 1)):
            with pytest.raises(InputError):
                fitted(p)

    def test_another_kind_of_prediction_raises(self, case, fitted):
        for draw in (draw for kind, draw in DRAWN.items() if kind != self.kind):
            for call in (
                lambda p: fitted(p),
                lambda p: self.make(case).fit(p),
                lambda p: self.make(case).fit(case.p, corrupted=[p]),
            ):
                with pytest.raises(InputError):
                    call(draw(2))

    def test_targets_and_rows_are_needed_and_a_failed_fit_changes_nothing(self, case, fitted):
        p, before = case.p, self.answers(fitted(case.p))
        with pytest.raises(InputError):
            fitted.fit(replace(p, target=None))
        for rows in (torch.zeros(ROWS).bool(), torch.ones(ROWS - 1).bool(), [0, ROWS]):
            with pytest.raises(InputError):
                fitted.fit(p, rows=rows)
        assert torch.equal(self.answers(fitted(p)), before)


def bind(calibrator: Calibrator, case: Case) -> Calibrator:
    return calibrator.on(case.graph, train_rows=case.train)


def make_case(
    classes: int = CLASSES, samples: int = SAMPLES, dtype: torch.dtype = torch.float64
) -> Case:
    return Case.of(overconfident(classes=classes, samples=samples, dtype=dtype))


def nll(p: ClassPrediction) -> float:
    """Of the mixture."""
    return float(F.nll_loss(p.log_probs.double(), p.target))


class CalibratorBattery(AnyBattery):
    """The tests of those for classes; a subclass says how to make its calibrator."""

    kind = "classes"
    size = CLASSES

    def drawn(self, size, samples=SAMPLES, dtype=torch.float64):
        return overconfident(classes=size, samples=samples, dtype=dtype)

    def answers(self, p: ClassPrediction) -> Tensor:
        return p.samples

    def mixed(self, p: ClassPrediction) -> Tensor:
        return p.probs

    def nll(self, p: ClassPrediction) -> float:
        return nll(p)

    def misled(self, p: ClassPrediction) -> ClassPrediction:
        noise = torch.randn(p.logits.shape, generator=torch.Generator().manual_seed(3))
        return p.with_samples(p.samples + 4 * noise)

    def keeps_labels(self, calibrator: Calibrator) -> bool:
        return type(calibrator) not in [METHODS[name] for name in MOVING]

    def test_which_labels_stay(self, case, fitted):
        """Of the mixture for any K, or of a single hypothesis only."""
        if isinstance(fitted, MixtureCalibrator):
            assert torch.equal(fitted(case.p).label, case.p.label)
        alone = make_case(samples=1)
        q = self.make(alone).fit(alone.p, rows=alone.val)(alone.p)
        assert torch.equal(q.label, alone.p.label) == self.keeps_labels(fitted)

    def test_keeps_labels_in_single_precision_at_near_ties(self, case):
        calibrator = self.make(case)
        if not self.keeps_labels(calibrator):
            pytest.skip("may change labels")
        samples = SAMPLES if isinstance(calibrator, MixtureCalibrator) else 1
        case = make_case(samples=samples, dtype=torch.float32)
        calibrator.fit(case.p, rows=case.val)
        base = case.p.samples[:, :, :1].expand_as(case.p.samples)
        ulps = torch.randint(-3, 4, base.shape, generator=torch.Generator().manual_seed(5))
        close = base * (1 + ulps * torch.finfo(torch.float32).eps)
        p = case.p.with_samples(close.contiguous())
        assert torch.equal(calibrator(p).label, p.label)

    def test_disagreement_stays(self, case, fitted):
        """Rows that differed more before still differ more, and equal samples stay equal."""
        before, after = case.p.epistemic, fitted(case.p).epistemic
        assert torch.isfinite(after).all()
        low, high = before.argsort()[:60], before.argsort()[-60:]
        assert after[high].mean() > 2 * after[low].mean() > 0
        agreed = case.p.with_samples(case.p.logits.expand(SAMPLES, -1, -1).contiguous())
        assert fitted(agreed).spread.max() < 1e-9
