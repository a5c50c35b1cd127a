"""The last steps of `gduq.fit`: a temperature, and what novelty is measured against."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from scipy.optimize import brentq
from torch import Tensor

from gduq.errors import warn_user
from gduq.graphs import Graph, Rows, iterate, on_device, structure_of
from gduq.graphs.view import View
from gduq.models.predictor import CachedRows, Calibrate, Predictor
from gduq.prediction import Target
from gduq.prediction.predicting import device_of_model
from gduq.shifts.corruptions import shifted_copies
from gduq.tracing.call import evaluating
from gduq.training.batches import Batches, labels, some

__all__ = ["LabelledOutputs", "affordable", "clean_and_shifted_weights", "copies_of",
           "finish_model", "fit_novelty_slope", "joined", "labelled_outputs", "row_structure",
           "warn_of_doubts", "warn_of_few"]  # fmt: skip

MOST = 20_000  # rows that novelty looks at
FEW = 20  # validation rows below which a temperature says little


class LabelledOutputs(NamedTuple):
    """What a model gives for rows whose truth is known, before calibration."""

    outputs: Tensor  # [K, n, O]
    y: Tensor  # the truth [n], as the target checked it
    weights: Tensor | None = None  # of the hypotheses [K]; None means equal ones
    features: Tensor | None = None  # representations [n, d], where these were wanted
    structure: Tensor | None = None  # as `gduq.graphs.structure_of` has it [n, s]


def labelled_outputs(
    model: Predictor,
    data: Batches | CachedRows,
    batch_size: int | None = None,
    features: bool = False,
) -> LabelledOutputs:
    """What a model gives for labelled rows: of graphs, or as a trunk has given them."""
    assert model.target is not None
    with torch.no_grad(), evaluating(model):
        if isinstance(data, CachedRows):
            outputs = model.from_rows(data.h, data.outputs)
            return LabelledOutputs(outputs, data.y, None, data.h, data.structure)
        device, parts = device_of_model(model), []
        for graph in iterate(data, batch_size):
            graph = on_device(graph, device)
            found = model.forward_samples(graph, features=features)
            y = model.target.check(labels(graph, found.outputs.size(1)), "val")
            structure = row_structure(graph, model.row_kind, data) if features else None
            h = found.features if features else None
            parts.append((found.outputs, y, found.weights, h, structure))
    each, truth, weights, rows, structures = zip(*parts, strict=True)
    described = joined(rows), joined(structures)
    return LabelledOutputs(torch.cat(each, dim=1), torch.cat(truth), weights[-1], *described)


def joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Rows of all parts, where all have some."""
    known = [part for part in parts if part is not None]
    return torch.cat(known) if len(known) == len(parts) else None


def row_structure(graph: Graph, row_kind: Rows | None, data: Batches) -> Tensor | None:
    """The structure of rows, where it is theirs: a loader may hand out parts of a graph, in which
    nodes have fewer edges."""
    complete = isinstance(data, View) or row_kind == "graph"
    return structure_of(graph, row_kind) if complete else None


def finish_model(
    model: Predictor,
    train: Batches | CachedRows,
    val: Batches | CachedRows | None,
    calibrate: Calibrate,
    batch_size: int,
    seed: int,
    copies: Iterable[Batches | CachedRows] | None = None,
) -> list[LabelledOutputs]:
    """Calibrate a trained model on validation rows, and note what its training rows are like.

    Args:
        model: Trained; without validation rows it is not calibrated.
        train: Training rows: graphs, or as a frozen trunk gave them.
        val: Validation rows, or ``None``.
        calibrate: As in `gduq.fit`.
        batch_size: Graphs per pass.
        seed: For the copies and the choice of reference rows.
        copies: Shifted copies of ``val``, if they are there already.

    Returns:
        What the model gave for validation rows, and then for their copies.
    """
    model.set_temperature(1.0, None)
    assert model.target is not None
    if model.target.needs_noise:
        held = labelled_outputs(model, train if val is None else val, batch_size)
        model.target = model.target.with_noise(*held[:3])
    sets = [] if val is None else [labelled_outputs(model, val, batch_size, features=True)]
    if sets and calibrate is not None:
        if copies is None or calibrate == "clean":
            copies = copies_of(val, seed) if calibrate == "shifted" else ()  # type: ignore[arg-type]
        sets += [labelled_outputs(model, rows, batch_size) for rows in copies]
        _fit_temperature(model, sets[0], sets[1:])
    h, structure = _training_features(model, train, seed, batch_size)
    if h is not None:  # a model with representations
        near, near_structure = sets[0][3:] if sets else (None, None)
        generator = torch.Generator().manual_seed(seed)
        model.novelty.fit(h, near, generator, structure, near_structure)
        if model.calibration is not None:
            fit_novelty_slope(model, sets[0])
    return sets


