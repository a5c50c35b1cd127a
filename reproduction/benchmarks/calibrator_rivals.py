"""What calibrators are raced against: libraries, plain ways to do the same, Adam.

Each rival is a function that fits and a function that says what NLL the fitted one has on the rows
it was fitted on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn
from torch_geometric.data import Data

from gduq.calibration import (
    GATS,
    METHODS,
    AnchorAwareTemperature,
    CaGCN,
    Calibrator,
    DensityAwareCalibration,
    DirichletCalibration,
    EnsembleTemperatureScaling,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    OrderInvariantCalibration,
    SplineCalibration,
    TemperatureScaling,
    VectorScaling,
)
from gduq.calibration.lesson import mixture_logs
from gduq.calibration.order_invariant import _sort, _stretch
from gduq.calibration.probabilities import replace_top
from gduq.calibration.temperatures import _disagreement, _log_temperature
from gduq.prediction import Prediction
from gduq.prediction.mixture import weights_of
from gduq.prediction.temperature import best_temperature

Floats = NDArray[np.float64]
ODIR = 5e-4


@dataclass(frozen=True)
class Rival:
    """Another way to fit what ``calibrator`` fits on ``p``."""

    name: str
    calibrator: Calibrator
    p: Prediction
    fit: Callable[[], Any]
    nll: Callable[[Any], float]

    @property
    def method(self) -> str:
        return next(name for name, cls in METHODS.items() if cls is type(self.calibrator))


@dataclass(frozen=True)
class AdamTask:
    """The problem of a calibrator for a gradient method: unknowns, objective, and its NLL.

    ``take`` puts what our fit found in place of the unknowns, where a prior is part of the problem.
    """

    name: str
    calibrator: Calibrator
    p: Prediction
    parameters: list[Tensor]
    objective: Callable[[], Tensor]
    nll: Callable[[], Tensor]
    take: Callable[[Mapping[str, Tensor]], object] | None = None


# -- libraries ---------------------------------------------------------------------------------


def libraries(p: Prediction, small: int) -> Iterator[Rival]:
    """Rivals of scikit-learn and netcal; slow ones get the first ``small`` rows."""
    yield from _scikit_learn(p)
    yield from _netcal(p, small)


def _scikit_learn(p: Prediction) -> Iterator[Rival]:
    from sklearn.calibration import _TemperatureScaling
    from sklearn.isotonic import IsotonicRegression
    from sklearn.linear_model import LogisticRegression

    logits, target = p.logits.double().numpy(), p.target.numpy()
    logs = mixture_logs(p)
    probs, hit = logs.exp().numpy(), np.eye(p.num_classes)[target].ravel()
    yield Rival(
        "scikit-learn's temperature scaling",
        TemperatureScaling(),
        p,
        lambda: _TemperatureScaling().fit(logits, target),
        lambda found: cross_entropy(found.beta_ * logits, target),
    )
    yield Rival(
        "scikit-learn's IsotonicRegression",
        IsotonicCalibration(),
        p,
        lambda: IsotonicRegression(out_of_bounds="clip").fit(probs.ravel(), hit),
        lambda found: log_loss(found.predict(probs.ravel()).reshape(probs.shape) + 1e-9 * probs, p),
    )
    for name, calibrator, x in (
        ("on logits", MatrixScaling(penalty=0.0), logits),
        ("on log probabilities", DirichletCalibration(penalty=0.0), logs.numpy()),
    ):
        yield Rival(
            f"scikit-learn's LogisticRegression {name}, 100 steps",
            calibrator,
            p,
            lambda x=x: LogisticRegression(C=np.inf, max_iter=100).fit(x, target),
            lambda found, x=x: log_loss(found.predict_proba(x), p),
        )


def _netcal(p: Prediction, small: int) -> Iterator[Rival]:
    from netcal.binning import HistogramBinning as Binning
    from netcal.scaling import LogisticCalibration
    from netcal.scaling import TemperatureScaling as Temperature

    probs, target = p.probs.double().numpy(), p.target.numpy()
    yield Rival(
        "netcal's TemperatureScaling",
        TemperatureScaling(),
        p,
        lambda: Temperature().fit(probs, target),
        lambda found: log_loss(found.transform(probs), p),
    )
    yield Rival(
        "netcal's HistogramBinning",
        HistogramBinning(),
        p,
        lambda: Binning(bins=10).fit(probs, target),
        lambda found: log_loss(np.maximum(found.transform(probs), 1e-6), p),
    )
    # netcal sees probabilities only, so its vector scaling is one of their logarithms
    few = Prediction(p[:small].probs.double().log(), p[:small].target)
    yield Rival(
        f"netcal's LogisticCalibration on {small} rows",
        VectorScaling(penalty=0.0, missing="keep"),
        few,
        lambda: LogisticCalibration().fit(few.probs.numpy(), few.target.numpy()),
        lambda found: log_loss(found.transform(few.probs.numpy()), few),
    )


# -- plain ways, for methods that no library has -----------------------------------------------


def plain(p: Prediction, train: Prediction) -> Iterator[Rival]:
    """The published recipes, written down plainly; both sides start from logits."""
    yield Rival(
        "scipy on all probabilities, slopes by differences",
        EnsembleTemperatureScaling(),
        p,
        lambda: _plain_ensemble(p.logits.double().numpy(), p.target.numpy()),
        lambda found: log_loss(found, p),
    )
    yield Rival(
        "scikit-learn's LinearRegression on truncated powers",
        SplineCalibration(),
        p,
        lambda: _plain_spline(p),
        lambda found: log_loss(found, p),
    )
    yield Rival(
        "scikit-learn's NearestNeighbors, then scipy with slopes by differences",
        DensityAwareCalibration(train),
        p,
        lambda: _plain_density(p, train),
        lambda found: cross_entropy(found, p.target.numpy()),
    )


def _plain_ensemble(logits: Floats, target: NDArray[np.int64]) -> Floats:
    """Temperature, then weights of three sets of probabilities (Zhang et al., 2020)."""
    hit = np.eye(logits.shape[1])[target]

    def tempered(t: float) -> Floats:
        return np.exp(_log_softmax(logits / t))

    heat = minimize(
        lambda t: -np.mean(np.sum(hit * np.log(tempered(float(t[0])) + 1e-300), axis=1)),
        np.ones(1),
        method="L-BFGS-B",
        bounds=[(0.05, 20.0)],
        tol=1e-12,
    ).x[0]
    parts = [tempered(heat), tempered(1.0), np.full_like(logits, 1 / logits.shape[1])]

    def mixed(w: Floats) -> Floats:
        return w[0] * parts[0] + w[1] * parts[1] + w[2] * parts[2]

    weights = minimize(
        lambda w: -np.mean(np.sum(hit * np.log(mixed(w) + 1e-300), axis=1)),
        np.array([1.0, 0.0, 0.0]),
        method="SLSQP",
        bounds=[(0.0, 1.0)] * 3,
        constraints={"type": "eq", "fun": lambda w: np.sum(w) - 1},
        tol=1e-12,
    ).x
    return mixed(weights)


def _plain_spline(p: Prediction, knots: int = 7) -> Floats:
    """Least squares on a natural cubic spline; its slope by differences (Gupta et al., 2021)."""
    from sklearn.linear_model import LinearRegression

    logs = mixture_logs(p)
    top, label = logs.exp().max(dim=1)
    order = top.argsort()
    gap = ((label == p.target).double() - top)[order].cumsum(0).numpy() / len(top)
    rank, step = np.arange(1, len(top) + 1) / len(top), 1e-5
    basis = _natural_basis(np.linspace(0, 1, knots))
    model = LinearRegression().fit(basis(rank), gap)
    slope = (model.predict(basis(rank + step)) - model.predict(basis(rank - step))) / (2 * step)
    new = top.clone()
    new[order] += torch.from_numpy(slope)
    return replace_top(logs, new.clamp(1 / logs.size(1), 1 - 1e-6)).exp().numpy()


def _natural_basis(knots: Floats) -> Callable[[Floats], Floats]:
    def powers(t: Floats, k: int) -> Floats:
        cubes = np.maximum(t - knots[k], 0) ** 3 - np.maximum(t - knots[-1], 0) ** 3
        return cubes / (knots[-1] - knots[k])

    def basis(t: Floats) -> Floats:
        last = powers(t, len(knots) - 2)
        return np.stack([t, *(powers(t, k) - last for k in range(len(knots) - 2))], axis=1)

    return basis


def _plain_density(p: Prediction, train: Prediction, neighbors: int = 10) -> Floats:
    """Mean distance to the nearest training rows, then two weights (Tomani et al., 2023)."""
    from sklearn.neighbors import NearestNeighbors

    known, x = train.features.numpy(), p.features.numpy()
    centre, width = known.mean(axis=0), known.std(axis=0)
    index = NearestNeighbors(n_neighbors=neighbors, algorithm="brute").fit((known - centre) / width)
    distance = index.kneighbors((x - centre) / width)[0].mean(axis=1)
    distance = distance / distance.mean()
    logits, target = p.logits.double().numpy(), p.target.numpy()

    def heat(w: Floats) -> Floats:
        return np.maximum(w[0] + w[1] * distance, 0.01)[:, None]

    weights = minimize(
        lambda w: cross_entropy(logits / heat(w), target),
        np.array([1.0, 0.0]),
        method="SLSQP",
        bounds=[(0, None), (0, None)],
        tol=1e-12,
    ).x
    return logits / heat(weights)


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def cross_entropy(logits: Floats, target: NDArray[np.int64]) -> float:
    """Mean NLL of logits."""
    return -float(_log_softmax(logits)[np.arange(len(target)), target].mean())


def log_loss(probs: Floats, p: Prediction) -> float:
    """Mean NLL of probabilities, which need not sum to one."""
    chosen = probs[np.arange(len(p)), p.target.numpy()] / probs.sum(axis=1)
    return -float(np.log(np.maximum(chosen, 1e-300)).mean())


# -- problems for Adam -------------------------------------------------------------------------


def published(p: Prediction) -> Iterator[AdamTask]:
    """Temperature, vector and Dirichlet as they were published, in single precision."""
    classes, logits, target = p.num_classes, p.logits, p.target
    logs = logits.log_softmax(dim=1)
    heat, weight, bias = torch.ones(1), torch.ones(classes), torch.zeros(classes)
    full, shift, off = torch.eye(classes), torch.zeros(classes), 1.0 - torch.eye(classes)

    def odir() -> Tensor:
        pairs = max(classes * (classes - 1), 1)
        return ODIR * ((full * off).square().sum() / pairs + shift.square().mean())

    yield _task("temperature", TemperatureScaling(), p, [heat],
                lambda: F.cross_entropy(logits / heat, target))  # fmt: skip
    yield _task("vector", VectorScaling(penalty=0.0), p, [weight, bias],
                lambda: F.cross_entropy(logits * weight + bias, target))  # fmt: skip
    yield _task("dirichlet with ODIR", DirichletCalibration(penalty=ODIR), p, [full, shift],
                lambda: F.cross_entropy(torch.addmm(shift, logs, full.T), target),
                odir)  # fmt: skip


def _task(
    name: str,
    calibrator: Calibrator,
    p: Prediction,
    parameters: list[Tensor],
    nll: Callable[[], Tensor],
    penalty: Callable[[], Tensor | float] = lambda: 0.0,
    take: Callable[[Mapping[str, Tensor]], object] | None = None,
) -> AdamTask:
    for parameter in parameters:
        parameter.requires_grad_()
    return AdamTask(name, calibrator, p, parameters, lambda: nll() + penalty(), nll, take)


def same_problem(p: Prediction, several: Prediction, graph: Data, train: Tensor) -> list[AdamTask]:
    """Small networks and the anchor-aware temperature, with our priors, in single precision."""
    tasks = [_order_invariant(p), _anchor_aware(several)]
    for calibrator in (CaGCN(graph), GATS(graph, train_rows=train)):
        tasks.append(_graph_task(calibrator, graph, p))
    return tasks


def _order_invariant(p: Prediction) -> AdamTask:
    calibrator, logits = OrderInvariantCalibration(), mixture_logs(p)
    ordered, order = _sort(logits / best_temperature([(logits[None], p.target, 1.0)]))
    place, ordered = (order == p.target[:, None]).int().argmax(dim=1), ordered.float()
    network = calibrator._network(p.num_classes).float()
    return _with_prior("order_invariant", calibrator, p, network,
                       lambda: F.cross_entropy(_stretch(ordered, network), place))  # fmt: skip


def _graph_task(calibrator: CaGCN | GATS, graph: Data, p: Prediction) -> AdamTask:
    logits = p.logits.double()  # of one hypothesis
    logits = logits / best_temperature([(logits[None], p.target, 1.0)])
    network = calibrator._network(p.num_classes, neutral=False).float()
    given = [x.float() if x.is_floating_point() else x for x in calibrator._inputs(graph, logits)]
    scaled = logits.float()
    return _with_prior(
        type(calibrator).__name__.lower(), calibrator, p, network,
        lambda: F.cross_entropy(scaled / network(*given)[:, None], p.target))  # fmt: skip


def _with_prior(
    name: str,
    calibrator: OrderInvariantCalibration | CaGCN | GATS,
    p: Prediction,
    network: nn.Module,
    nll: Callable[[], Tensor],
) -> AdamTask:
    decay = 0.5 / (len(p) * calibrator.prior**2)
    parameters: list[Any] = list(network.parameters())
    return _task(name, calibrator, p, parameters, nll,
                 lambda: decay * sum(w.square().sum() for w in parameters),
                 lambda state: network.load_state_dict(state, strict=False))  # fmt: skip


def _anchor_aware(p: Prediction) -> AdamTask:
    calibrator, samples = AnchorAwareTemperature(), p.samples
    given = _disagreement(p)
    inputs = (given / given.mean(dim=0)).log1p().float()
    start = math.log(best_temperature([(samples, p.target, 1.0)], p.weights))
    shares = weights_of(samples, p.weights).float().log()[:, None, None]
    level, slopes = torch.tensor([start]), torch.zeros(2)

    def nll() -> Tensor:
        weights = torch.cat([level, slopes.clamp_min(0.0)])
        heat = _log_temperature(weights, inputs).exp()[:, None]
        mixed = ((samples / heat).log_softmax(dim=-1) + shares).logsumexp(dim=0)
        return F.nll_loss(mixed, p.target)

    def take(state: Mapping[str, Tensor]) -> None:
        level.data, slopes.data = state["weights"][:1].float(), state["weights"][1:].float()

    return _task("anchor_aware", calibrator, p, [level, slopes], nll,
                 lambda: 0.5 * calibrator.penalty * slopes.square().sum(), take)  # fmt: skip
