"""What every calibrator must do. A new one gets all of it by naming its factory:

class TestMine(CalibratorBattery):
    def make(self, case):
        return Mine()
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch_geometric.data import Data

from gduq import calibration, ood
from gduq.calibration import METHODS, Calibrator
from gduq.calibration.base import RowTemperature
from gduq.errors import InputError, NotFittedError
from gduq.prediction import Prediction

CLASSES, SAMPLES, ROWS = 4, 3, 240
WEIGHTS = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


@dataclass(frozen=True)
class Case:
    """An overconfident model's predictions of all nodes of a graph, and which rows are what."""

    p: Prediction
    graph: Data
    train: Tensor
    val: Tensor
    test: Tensor


def overconfident(
    rows: int = ROWS,
    classes: int = CLASSES,
    samples: int = SAMPLES,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Prediction:
    """Targets drawn from known probabilities; logits three times too large, samples jittered."""
    generator = torch.Generator().manual_seed(seed)
    truth = 1.5 * torch.randn(rows, classes, generator=generator)
    target = torch.multinomial(truth.softmax(dim=1), 1, generator=generator).squeeze(1)
    jitter = 0.5 * torch.randn(samples, rows, classes, generator=generator)
    features = torch.randn(rows, 5, generator=generator)
    names = tuple(f"class {c}" for c in range(classes))
    return Prediction((3 * truth + jitter).to(dtype), target, names, features=features)


def make_case(
    classes: int = CLASSES, samples: int = SAMPLES, dtype: torch.dtype = torch.float64
) -> Case:
    p = overconfident(classes=classes, samples=samples, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(ROWS, (2, 400), generator=generator)
    graph = Data(edge_index=torch.cat([edges, edges.flip(0)], dim=1), num_nodes=ROWS)
    position = torch.arange(ROWS)
    return Case(p, graph, position < 40, (position >= 40) & (position < 180), position >= 180)


def nll(p: Prediction) -> float:
    """Of the mixture."""
    return float(F.nll_loss(p.log_probs.double(), p.target))


class CalibratorBattery:
    """The shared tests; a subclass says how to make its calibrator."""

    def make(self, case: Case) -> Calibrator:
        raise NotImplementedError

    @pytest.fixture
    def case(self) -> Case:
        return make_case()

    @pytest.fixture
    def fitted(self, case: Case) -> Calibrator:
        return self.make(case).fit(case.p, rows=case.val)

    # -- meaning -------------------------------------------------------------------------------

    @pytest.mark.parametrize("weighted", [False, True])
    def test_neutral_is_the_identity(self, case, weighted):
        p = replace(case.p, weights=WEIGHTS) if weighted else case.p
        q = self.make(case).neutral(CLASSES, SAMPLES)(p)
        torch.testing.assert_close(q.samples, p.samples, rtol=1e-9, atol=1e-8)
        torch.testing.assert_close(q.probs, p.probs, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(q.epistemic, p.epistemic, rtol=1e-8, atol=1e-12)

    def test_every_ood_score_still_finds_a_planted_shift(self, case, fitted):
        """Of shifted rows the logits shrink and the hypotheses differ more."""
        far = 0.4 * case.p.logits + 3 * (case.p.samples - case.p.logits)
        strange = fitted(case.p.with_samples(far), rows=case.test)
        for score in [name for name in ood.scores_for("classes") if name != "novelty"]:
            assert ood.auroc(fitted(case.p, rows=case.test), strange, score) > 0.6, score

    def test_improves_nll_on_its_own_rows(self, case, fitted):
        assert nll(fitted(case.p, rows=case.val)) < nll(case.p[case.val]) - 0.1

    def test_improves_nll_on_other_rows(self, case, fitted):
        assert nll(fitted(case.p, rows=case.test)) < nll(case.p[case.test])

    def test_keeps_labels_if_it_says_so(self, case, fitted):
        """Of the mixture always, or of a single hypothesis only."""
        if fitted.keeps_accuracy:
            assert torch.equal(fitted(case.p).label, case.p.label)
        alone = make_case(samples=1)
        q = self.make(alone).fit(alone.p, rows=alone.val)(alone.p)
        if fitted.keeps_order or fitted.keeps_accuracy:
            assert torch.equal(q.label, alone.p.label)
        else:
            assert not torch.equal(q.label, alone.p.label)

    def test_keeps_the_order_of_classes_if_it_says_so(self, case, fitted):
        if fitted.keeps_order:
            assert torch.equal(fitted(case.p).samples.argsort(-1), case.p.samples.argsort(-1))

    def test_keeps_labels_in_single_precision_at_near_ties(self):
        kind = type(self.make(make_case()))
        samples = SAMPLES if kind.keeps_accuracy else 1
        if not (kind.keeps_accuracy or kind.keeps_order):
            pytest.skip("may change labels")
        case = make_case(samples=samples, dtype=torch.float32)
        calibrator = self.make(case).fit(case.p, rows=case.val)
        base = case.p.samples[:, :, :1].expand_as(case.p.samples)
        ulps = torch.randint(-3, 4, base.shape, generator=torch.Generator().manual_seed(5))
        close = base * (1 + ulps * torch.finfo(torch.float32).eps)
        p = case.p.with_samples(close.contiguous())
        assert torch.equal(calibrator(p).label, p.label)

    def test_acts_on_what_it_says(self, case, fitted):
        """The mixture: a function of its probabilities. Samples: each mapped by itself."""
        p, q = case.p, fitted(case.p)
        assert fitted.acts_on in ("samples", "mixture")
        if fitted.acts_on == "mixture":
            alone = self.restored(fitted, case, samples=1)
            once = alone(p.with_samples(p.log_probs[None]))
            torch.testing.assert_close(q.probs, once.probs, rtol=1e-7, atol=1e-9)
            return
        if isinstance(fitted, RowTemperature):  # from whatever it reads, one for all hypotheses
            expected = p.samples / fitted.temperature(p)[:, None]
            torch.testing.assert_close(q.samples, expected, rtol=1e-9, atol=1e-9)
            return
        alone = self.restored(fitted, case, samples=1)
        for k in range(SAMPLES):
            once = alone(p.with_samples(p.samples[k : k + 1]))
            torch.testing.assert_close(q.samples[k], once.samples[0], rtol=1e-9, atol=1e-9)

    def test_the_order_of_hypotheses_does_not_matter(self, case, fitted):
        order = [2, 0, 1]
        p = replace(case.p, weights=WEIGHTS)
        moved = replace(p, samples=p.samples[order], weights=WEIGHTS[order])
        torch.testing.assert_close(fitted(moved).probs, fitted(p).probs, rtol=1e-8, atol=1e-9)
        a, b = (self.make(case).fit(x, rows=case.val)(x) for x in (p, moved))
        torch.testing.assert_close(a.probs, b.probs, rtol=1e-3, atol=1e-4)

    def test_weights_count_in_fitting(self, case):
        """All weight on one hypothesis: the others, spoilt, are not looked at."""
        spoilt = case.p.samples.clone()
        spoilt[1:] = -spoilt[1:]
        p = Prediction(spoilt, case.p.target, features=case.p.features, weights=[1.0, 0.0, 0.0])
        q = self.make(case).fit(p, rows=case.val)(p)
        one = Prediction(spoilt[:1], case.p.target, features=case.p.features)
        expected = self.make(case).fit(one, rows=case.val)(one)
        torch.testing.assert_close(q.probs, expected.probs, rtol=1e-3, atol=1e-4)

    def test_disagreement_stays(self, case, fitted):
        """Rows that differed more before still differ more, and equal samples stay equal."""
        before, after = case.p.epistemic, fitted(case.p).epistemic
        assert torch.isfinite(after).all()
        low, high = before.argsort()[:60], before.argsort()[-60:]
        assert after[high].mean() > 2 * after[low].mean() > 0
        agreed = case.p.with_samples(case.p.logits.expand(SAMPLES, -1, -1).contiguous())
        assert fitted(agreed).spread.max() < 1e-9

    def test_corrupted_copies(self, case):
        """Twice as many of the same copies change nothing; half of the loss is theirs."""
        calibrator = self.make(case)
        clean = case.p[case.val]
        noise = torch.randn(clean.logits.shape, generator=torch.Generator().manual_seed(3))
        copy = clean.with_samples(clean.samples + 4 * noise)  # all hypotheses are misled alike
        if not calibrator.takes_copies:
            with pytest.raises(InputError, match="takes none"):
                calibrator.fit(case.p, rows=case.val, corrupted=[copy])
            assert not calibrator.fitted
            return
        alone = calibrator.fit(clean)
        once = self.make(case).fit(clean, corrupted=[copy])
        twice = self.make(case).fit(case.p, rows=case.val, corrupted=[copy, copy])
        torch.testing.assert_close(once(clean).probs, twice(clean).probs, rtol=2e-3, atol=2e-3)
        assert nll(once(copy)) < nll(alone(copy)) - 0.02
        half = 0.5 * nll(once(clean)) + 0.5 * nll(once(copy))
        assert half < 0.5 * nll(alone(clean)) + 0.5 * nll(alone(copy))
        with pytest.raises(InputError, match="targets"):
            calibrator.fit(clean, corrupted=[replace(copy, target=None)])
        with pytest.raises(InputError, match="an empty one"):
            calibrator.fit(clean, corrupted=[copy[:0]])
        with pytest.raises(InputError, match=r"\(K, C\) = \(3, 4\)"):
            calibrator.fit(clean, corrupted=[overconfident(samples=2)])

    def restored(self, fitted: Calibrator, case: Case, samples: int) -> Calibrator:
        """The same map for another number of hypotheses."""
        state = fitted.state() | {"num_samples": torch.tensor(samples)}
        again = calibration.restore(type(fitted).__name__, fitted.config(), state)
        return _bind(again, case) if fitted.needs_graph else again

    # -- shapes --------------------------------------------------------------------------------

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("samples", [1, SAMPLES])
    def test_keeps_shapes_and_what_comes_along(self, dtype, samples):
        case = make_case(samples=samples, dtype=dtype)
        q = self.make(case).fit(case.p, rows=case.val)(case.p, rows=case.test)
        assert q.samples.shape == (samples, int(case.test.sum()), CLASSES)
        assert q.samples.dtype == dtype
        assert torch.equal(q.target, case.p.target[case.test])
        assert torch.equal(q.features, case.p.features[case.test])
        assert q.class_names == case.p.class_names

    def test_rows_choose_rows(self, case, fitted):
        index = torch.nonzero(case.test).flatten()
        whole = fitted(case.p)[case.test].samples
        for rows in (case.test, index, index.tolist(), slice(180, None)):
            torch.testing.assert_close(fitted(case.p, rows=rows).samples, whole)

    def test_rows_do_not_depend_on_their_neighbours_in_the_batch(self, case, fitted):
        if fitted.needs_graph:
            pytest.skip("rows of a graph calibrator depend on their neighbours by design")
        whole = fitted(case.p).samples
        torch.testing.assert_close(fitted(case.p[[7]]).samples, whole[:, [7]])
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2))
        torch.testing.assert_close(fitted(case.p[order]).samples, whole[:, order])
        subset = self.make(case).fit(case.p[case.val])(case.p)
        torch.testing.assert_close(subset.samples, whole)

    def test_a_one_logit_task_is_two_logits(self, case):
        two = make_case(classes=2)
        one = two.p.samples[:, :, 1:] - two.p.samples[:, :, :1]
        p = Prediction(one, two.p.target, features=two.p.features)
        q = self.make(two).fit(p, rows=two.val)(p)
        assert q.num_classes == 2
        assert nll(q) < nll(p)

    def test_huge_logits_stay_finite(self, case, fitted):
        p = case.p.with_samples(case.p.samples * 1e4)
        assert torch.isfinite(fitted(p).probs).all()

    # -- state ---------------------------------------------------------------------------------

    def test_save_and_load_is_bit_identical(self, case, fitted, tmp_path):
        save_file(fitted.state(), tmp_path / "state.safetensors")
        config = json.loads(json.dumps(fitted.config()))
        state = load_file(tmp_path / "state.safetensors")
        again = calibration.restore(type(fitted).__name__, config, state)
        if fitted.needs_graph:
            with pytest.raises(InputError, match="a graph for"):
                again(case.p)
            again = _bind(again, case)
        assert again.fitted
        assert torch.equal(again(case.p).samples, fitted(case.p).samples)
        assert set(state) == {"num_classes", "num_samples", *fitted.state_names}

    def test_restore_refuses_a_damaged_state(self, fitted):
        state = fitted.state()
        state.pop(fitted.state_names[0])
        with pytest.raises(InputError, match=fitted.state_names[0]):
            calibration.restore(type(fitted).__name__, fitted.config(), state)
        with pytest.raises(InputError, match="nonsense"):
            type(fitted).restore({"nonsense": 1}, fitted.state())

    def test_state_is_a_copy(self, case, fitted):
        before = fitted(case.p).samples
        for value in fitted.state().values():
            value.zero_()
        assert torch.equal(fitted(case.p).samples, before)

    def test_fitting_again_forgets_and_repeats(self, case, fitted):
        again = self.make(case)
        assert again.fit(case.p, rows=case.test) is again
        again.fit(case.p, rows=case.val)
        assert torch.equal(again(case.p).samples, fitted(case.p).samples)

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
        with pytest.raises(InputError, match=f"num_classes = {CLASSES}"):
            fitted(overconfident(classes=CLASSES + 1))
        with pytest.raises(InputError, match=f"num_samples = {SAMPLES}"):
            fitted(overconfident(samples=SAMPLES + 1))

    def test_targets_and_rows_are_needed(self, case):
        p = case.p
        with pytest.raises(InputError, match="targets"):
            self.make(case).fit(Prediction(p.samples, features=p.features))
        with pytest.raises(InputError, match="at least one row"):
            self.make(case).fit(p, rows=torch.zeros(ROWS, dtype=torch.bool))
        with pytest.raises(InputError, match="mask of 240"):
            self.make(case).fit(p, rows=torch.ones(ROWS - 1, dtype=torch.bool))
        with pytest.raises(InputError, match="row numbers"):
            self.make(case).fit(p, rows=[0, ROWS])

    def test_a_failed_fit_changes_nothing(self, case, fitted):
        before = fitted(case.p).samples
        with pytest.raises(InputError):
            fitted.fit(case.p, rows=[])
        assert torch.equal(fitted(case.p).samples, before)

    def test_is_a_method(self, fitted):
        assert type(fitted) in METHODS.values()
        assert type(fitted).__name__ in repr(fitted)


def _bind(calibrator: Calibrator, case: Case) -> Calibrator:
    if type(calibrator).__name__ == "GATS":
        return calibrator.on(case.graph, train_rows=case.train)
    return calibrator.on(case.graph)
