"""What every calibrator is: fitted on a prediction, called on one, saved as tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.func import functional_call

from gduq._torch import exporting
from gduq.errors import InputError, NotFittedError
from gduq.graphs import Graph
from gduq.prediction import ClassPrediction, Prediction
from gduq.prediction.base import RowChoice, row_index
from gduq.prediction.mixture import Part, Weights, best_temperature, log_mean, log_mixture

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "CalibrationSet", "Calibrator", "ClassCalibrator", "MixtureCalibrator", "NetworkCalibrator",
    "doubles", "match", "minimise", "same_energy", "samples_of",
]  # fmt: skip

_TINY = 1e-300
P = TypeVar("P", bound=Prediction)


@dataclass(eq=False)
class Calibrator(ABC):
    """A map of predictions learnt on held-out ones, by the likelihood of their mixture.

    Shape ``[K, m, O]``, dtype and device are kept; K and O are as at fitting. A new one derives
    from `ClassCalibrator`, or from one of those below, and defines `_fit`, `_map` and `_neutral`.

    Attributes:
        kind: What its predictions are about: ``"classes"``, ``"values"`` or ``"labels"``.
        needs_graph: Reads the graph around the rows (`CaGCN`, `GATS`): predictions cover all nodes,
            and there are no corrupted copies to learn from.
    """

    kind: ClassVar[str]
    needs_graph: ClassVar[bool] = False

    _state: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def fit(
        self, p: Prediction, rows: RowChoice | None = None, corrupted: Sequence[Prediction] = ()
    ) -> Self:
        """Learn the map from labelled predictions, best those of a validation split.

        Args:
            p: Predictions with targets.
            rows: Fit on these rows of ``p`` only (mask, slice or indices).
            corrupted: Predictions, with targets, of corrupted copies of the rows by the same model:
                half of the loss is theirs.
        """
        self._check_kind(p)
        if corrupted and self.needs_graph:
            raise InputError("no corrupted copies", "some", f"{type(self).__name__} takes none.")
        data = CalibrationSet(p.to("cpu"), row_index(rows, len(p)), corrupted)
        self._state = self._sizes(p.width, p.num_samples) | self._fit(data)
        return self

    def __call__(self, p: P, rows: RowChoice | None = None) -> P:
        """Calibrated predictions of the same model and bank; with ``rows``, of some rows only."""
        if not exporting():  # where numbers of rows, classes and hypotheses are symbols
            self._check(p)
        if rows is None:
            return self._apply(p)
        index = row_index(rows, len(p))  # rows that look at neighbours are chosen after the map
        return self._apply(p)[index] if self.needs_graph else self._apply(p[index])

    def neutral(self, size: int, num_samples: int = 1) -> Self:
        """A fitted calibrator that is the identity, of so many classes, values or labels."""
        self._state = self._sizes(size, num_samples) | self._neutral(size)
        return self

    def on(self, graph: Graph | None, train_rows: RowChoice | None = ()) -> Self:
        """The same for another graph and its training nodes; only one that reads it differs."""
        return self

    @property
    def fitted(self) -> bool:
        """Whether `fit` (or `neutral`, or `restore`) has been called."""
        return bool(self._state)

    def state(self) -> dict[str, Tensor]:
        """Everything learnt, as tensors; `restore` takes it back bit by bit."""
        if not self._state:
            name = type(self).__name__
            raise NotFittedError(f"a fitted {name}", "one before fit", "Call fit(p_val) first.")
        return {name: value.clone().contiguous() for name, value in self._state.items()}

    @classmethod
    def restore(cls, state: Mapping[str, Tensor]) -> Self:
        """A fitted calibrator from what `state` gave."""
        calibrator = cls().neutral(2)  # which names all tensors that there must be
        if missing := sorted(set(calibrator._state) - set(state)):
            raise InputError(f"a saved {cls.__name__}", f"one without {', '.join(missing)}")
        calibrator._state = {name: value.clone() for name, value in state.items()}
        return calibrator

    @abstractmethod
    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        """What is learnt, by the names that `_neutral` has."""

    @abstractmethod
    def _map(self, p: Any) -> Tensor:
        """New samples ``[K, m, O]``, float64 on the CPU."""

    @abstractmethod
    def _neutral(self, size: int, /) -> dict[str, Tensor]:
        """The parameters of the identity."""

    def _apply(self, p: P) -> P:
        return p.with_samples(self._map(p).to(p.samples.device, p.samples.dtype))

    def _sizes(self, width: int, num_samples: int) -> dict[str, Tensor]:
        sizes = {f"num_{self.kind}": width, "num_samples": num_samples}
        return {name: torch.tensor(size) for name, size in sizes.items()}

    def _check_kind(self, p: Prediction) -> None:
        if p.kind != self.kind:
            wanted = f"predictions about {self.kind} for {type(self).__name__}"
            do = f"gduq.calibration.methods_for({p.kind!r}) lists those for {p.kind}."
            raise InputError(wanted, f"some about {p.kind}", do)

    def _check(self, p: Prediction) -> None:
        """Raise for what it cannot map."""
        state = self.state()
        self._check_kind(p)
        for name, got in self._sizes(p.width, p.num_samples).items():
            if got != state[name]:
                wanted = f"predictions with {name} = {int(state[name])}, as at fitting"
                do = "Fit and apply a calibrator on predictions of one model with one bank."
                raise InputError(wanted, int(got), do)


class ClassCalibrator(Calibrator):
    """A calibrator for classes; rounding never changes a label."""

    kind: ClassVar[str] = "classes"

    def _apply(self, p: Any) -> Any:
        q = super()._apply(p)
        return q if exporting() else _same_label(p, q)


class MixtureCalibrator(ClassCalibrator):
    """A calibrator of the mixture's probabilities, which keeps its labels.

    The hypotheses move with it, and keep their distances (`match`).
    """

    @abstractmethod
    def _map_mixture(self, logs: Tensor) -> Tensor:
        """Log-probabilities of the mixture ``[m, C]``, mapped, up to a constant per row."""

    def _map(self, p: ClassPrediction) -> Tensor:
        samples = samples_of(p)
        after = self._map_mixture(log_mixture(samples, p.weights)).log_softmax(dim=-1)
        return same_energy(samples, match(samples, after, p.weights))


@dataclass(eq=False)
class NetworkCalibrator(ClassCalibrator):
    r"""A calibrator whose map is a small network, after temperature scaling.

    Attributes:
        prior: Deviation :math:`\tau` of a normal prior that pulls every weight to 0, where the
            network changes nothing: strong when rows are few, fading as they grow.
        penalty: How much the prior counts; 0, for likelihood alone, as it was published.
    """

    prior: ClassVar[float] = 0.2

    penalty: float = field(default=1.0, kw_only=True)

    @abstractmethod
    def _network(self, classes: int) -> nn.Module:
        """The network that the fit begins with, in float64."""

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        """Of a network whose last layer begins at zero."""
        return {"scale": doubles(1.0)} | dict(self._network(num_classes).state_dict())

    def _fitted(
        self, data: CalibrationSet, scale: Tensor, loss: Callable[[Callable[..., Tensor]], Tensor]
    ) -> dict[str, Tensor]:
        r"""1/T and the network's parameters :math:`\theta` of n rows.

        They have the lowest loss, of the network as a function, plus
        :math:`\frac{1}{2 n \tau^2}\|\theta\|^2` times the ``penalty``.
        """
        module = self._network(data.p.width)

        def objective(values: dict[str, Tensor]) -> Tensor:
            fit = loss(lambda *inputs: functional_call(module, values, inputs))
            squares = nn.utils.parameters_to_vector(values.values()).square().sum()
            return fit + self.penalty * squares / (2 * data.rows * self.prior**2)

        found = minimise(objective, dict(module.named_parameters()), steps=100, tolerance=1e-7)
        return {"scale": scale} | found


def match(samples: Tensor, wanted: Tensor, weights: Weights = None) -> Tensor:
    r"""Hypotheses of another mixture, which differ from it as they did.

    .. math:: p'_k = \bar p' + a\,(p_k - \bar p)

    in every row with an a of at most 1, as large as leaves each hypothesis a thousandth of
    :math:`\bar p'`. Rows that are as wanted stay. ``wanted`` and the result are
    log-probabilities, ``[m, C]`` and ``[K, m, C]``, float64.
    """
    logs, mixed = samples.log_softmax(dim=-1, dtype=torch.float64), log_mixture(samples, weights)
    far = ((wanted - mixed).abs() > 1e-10).any(dim=-1, keepdim=True)
    each, before, after = logs.exp(), mixed.exp(), wanted.exp().clamp_min(_TINY)
    room = 0.999 * after / (before - each).clamp_min(_TINY)  # without end where p_k is above it
    share = room.amin(dim=(0, 2)).clamp(max=1.0).unsqueeze(1)
    moved = after + share * (each - before)
    return torch.where(far, moved.clamp_min(_TINY).log(), logs)


def same_energy(before: Tensor, after: Tensor) -> Tensor:
    r"""New logits ``[K, m, C]``, of which only probabilities count, with the old energy.

    The free constant per row and hypothesis keeps :math:`\log\sum_c e^{s_{kc}}` as it was.
    """
    return after + (before.logsumexp(-1) - after.logsumexp(-1)).unsqueeze(-1)


def _same_label(p: ClassPrediction, q: ClassPrediction) -> ClassPrediction:
    """``q`` with labels that rounding has moved, by a few units in the last place, moved back."""
    before = p.label
    moved = torch.nonzero(q.label != before).flatten()
    if not len(moved):
        return q
    samples, label = q.samples.clone(), before[moved]
    unit = torch.finfo(samples.dtype).eps * samples[:, moved].abs().amax(dim=(0, 2)).clamp_min(1.0)
    gap = q.log_probs[moved].amax(dim=1) - q.log_probs[moved, label]
    lift = torch.where(gap <= 8 * unit, gap + 8 * unit, 0.0).to(samples.dtype)
    samples[:, moved, label] += lift
    return q.with_samples(samples)


def doubles(values: float | list[float]) -> Tensor:
    """A tensor in double precision."""
    return torch.tensor(values, dtype=torch.float64)


def samples_of(p: Prediction) -> Tensor:
    """The samples ``[K, m, O]`` as calibrators see them: float64, CPU."""
    return p.samples.double().cpu()


@dataclass(eq=False)
class CalibrationSet:
    """Clean rows (``index`` of ``p``) and any corrupted copies of them: half the weight each.

    Attributes:
        parts: The clean rows, then every copy.
        rows: Of these the clean ones, which priors are held against: copies tell nothing new.
        samples: Outputs of all parts ``[K, n, O]``, float64.
        target: Labels ``[n]``, or values.
        share: Of every row in the loss ``[n]``; sums to 1.
        weights: Of the hypotheses ``[K]``, or ``None``.
    """

    p: Prediction  # of the calibrator's kind
    index: Tensor | slice = field(default_factory=lambda: slice(None))
    copies: Sequence[Prediction] = ()

    def __post_init__(self) -> None:
        self.parts = [self.p[self.index], *self.copies]
        if not all(map(len, self.parts)):
            raise InputError("at least one row to fit on", "none", "Is the split empty?")
        joined = Prediction.concatenate([part.to("cpu") for part in self.parts])
        self.samples, self.rows = samples_of(joined), len(self.parts[0])
        self.target: Tensor = joined.require_target()
        self.weights: Tensor | None = joined.weights
        clean = torch.arange(len(joined)) < self.rows
        half = 0.5 if self.copies else 1.0
        each = doubles([half / self.rows, 0.5 / max(len(joined) - self.rows, 1)])
        self.share = torch.where(clean, each[0], each[1])

    @cached_property
    def log_probs(self) -> Tensor:
        """The mixture's log-probabilities ``[n, C]``."""
        return log_mixture(self.samples, self.weights)

    def split(self, samples: Tensor, target: Tensor) -> list[Part]:
        """Samples ``[K, n, O]``, truth ``[n, ...]`` and share in the loss, part by part."""
        sizes = [len(p) for p in self.parts]
        shares = [float(part.sum()) for part in self.share.split(sizes)]
        return list(zip(samples.split(sizes, 1), target.split(sizes), shares, strict=True))

    def temperature(self) -> float:
        """The best single temperature of the mixture."""
        return best_temperature(self.split(self.samples, self.target), self.weights)

    def nll(self, logits: Tensor) -> Tensor:
        """The loss of logits ``[K, n, C]`` of these rows: the weighted NLL of their mixture."""
        place = self.target.expand(logits.size(0), -1).unsqueeze(2)
        chosen = logits.gather(2, place) - logits.logsumexp(dim=2, keepdim=True)
        return -self.share @ log_mean(chosen, self.weights if len(logits) > 1 else None)[:, 0]


def minimise(
    loss: Callable[[dict[str, Tensor]], Tensor],
    start: Mapping[str, Tensor],
    bounds: Sequence[tuple[float | None, float | None]] | None = None,
    steps: int = 200,
    tolerance: float = 1e-10,
) -> dict[str, Tensor]:
    """The minimiser of a differentiable function of float64 tensors, by SciPy's L-BFGS-B."""

    def named(vector: Tensor) -> dict[str, Tensor]:
        parts = vector.split([value.numel() for value in start.values()])
        return {k: part.view_as(start[k]) for k, part in zip(start, parts, strict=True)}

    def objective(vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        leaf = torch.from_numpy(vector.copy()).requires_grad_()
        value = loss(named(leaf))
        (gradient,) = torch.autograd.grad(value, leaf)
        return float(value.detach()), gradient.numpy()

    options = {"maxiter": steps, "maxcor": 20, "ftol": tolerance, "gtol": 1e-8}
    first = nn.utils.parameters_to_vector(start.values()).detach().double().numpy()
    result = minimize(objective, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return {name: part.clone() for name, part in named(torch.from_numpy(result.x)).items()}