def copies_of(val: Batches | None, seed: int) -> Iterable[Batches]:
    """Shifted copies; none of a heterogeneous graph, nor of a loader that does not show its graphs
    (`Loader.graphs`)."""
    if isinstance(val, View):
        return shifted_copies(val, seed)
    if val is None or val.graphs is None:
        return ()
    return (val.of(copy.graphs) for copy in shifted_copies(val.graphs, seed))


def clean_and_shifted_weights(copies: int) -> list[float]:
    """How much validation rows and each copy of them count."""
    return [0.5, *[0.5 / copies] * copies] if copies else [1.0]


def _fit_temperature(
    model: Predictor, clean: LabelledOutputs, copies: Sequence[LabelledOutputs]
) -> None:
    """Set the temperature that fits validation rows, half of the weight on their copies.

    Copies that change nothing do not count. Validation rows alone never lose more than
    `Target.price` by the copies: where these ask for more, the temperature stops there.
    """
    assert model.target is not None
    copies = [copy for copy in copies if not torch.equal(copy.outputs, clean.outputs)]
    shares = clean_and_shifted_weights(len(copies))
    parts = [(one.outputs, one.y, s) for one, s in zip((clean, *copies), shares, strict=True)]
    value = model.target.best_temperature(parts, clean.weights)
    if copies:
        value = affordable(model.target, clean, value)
    model.set_temperature(value, "shifted" if copies else "clean")


def affordable(target: Target, clean: LabelledOutputs, temperature: float) -> float:
    """The temperature next to the given one by which validation rows lose no more than
    `Target.price`, against the one that suits them best."""
    outputs, y, weights = clean[:3]

    def loss(log: float) -> float:
        scale = torch.tensor(log, dtype=torch.float64, device=outputs.device).exp()
        samples = target.scaled(outputs.double(), scale, weights)
        return float(target.nll(samples, y, weights).mean())

    best = math.log(target.best_temperature([(outputs, y, 1.0)], weights))
    most, limit = math.log(temperature), loss(best) + target.price
    if loss(most) <= limit:
        return temperature
    return math.exp(brentq(lambda log: loss(log) - limit, best, most, xtol=1e-6))


def fit_novelty_slope(model: Predictor, clean: LabelledOutputs) -> None:
    """Let the temperature grow with novelty as far as validation rows ask for it, and hold it to
    `Target.price` once more: part of what it was for is novelty now."""
    assert model.target is not None
    if model.novelty.fitted and clean.features is not None:
        outputs = model.calibrated(clean.outputs, clean.weights)
        ranks = model.novelty(clean.features, clean.structure)
        slope = model.target.novelty_slope(outputs, clean.y, ranks, clean.weights)
        model.novelty_slope.fill_(slope)
        if slope > 0:
            grown = model.calibrated(clean.outputs, clean.weights, ranks)
            model.temperature *= affordable(model.target, clean._replace(outputs=grown), 1.0)


def _training_features(
    model: Predictor, rows: Batches | CachedRows, seed: int, batch_size: int
) -> tuple[Tensor | None, Tensor | None]:
    """Representations and structure of many training rows, from all over: data may be sorted."""
    if isinstance(rows, CachedRows):
        return rows.h, rows.structure
    device, parts = device_of_model(model), []
    with torch.no_grad(), evaluating(model):
        for graph in some(rows, MOST, batch_size, torch.Generator().manual_seed(seed)):
            graph = on_device(graph, device)
            parts.append((model.features(graph), row_structure(graph, model.row_kind, rows)))
    features, structures = zip(*parts, strict=True)
    return joined(features), joined(structures)


def warn_of_doubts(model: Predictor, sets: Sequence[LabelledOutputs]) -> None:
    """Say where a temperature is from few rows, or anchors had no effect on validation rows."""
    if model.calibration is None:
        return
    outputs, y, weights = sets[0][:3]
    warn_of_few(y.size(0), "calibrate=None leaves it out")
    assert model.target is not None
    if model.num_anchors and model.target.agree(model.calibrated(outputs, weights)):
        warn_user(
            "the hypotheses hardly disagree (epistemic is about 0): the model answers much as the "
            "network does, calibrated and with novelty; use p.novelty as the alarm, or "
            "gduq.choose with a larger budget"
        )


def warn_of_few(rows: int, instead: str) -> None:
    """A temperature from so few validation rows is not worth much."""
    if rows < FEW:
        warn_user(
            f"calibrated on {rows} validation row{'' if rows == 1 else 's'} only: expect little "
            f"of it (from {FEW} rows on it helps; {instead})"
        )
