"""The last steps of `gduq.fit`: a temperature, and what novelty is measured against."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch
from scipy.optimize import brentq
from torch import Tensor

from gduq.data.view import View
from gduq.errors import warn_user
from gduq.graph import Rows, iterate, on_device, structure_of
from gduq.nn.call import evaluating
from gduq.prediction.predicting import device_of_model
from gduq.prediction.predictor import Calibrate, Predictor
from gduq.shifts.copies import shifted_copies
from gduq.targets.base import Part, Target
from gduq.training.batches import Batches, labels

__all__ = [
    "Described",
    "Evidence",
    "GraphRows",
    "Judged",
    "affordable",
    "copies_of",
    "finish_model",
    "fit_novelty_slope",
    "fit_temperature",
    "half_and_half",
    "judged",
    "warn_of_few",
    "warn_of_one_voice",
    "whole_structure",
]

MOST = 20_000  # rows that novelty looks at
FEW = 20  # validation rows below which a temperature says little


class Judged(NamedTuple):
    """What a model says of rows whose truth is known, before calibration."""

    outputs: Tensor  # [K, n, O]
    y: Tensor  # the truth [n], as the target checked it
    weights: Tensor | None = None  # of the hypotheses [K]; None means equal ones
    described: Described | None = None  # how novelty sees the rows, where that was asked for


class Described(NamedTuple):
    """How novelty sees rows."""

    h: Tensor  # representations [n, d]
    structure: Tensor | None  # as `gduq.graph.structure_of` tells it [n, s]

    @classmethod
    def joined(cls, parts: Sequence[Described]) -> Described:
        """All rows of several; their structure where all have one."""
        known = [part.structure for part in parts if part.structure is not None]
        structure = torch.cat(known) if len(known) == len(parts) else None
        return cls(torch.cat([part.h for part in parts]), structure)


@dataclass(frozen=True, eq=False)
class Evidence(ABC):
    """The rows that a trained model is finished with, wherever they come from."""

    train: Any
    val: Any  # None where there are no validation rows
    copies: Iterable[Any]  # shifted copies of the validation rows

    @abstractmethod
    def judged(self, model: Predictor, rows: Any) -> Judged:
        """What a model says of training rows, validation rows or a copy."""

    @abstractmethod
    def described(self, model: Predictor, rows: Any) -> Described | None:
        """What novelty compares; ``None`` for a model without representations."""

    def calibrate(self, model: Predictor, tempered: bool = True) -> list[Judged]:
        """Note what the model leaves unexplained, and fit its temperature to the validation rows;
        returns what it said of them, and of their copies."""
        model.set_temperature(1.0, None)
        assert model.target is not None
        if model.target.is_open:
            held = self.train if self.val is None else self.val
            outputs, y, weights, _ = self.judged(model, held)
            model.target = model.target.settled(outputs, y, weights)
        if self.val is None or not tempered:
            return []
        sets = [self.judged(model, rows) for rows in chain((self.val,), self.copies)]
        fit_temperature(model, sets[0], sets[1:])
        return sets

    def fit_novelty(self, model: Predictor, seed: int) -> None:
        """Note what training rows are like, and how far from them validation rows are."""
        train = self.described(model, self.train)
        if train is not None:
            val = None if self.val is None else self.described(model, self.val)
            h, structure = (None, None) if val is None else val
            generator = torch.Generator().manual_seed(seed)
            model.novelty.fit(train.h, h, generator, train.structure, structure)

    def finish(self, model: Predictor, calibrate: Calibrate, seed: int) -> list[Judged]:
        """All of it; what `calibrate` returns. Without validation rows the model says that it is
        not calibrated."""
        sets = self.calibrate(model, calibrate is not None)
        self.fit_novelty(model, seed)
        if sets:
            fit_novelty_slope(model, sets[0])
            warn_of_few(sets[0].y.size(0))
        return sets


@dataclass(frozen=True, eq=False)
class GraphRows(Evidence):
    """Rows of graphs, over which a model runs every time."""

    batch_size: int
    seed: int  # for the choice of rows that novelty looks at

    def judged(self, model: Predictor, rows: Any) -> Judged:
        return judged(model, rows, self.batch_size, describe=rows is self.val)

    def described(self, model: Predictor, rows: Any) -> Described | None:
        device, parts, seen = device_of_model(model), list[Described](), 0
        generator = torch.Generator().manual_seed(self.seed)
        with torch.no_grad(), evaluating(model):
            for graph in rows.batches(self.batch_size, shuffle=True, generator=generator):
                graph = on_device(graph, device)
                found = model.represented(graph)
                if found is None:
                    return None
                parts.append(Described(found, whole_structure(graph, model.answers, rows)))
                seen += found.size(0)
                if seen >= MOST:  # batches come in random order: data may be sorted by class
                    break
        return Described.joined(parts)


def whole_structure(graph: Any, answers: Rows | None, data: Any) -> Tensor | None:
    """The structure of rows, where it is theirs: a loader may hand out parts of a graph, in which
    nodes have fewer edges."""
    whole = isinstance(data, View) or answers == "graph"
    return structure_of(graph, answers) if whole else None


def finish_model(
    model: Predictor,
    train: Batches,
    val: Batches | None,
    calibrate: Calibrate,
    batch_size: int,
    seed: int,
) -> list[Judged]:
    """Calibrate a trained model on validation rows, and note what its training rows are like.

    The seed is for the copies and the choice of reference rows.
    """
    copies = copies_of(val, seed) if calibrate == "shifted" else ()
    return GraphRows(train, val, copies, batch_size, seed).finish(model, calibrate, seed)


def judged(
    model: Predictor, data: Any, batch_size: int | None = None, describe: bool = False
) -> Judged:
    """What a model says of labelled rows, before calibration."""
    assert model.target is not None
    device = device_of_model(model)
    outputs, truth, weights, rows = [], [], None, list[Described]()
    with torch.no_grad(), evaluating(model):
        for graph in iterate(data, batch_size):
            graph = on_device(graph, device)
            found = model.answer(graph, features=describe)
            if describe and found.features is not None:
                structure = whole_structure(graph, model.answers, data)
                rows.append(Described(found.features, structure))
            outputs.append(found.outputs)
            truth.append(model.target.check(labels(graph, found.outputs.size(1)), "val"))
            weights = found.weights
    described = Described.joined(rows) if rows else None
    return Judged(torch.cat(outputs, dim=1), torch.cat(truth), weights, described)


def fit_novelty_slope(model: Predictor, clean: Judged) -> None:
    """Let the temperature grow with novelty as far as validation rows ask for it."""
    assert model.target is not None
    if model.novelty.fitted and clean.described is not None:
        outputs = model.calibrated(clean.outputs, clean.weights)
        ranks = model.novelty(*clean.described)
        slope = model.target.novelty_slope(outputs, clean.y, ranks, clean.weights)
        model.novelty_slope.fill_(slope)


def copies_of(val: Batches | None, seed: int) -> Iterable[Batches]:
    """Shifted copies; none of a heterogeneous graph, nor of a loader that does not show its graphs
    (`Loader.graphs`)."""
    if isinstance(val, View):
        return shifted_copies(val, seed)
    graphs = None if val is None else val.graphs
    if val is None or graphs is None:
        return ()
    return (val.of(copy.graphs) for copy in shifted_copies(graphs, seed))


def warn_of_few(rows: int, instead: str = "calibrate=None leaves it out") -> None:
    """Say that a temperature from so few validation rows is not worth much, and what to do."""
    if rows < FEW:
        warn_user(
            f"calibrated on {rows} validation row{'' if rows == 1 else 's'} only: expect little "
            f"of it (from {FEW} rows on it helps; {instead})"
        )


def warn_of_one_voice(model: Predictor, said: Judged) -> None:
    """Say that anchors have no effect, where they have none on rows that the model has judged."""
    assert model.target is not None
    if model.target.agree(model.calibrated(said.outputs, said.weights)):
        warn_user(
            "the hypotheses hardly disagree (epistemic is about 0): the model answers much as the "
            "network does, calibrated and with novelty; use p.novelty as the alarm, or "
            "gduq.choose with a larger budget"
        )


def half_and_half(copies: int) -> list[float]:
    """How much validation rows and each copy of them count."""
    return [0.5, *[0.5 / copies] * copies] if copies else [1.0]


def fit_temperature(model: Predictor, clean: Judged, copies: Sequence[Judged]) -> None:
    """Set the temperature that fits validation rows, half of the weight on their copies.

    Copies that change nothing do not count. Validation rows alone never lose more than
    `Target.price` by the copies: where these ask for more, the temperature stops there.
    """
    assert model.target is not None
    copies = [copy for copy in copies if not torch.equal(copy.outputs, clean.outputs)]
    sets = zip((clean, *copies), half_and_half(len(copies)), strict=True)
    parts: list[Part] = [(one.outputs, one.y, share) for one, share in sets]
    value = model.target.best_temperature(parts, clean.weights)
    if copies:
        value = affordable(model.target, clean, value)
    model.set_temperature(value, "shifted" if copies else "clean")


def affordable(
    target: Target, clean: Judged, temperature: float, price: float | None = None
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
