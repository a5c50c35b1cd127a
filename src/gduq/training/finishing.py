"""The last steps of `gduq.fit`: a temperature, and what novelty is measured against."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from scipy.optimize import brentq
from torch import Tensor

from gduq.errors import warn_user
from gduq.graphs import Graph, Rows, iterate, on_device, structure_of
from gduq.graphs.view import View
from gduq.models.predictor import CachedRows, Calibrate, Predictor
from gduq.prediction import Target
from gduq.prediction.mixture import Part
from gduq.prediction.predicting import device_of_model
from gduq.shifts.corruptions import shifted_copies
from gduq.tracing.call import evaluating
from gduq.training.batches import Batches, labels

__all__ = [
    "HoldoutData",
    "LabelledOutputs",
    "affordable",
    "clean_and_shifted_weights",
    "copies_of",
    "finish_model",
    "fit_novelty",
    "labelled_outputs",
    "row_structure",
    "warn_of_few",
]

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
            parts.append(LabelledOutputs(found.outputs, y, found.weights, h, structure))
    all_outputs, truth, weights, rows, structures = zip(*parts, strict=True)
    described = joined(rows), joined(structures)
    return LabelledOutputs(torch.cat(all_outputs, 1), torch.cat(truth), weights[-1], *described)


def joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Rows of all parts, where all have some."""
    known = [part for part in parts if part is not None]
    return torch.cat(known) if len(known) == len(parts) else None


def row_structure(graph: Graph, row_kind: Rows | None, data: Batches) -> Tensor | None:
    """The structure of rows, where it is theirs: a loader may hand out parts of a graph, in which
    nodes have fewer edges."""
    complete = isinstance(data, View) or row_kind == "graph"
    return structure_of(graph, row_kind) if complete else None


@dataclass(frozen=True, eq=False)
class HoldoutData:
    """The rows that a trained model is finished with: of graphs, or as a frozen trunk gave them."""

    train: Batches | CachedRows
    val: Batches | CachedRows | None
    copies: Iterable[Batches | CachedRows] = ()  # shifted copies of the validation rows
    batch_size: int = 256

    def calibrate(self, model: Predictor, tempered: bool = True) -> list[LabelledOutputs]:
        """Note what the model leaves unexplained, and fit its temperature to the validation rows;
        returns what it gave for them, and for their copies."""
        model.set_temperature(1.0, None)
        assert model.target is not None
        if model.target.needs_noise:
            held = self.train if self.val is None else self.val
            outputs, y, weights, *_ = labelled_outputs(model, held, self.batch_size)
            model.target = model.target.with_noise(outputs, y, weights)
        if self.val is None:
            return []
        clean = labelled_outputs(model, self.val, self.batch_size, features=True)
        if not tempered:
            return [clean]
        copies = [labelled_outputs(model, rows, self.batch_size) for rows in self.copies]
        fit_temperature(model, clean, copies)
        return [clean, *copies]

    def finish(self, model: Predictor, calibrate: Calibrate, seed: int) -> None:
        """Calibrate a trained model, and note what its training rows are like. Without validation
        rows it is not calibrated."""
        sets = self.calibrate(model, calibrate is not None)
        clean = sets[0] if sets else None
        fit_novelty(model, self.train, clean, seed, self.batch_size)
        if clean is None or calibrate is None:
            return
        warn_of_few(clean.y.size(0))
        assert model.target is not None
        calibrated = model.calibrated(clean.outputs, clean.weights)
        if model.is_anchored() and model.target.agree(calibrated):
            warn_user(
                "the hypotheses hardly disagree (epistemic is about 0): the model answers much as "
                "the network does, calibrated and with novelty; use p.novelty as the alarm, or "
                "gduq.choose with a larger budget"
            )


