"""What every calibrator must do, whatever its predictions are about.

A battery for one kind of prediction says how to draw them (`drawn`), what they say (`said`) and
how good that is (`nll`); a test class says how to make its calibrator (`make`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch_geometric.data import Data

from gduq import calibration
from gduq.calibration import METHODS, Calibrator
from gduq.errors import InputError, NotFittedError

SAMPLES, ROWS = 3, 240
WEIGHTS = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


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

    def said(self, p: Any) -> Tensor:
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

    def restored(self, fitted: Calibrator, case: Case, samples: int) -> Calibrator:
        """The same map for another number of hypotheses."""
        state = fitted.state() | {"num_samples": torch.tensor(samples)}
        again = calibration.restore(type(fitted).__name__, fitted.config(), state)
        return bind(again, case) if fitted.needs_graph else again

    # -- meaning -------------------------------------------------------------------------------

    @pytest.mark.parametrize("weighted", [False, True])
    def test_neutral_is_the_identity(self, case, weighted):
        p = replace(case.p, weights=WEIGHTS) if weighted else case.p
        q = self.make(case).neutral(self.size, SAMPLES)(p)
        torch.testing.assert_close(q.samples, p.samples, rtol=1e-9, atol=1e-8)
        torch.testing.assert_close(self.mixed(q), self.mixed(p), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(q.epistemic, p.epistemic, rtol=1e-8, atol=1e-12)

    def test_improves_nll_on_its_own_rows(self, case, fitted):
        assert self.nll(fitted(case.p, rows=case.val)) < self.nll(case.p[case.val]) - 0.1

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
        if not calibrator.takes_copies:
            with pytest.raises(InputError, match="takes none"):
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
        with pytest.raises(InputError, match="targets"):
            calibrator.fit(clean, corrupted=[replace(copy, target=None)])
        with pytest.raises(InputError, match="an empty one"):
            calibrator.fit(clean, corrupted=[copy[:0]])
        with pytest.raises(InputError, match=rf"\(K, [CT]\) = \(3, {self.size}\)"):
            calibrator.fit(clean, corrupted=[self.drawn(self.size, samples=2)])

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
        for name in ("class_names", "names", "units"):
            assert getattr(q, name, None) == getattr(expected, name, None)

    def test_rows_choose_rows(self, case, fitted):
        index = torch.nonzero(case.test).flatten()
        whole = self.said(fitted(case.p)[case.test])
        for rows in (case.test, index, index.tolist(), slice(180, None)):
            torch.testing.assert_close(self.said(fitted(case.p, rows=rows)), whole)

    def test_rows_do_not_depend_on_their_neighbours_in_the_batch(self, case, fitted):
        if fitted.needs_graph:
            pytest.skip("rows of a graph calibrator depend on their neighbours by design")
        whole = self.said(fitted(case.p))
        torch.testing.assert_close(self.said(fitted(case.p[[7]])), whole[:, [7]])
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2))
        torch.testing.assert_close(self.said(fitted(case.p[order])), whole[:, order])
        subset = self.make(case).fit(case.p[case.val])(case.p)
        torch.testing.assert_close(self.said(subset), whole)

    # -- state ---------------------------------------------------------------------------------

    def test_save_and_load_is_bit_identical(self, case, fitted, tmp_path):
        save_file(fitted.state(), tmp_path / "state.safetensors")
        config = json.loads(json.dumps(fitted.config()))
        state = load_file(tmp_path / "state.safetensors")
        again = calibration.restore(type(fitted).__name__, config, state)
        if fitted.needs_graph:
            with pytest.raises(InputError, match="a graph for"):
                again(case.p)
            again = bind(again, case)
        assert again.fitted
        assert torch.equal(self.said(again(case.p)), self.said(fitted(case.p)))
        names = {name for name in state if "." not in name or name in fitted.state_names}
        assert names == {f"num_{self.kind}", "num_samples", *fitted.state_names}

    def test_restore_refuses_a_damaged_state(self, fitted):
        for name in fitted.state():
            state = fitted.state()
            state.pop(name)
            with pytest.raises(InputError, match=rf"without {name.split('.', 1)[-1]}|{name}"):
                calibration.restore(type(fitted).__name__, fitted.config(), state)
        with pytest.raises(InputError, match="nonsense"):
            type(fitted).restore({"nonsense": 1}, fitted.state())

    def test_state_is_a_copy(self, case, fitted):
        before = self.said(fitted(case.p))
        for value in fitted.state().values():
            value.zero_()
        assert torch.equal(self.said(fitted(case.p)), before)

    def test_fitting_again_forgets_and_repeats(self, case, fitted):
        again = self.make(case)
        assert again.fit(case.p, rows=case.test) is again
        again.fit(case.p, rows=case.val)
        assert torch.equal(self.said(again(case.p)), self.said(fitted(case.p)))

    def test_leaves_the_global_generator_alone(self, case):
        before = torch.get_rng_state()
        self.make(case).fit(case.p, rows=case.val)(case.p)
        assert torch.equal(torch.get_rng_state(), before)

    # -- mistakes ------------------------------------------------------------------------------

    def test_unfitted_raises(self, case):
        calibrator = self.make(case)
        assert not calibrator.fitted
        with pytest.raises(NotFittedError, match="Call fit"):
            calibrator(case.p)
        with pytest.raises(NotFittedError):
            calibrator.state()

    def test_another_number_of_classes_or_samples_raises(self, fitted):
        with pytest.raises(InputError, match=f"num_{self.kind} = {self.size}"):
            fitted(self.drawn(self.size + 1))
        with pytest.raises(InputError, match=f"num_samples = {SAMPLES}"):
            fitted(self.drawn(self.size, samples=SAMPLES + 1))

    def test_another_kind_of_prediction_raises(self, case, fitted):
        from tests.calibration import kinds

        for kind, draw in kinds.DRAWN.items():
            if kind == self.kind:
                continue
            name = next(iter(calibration.methods_for(kind).values())).__name__
            message = f"predictions about {self.kind} for .*, got some about {kind}.*{name}"
            with pytest.raises(InputError, match=message):
                fitted(draw(2))
            with pytest.raises(InputError, match=message):
                self.make(case).fit(draw(2))
            if fitted.takes_copies:
                with pytest.raises(InputError, match=message):
                    self.make(case).fit(case.p, corrupted=[draw(2)])

    def test_targets_and_rows_are_needed(self, case):
        p = case.p
        with pytest.raises(InputError, match="targets"):
            self.make(case).fit(replace(p, target=None))
        with pytest.raises(InputError, match="at least one row"):
            self.make(case).fit(p, rows=torch.zeros(ROWS, dtype=torch.bool))
        with pytest.raises(InputError, match="mask of 240"):
            self.make(case).fit(p, rows=torch.ones(ROWS - 1, dtype=torch.bool))
        with pytest.raises(InputError, match="row numbers"):
            self.make(case).fit(p, rows=[0, ROWS])

    def test_a_failed_fit_changes_nothing(self, case, fitted):
        before = self.said(fitted(case.p))
        with pytest.raises(InputError):
            fitted.fit(case.p, rows=[])
        assert torch.equal(self.said(fitted(case.p)), before)

    def test_is_a_method(self, fitted):
        assert type(fitted) in METHODS.values()
        assert type(fitted) in calibration.methods_for(self.kind).values()
        assert type(fitted).__name__ in repr(fitted)


def bind(calibrator: Calibrator, case: Case) -> Calibrator:
    if type(calibrator).__name__ == "GATS":
        return calibrator.on(case.graph, train_rows=case.train)
    return calibrator.on(case.graph)
