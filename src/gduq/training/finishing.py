"""The last steps of `gduq.fit`: a temperature, and what novelty is measured against."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
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
    "NoveltyInputs",
    "affordable",
    "clean_and_shifted_weights",
    "copies_of",
    "finish_model",
    "fit_novelty_slope",
    "fit_temperature",
    "labelled_outputs",
    "row_structure",
    "warn_of_agreement",
    "warn_of_few",
]

MOST = 20_000  # rows that novelty looks at
FEW = 20  # validation rows below which a temperature says little


class NoveltyInputs(NamedTuple):
    """What novelty compares of rows."""

    h: Tensor  # representations [n, d]
    structure: Tensor | None  # as `gduq.graphs.structure_of` has it [n, s]

    @classmethod
    def joined(cls, parts: Sequence[NoveltyInputs]) -> NoveltyInputs:
        """All rows of several; their structure where all have one."""
        known = [part.structure for part in parts if part.structure is not None]
        structure = torch.cat(known) if len(known) == len(parts) else None
        return cls(torch.cat([part.h for part in parts]), structure)


class LabelledOutputs(NamedTuple):
    """What a model gives for rows whose truth is known, before calibration."""

    outputs: Tensor  # [K, n, O]
    y: Tensor  # the truth [n], as the target checked it
    weights: Tensor | None = None  # of the hypotheses [K]; None means equal ones
    novelty_inputs: NoveltyInputs | None = None  # where these were wanted


def labelled_outputs(
    model: Predictor,
    data: Batches | CachedRows,
    batch_size: int | None = None,
    describe: bool = False,
) -> LabelledOutputs:
    """What a model gives for labelled rows: of graphs, or as a trunk has given them."""
    assert model.target is not None
    device = device_of_model(model)
    with torch.no_grad(), evaluating(model):
        if isinstance(data, CachedRows):
            outputs, inputs = model.from_rows(data.h, data.outputs), (data.h, data.structure)
            return LabelledOutputs(outputs, data.y, None, NoveltyInputs(*inputs))
        parts, truth, weights, rows = [], [], None, list[NoveltyInputs]()
        for graph in iterate(data, batch_size):
            graph = on_device(graph, device)
            found = model.forward_samples(graph, features=describe)
            if describe and found.features is not None:
                structure = row_structure(graph, model.row_kind, data)
                rows.append(NoveltyInputs(found.features, structure))
            parts.append(found.outputs)
            truth.append(model.target.check(labels(graph, found.outputs.size(1)), "val"))
            weights = found.weights
    described = NoveltyInputs.joined(rows) if rows else None
    return LabelledOutputs(torch.cat(parts, dim=1), torch.cat(truth), weights, described)


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
    copies: Iterable[Batches | CachedRows]  # shifted copies of the validation rows
    batch_size: int = 256
    seed: int = 0  # for the choice of rows that novelty looks at

    def calibrate(self, model: Predictor, tempered: bool = True) -> list[LabelledOutputs]:
        """Note what the model leaves unexplained, and fit its temperature to the validation rows;
        returns what it gave for them, and for their copies."""
        model.set_temperature(1.0, None)
        assert model.target is not None
        if model.target.needs_noise:
            held = self.train if self.val is None else self.val
            outputs, y, weights, _ = labelled_outputs(model, held, self.batch_size)
            model.target = model.target.with_noise(outputs, y, weights)
        if self.val is None or not tempered:
            return []
        sets = [
            labelled_outputs(model, rows, self.batch_size, describe=rows is self.val)
            for rows in chain((self.val,), self.copies)
        ]
        fit_temperature(model, sets[0], sets[1:])
        return sets

    def fit_novelty(self, model: Predictor, seed: int) -> None:
        """Note what training rows are like, and how far from them validation rows are."""
        train = self._novelty_inputs(model, self.train)
        if train is not None:
            val = None if self.val is None else self._novelty_inputs(model, self.val)
            h, structure = (None, None) if val is None else val
            generator = torch.Generator().manual_seed(seed)
            model.novelty.fit(train.h, h, generator, train.structure, structure)

    def finish(self, model: Predictor, calibrate: Calibrate, seed: int) -> list[LabelledOutputs]:
        """All of it; what `calibrate` returns. Without validation rows the model is not
        calibrated."""
        sets = self.calibrate(model, calibrate is not None)
        self.fit_novelty(model, seed)
        if sets:
            fit_novelty_slope(model, sets[0])
            warn_of_few(sets[0].y.size(0))
        return sets

    def _novelty_inputs(self, model: Predictor, rows: Batches | CachedRows) -> NoveltyInputs | None:
        """``None`` for a model without representations."""
        if isinstance(rows, CachedRows):
            return NoveltyInputs(rows.h, rows.structure)
        device, parts, count = device_of_model(model), list[NoveltyInputs](), 0
        generator = torch.Generator().manual_seed(self.seed)
        with torch.no_grad(), evaluating(model):
            for graph in rows.batches(self.batch_size, shuffle=True, generator=generator):
                graph = on_device(graph, device)
                found = model.features(graph)
                if found is None:
                    return None
                parts.append(NoveltyInputs(found, row_structure(graph, model.row_kind, rows)))
                count += found.size(0)
                if count >= MOST:  # batches come in random order: data may be sorted by class
                    break
        return NoveltyInputs.joined(parts)


def finish_model(
    model: Predictor,
    train: Batches,
    val: Batches | None,
    calibrate: Calibrate,
    batch_size: int,
    seed: int,
) -> list[LabelledOutputs]:
    """Calibrate a trained model on validation rows, and note what its training rows are like.

    The seed is for the copies and the choice of reference rows.
    """
    copies = copies_of(val, seed) if calibrate == "shifted" else ()
    return HoldoutData(train, val, copies, batch_size, seed).finish(model, calibrate, seed)


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


def affordable(
    target: Target, clean: LabelledOutputs, temperature: float, price: float | None = None
) -> float:
    """The temperature next to the given one by which validation rows lose no more than
    `Target.price`, against the one that suits them best."""
    outputs, y, weights, _ = clean

    def loss(log: float) -> float:
        scale = torch.tensor(log, dtype=torch.float64, device=outputs.device).exp()
        samples = target.scaled(outputs.double(), scale, weights)
        return float(target.nll(samples, y, weights).mean())

    best = math.log(target.best_temperature([(outputs, y, 1.0)], weights))
    most, limit = math.log(temperature), loss(best) + (target.price if price is None else price)
    if loss(most) <= limit:
        return temperature
    return math.exp(brentq(lambda log: loss(log) - limit, best, most, xtol=1e-6))


def fit_novelty_slope(model: Predictor, clean: LabelledOutputs) -> None:
    """Let the temperature grow with novelty as far as validation rows ask for it."""
    assert model.target is not None
    if model.novelty.fitted and clean.novelty_inputs is not None:
        outputs = model.calibrated(clean.outputs, clean.weights)
        ranks = model.novelty(*clean.novelty_inputs)
        slope = model.target.novelty_slope(outputs, clean.y, ranks, clean.weights)
        model.novelty_slope.fill_(slope)


# -- warnings ------------------------------------------------------------------------------------


def warn_of_few(rows: int, instead: str = "calibrate=None leaves it out") -> None:
    """A temperature from so few validation rows is not worth much."""
    if rows < FEW:
        warn_user(
            f"calibrated on {rows} validation row{'' if rows == 1 else 's'} only: expect little "
            f"of it (from {FEW} rows on it helps; {instead})"
        )


def warn_of_agreement(model: Predictor, clean: LabelledOutputs) -> None:
    """Anchors have no effect, where they have none on validation rows."""
    assert model.target is not None
    if model.target.agree(model.calibrated(clean.outputs, clean.weights)):
        warn_user(
            "the hypotheses hardly disagree (epistemic is about 0): the model answers much as the "
            "network does, calibrated and with novelty; use p.novelty as the alarm, or "
            "gduq.choose with a larger budget"
        )