def finish_model(
    model: Predictor,
    train: Batches,
    val: Batches | None,
    calibrate: Calibrate,
    batch_size: int,
    seed: int,
) -> None:
    """`HoldoutData.finish` with shifted copies, if they are asked for.

    The seed is for the copies and the choice of reference rows.
    """
    copies = copies_of(val, seed) if calibrate == "shifted" else ()
    HoldoutData(train, val, copies, batch_size).finish(model, calibrate, seed)


def copies_of(val: Batches | None, seed: int) -> Iterable[Batches]:
    """Shifted copies; none of a heterogeneous graph, nor of a loader that does not show its graphs
    (`Loader.graphs`)."""
    if isinstance(val, View):
        return shifted_copies(val, seed)
    graphs = None if val is None else val.graphs
    if val is None or graphs is None:
        return ()
    return (val.of(copy.graphs) for copy in shifted_copies(graphs, seed))


# -- temperature ---------------------------------------------------------------------------------


def clean_and_shifted_weights(copies: int) -> list[float]:
    """How much validation rows and each copy of them count."""
    return [0.5, *[0.5 / copies] * copies] if copies else [1.0]


def fit_temperature(
    model: Predictor, clean: LabelledOutputs, copies: Sequence[LabelledOutputs]
) -> None:
    """Set the temperature that fits validation rows, half of the weight on their copies.

    Copies that change nothing do not count. Validation rows alone never lose more than
    `Target.price` by the copies: where these ask for more, the temperature stops there.
    """
    assert model.target is not None
    copies = [copy for copy in copies if not torch.equal(copy.outputs, clean.outputs)]
    sets = zip((clean, *copies), clean_and_shifted_weights(len(copies)), strict=True)
    parts: list[Part] = [(one.outputs, one.y, share) for one, share in sets]
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


# -- novelty -------------------------------------------------------------------------------------


def fit_novelty(
    model: Predictor,
    train: Batches | CachedRows,
    clean: LabelledOutputs | None,
    seed: int,
    batch_size: int = 256,
) -> None:
    """Note what training rows are like, and how far from them validation rows are; a calibrated
    temperature then grows with novelty as far as validation rows ask for it."""
    h, structure = _described(model, train, seed, batch_size)
    if h is None:  # a model without representations
        return
    generator = torch.Generator().manual_seed(seed)
    if clean is None:
        model.novelty.fit(h, None, generator, structure)
        return
    model.novelty.fit(h, clean.features, generator, structure, clean.structure)
    assert model.target is not None
    if model.calibration is not None and clean.features is not None:
        outputs = model.calibrated(clean.outputs, clean.weights)
        ranks = model.novelty(clean.features, clean.structure)
        slope = model.target.novelty_slope(outputs, clean.y, ranks, clean.weights)
        model.novelty_slope.fill_(slope)


def _described(
    model: Predictor, rows: Batches | CachedRows, seed: int, batch_size: int
) -> tuple[Tensor | None, Tensor | None]:
    """Representations and structure of many training rows."""
    if isinstance(rows, CachedRows):
        return rows.h, rows.structure
    device, parts = device_of_model(model), []
    generator, count = torch.Generator().manual_seed(seed), 0
    with torch.no_grad(), evaluating(model):
        # batches come in random order: data may be sorted by class
        for graph in rows.batches(batch_size, shuffle=True, generator=generator):
            graph = on_device(graph, device)
            h = model.features(graph)
            parts.append((h, row_structure(graph, model.row_kind, rows)))
            count += 0 if h is None else h.size(0)
            if h is None or count >= MOST:
                break
    representations, structures = zip(*parts, strict=True)
    return joined(representations), joined(structures)


def warn_of_few(rows: int, instead: str = "calibrate=None leaves it out") -> None:
    """A temperature from so few validation rows is not worth much."""
    if rows < FEW:
        warn_user(
            f"calibrated on {rows} validation row{'' if rows == 1 else 's'} only: expect little "
            f"of it (from {FEW} rows on it helps; {instead})"
        )
