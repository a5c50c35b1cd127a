"""A model with all that turns its predictions into decisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from gduq import ood
from gduq.calibration import Calibrator
from gduq.errors import InputError, one_line
from gduq.graphs import Graph, Rows, check_graph
from gduq.models.network import checked_predictor
from gduq.prediction import Prediction, predict
from gduq.serve.decisions import Decisions, too_few, unlike
from gduq.serve.settings import Settings

__all__ = ["Service", "Settings"]

# what a network may raise for a graph it cannot read
_REFUSALS = (ValueError, RuntimeError, TypeError, KeyError, IndexError, AttributeError)
_DIGITS = 7  # that single precision has


class Service:
    """A model ready to answer, with a calibrator and thresholds.

    Args:
        model: What `gduq.load` gives.
        calibrator: A fitted one, or ``None``.
        class_names: Names for classes that have none, or ``None``.
        settings: How to decide.

    Example:
        >>> from gduq.nn import GNN
        >>> from torch_geometric.data import Data
        >>> graph = Data(x=torch.ones(3, 4), edge_index=torch.tensor([[0, 1], [1, 2]]), y=0)
        >>> service = Service(GNN(4, 8, 2, num_layers=2).eval(), class_names=["no", "yes"])
        >>> list(service.columns(service.answer([graph])))  # doctest: +NORMALIZE_WHITESPACE
        ['label', 'class', 'confidence', 'entropy', 'aleatoric', 'epistemic', 'spread', 'prob_no',
         'prob_yes', 'ood_score']
        >>> _ = service.refer_to(service.answer([graph] * 40))
        >>> list(service.columns(service.answer([graph])))[-4:]
        ['conformal_set', 'ood_score', 'ood_rank', 'abstain']
    """

    def __init__(
        self,
        model: nn.Module,
        calibrator: Calibrator | None = None,
        class_names: Sequence[str] | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.model, self.calibrator = checked_predictor(model), calibrator
        self.settings = settings or Settings()
        target = self.model.target
        self.kind = "classes" if target is None else target.kind
        self.target: dict[str, Any] = {} if target is None else target.spec()
        nameless = bool(self.target) and "num_classes" not in self.target  # labels and values
        self.class_names = None if nameless or class_names is None else tuple(class_names)
        scores = Prediction.of_kind(self.kind).ood_scores
        known = (*scores, *ood.FITTED)
        default = "novelty" if self.model.novelty.fitted else scores[0]
        self.score: str = self.settings.ood_score or default
        if self.score not in known:
            wanted = f"an OOD score for {self.kind} from {', '.join(known)}"
            raise InputError(wanted, repr(self.score))
        self.reference: Prediction | None = None
        self.notes: list[str] = []  # what a user should know of the reference
        self._score: ood.Score = partial(ood.score, score=self.score)

    @property
    def units(self) -> dict[str, str]:
        """Of values: the unit of each that has one."""
        units = self.target.get("units") or ()
        names = self.target.get("names") or [str(t) for t in range(len(units))]
        return {name: unit for name, unit in zip(names, units, strict=False) if unit}

    @property
    def rows(self) -> Rows | None:
        """What is answered for, as far as the model says so."""
        trunk = self.model.trunk
        return None if trunk is None else trunk.row_kind

    @property
    def needs_features(self) -> bool:
        """Whether predictions must carry representations."""
        return self.score in ood.FITTED

    def refer_to(self, known: Prediction) -> Service:
        """Fit conformal sets, the rule for abstaining and the OOD reference.

        Args:
            known: Calibrated predictions of labelled rows the model was not trained on.
        """
        known = self._named(known)
        self._decisions = Decisions(self.settings, known)
        self.reference, self.notes = known, too_few(self.settings, known)
        if self.score in ood.FITTED:
            self._score = ood.FITTED[self.score]().fit(known)
        self._known_scores = self._score(known).double().sort().values
        return self

    # -- answers -------------------------------------------------------------------------------

    def answer(self, graphs: Sequence[Graph]) -> Prediction:
        """Calibrated predictions of some graphs at once, with targets if all have them."""
        # torch warns of unchecked sparse features unless told that they are meant to be
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            batch = Batch.from_data_list(list(graphs))
        values = [value for value in batch._store.values() if isinstance(value, Tensor)]
        if any(v.is_floating_point() and v.dtype != self._dtype for v in values):
            batch = batch.apply(self._as_model)
        p = predict(self.model, batch, features=self.needs_features).to("cpu")
        return self.calibrated(p, batch)

    def _named(self, p: Prediction) -> Prediction:
        return p if p.names or self.class_names is None else replace(p, names=self.class_names)

    @cached_property
    def _dtype(self) -> torch.dtype | None:
        """The precision of the weights."""
        return next((w.dtype for w in self.model.parameters() if w.is_floating_point()), None)

    def _as_model(self, value: Tensor) -> Tensor:
        """In the precision of the weights: a file may hold doubles."""
        known = self._dtype is not None and value.is_floating_point()
        return value.to(self._dtype) if known else value

    def calibrated(self, p: Prediction, graph: Graph | None = None) -> Prediction:
        """The same with the calibrator; one that looks at neighbours needs the graph."""
        if self.calibrator is None:
            return p
        if not self.calibrator.needs_graph:
            return self.calibrator(p)
        if graph is None:
            raise InputError(
                "a calibrator that reads single rows",
                type(self.calibrator).__name__,
                "Choose another one, such as temperature.",
            )
        return self.calibrator.on(graph)(p)

    def answer_each(
        self, graphs: Sequence[Graph], checked: bool = False
    ) -> Iterator[tuple[list[int], Any]]:
        """Answers for graphs of which some may be bad, without their labels.

        All are answered in one pass, or in halves where the network refuses some.

        Args:
            graphs: Of any size.
            checked: Whether `gduq.graphs.check_graph` has seen them.

        Yields:
            Numbers of graphs with their prediction, or one number with the reason, a text.
        """
        sound = []
        for number, graph in enumerate(graphs):
            try:
                if not checked:
                    check_graph(graph)
                sound.append(number)
            except InputError as error:
                yield [number], one_line(error)
        if sound:
            yield from self._in_halves(graphs, sound)

    def _in_halves(
        self, graphs: Sequence[Graph], numbers: list[int]
    ) -> Iterator[tuple[list[int], Any]]:
        try:
            yield numbers, self.answer([_unlabelled(graphs[number]) for number in numbers])
        except _REFUSALS as error:
            if len(numbers) == 1:
                yield numbers, one_line(error)
                return
            middle = len(numbers) // 2
            for half in (numbers[:middle], numbers[middle:]):
                yield from self._in_halves(graphs, half)

    def rows_each(self, graphs: Sequence[Graph], p: Prediction) -> list[int] | None:
        """How many rows of a prediction each graph has: its nodes; ``None``: one."""
        if self.rows != "node" and len(p) == len(graphs):
            return None
        nodes = [int(graph.num_nodes or 0) for graph in graphs]
        if len(p) != sum(nodes):
            raise InputError("a model that answers for graphs or nodes", f"{len(p)} rows")
        return nodes

    def columns(self, p: Prediction) -> dict[str, list[Any]]:
        """What is written of each row: `Prediction.columns`, decisions and the OOD score."""
        if self.reference is None and self.needs_features:
            raise InputError(f"reference data for the score {self.score!r}", "none")
        p = self._named(p)
        answers = p.columns()
        answers.pop("target", None)  # what is asked about has none
        first = {"novelty": answers.pop("novelty")} if "novelty" in answers else {}
        found: dict[str, list[Any]] = first | answers
        found |= unlike(self.settings, p) if self.reference is None else self._decisions.columns(p)
        if "class" in found and "conformal_set" in found:
            found["conformal_set"] = [[p.names[c] for c in one] for one in found["conformal_set"]]
        abstain = {name: found.pop(name) for name in list(found) if name.startswith("abstain")}
        score = self._score(p).double()
        found["ood_score"] = score.tolist()
        if self.reference is not None:
            below = torch.searchsorted(self._known_scores, score)
            found["ood_rank"] = (below / len(self._known_scores)).tolist()
        return {name: _short(values) for name, values in found.items()} | abstain


def _short(values: list[Any]) -> list[Any]:
    """Numbers of single precision without the digits that double precision adds to them."""
    if not values or not isinstance(values[0], float):
        return values
    found = np.asarray(values, dtype=np.float64)
    size = np.abs(np.where(np.isfinite(found) & (found != 0), found, 1.0))
    scale = 10.0 ** np.clip(_DIGITS - 1 - np.floor(np.log10(size)), 0, 15)
    short: list[Any] = (np.round(found * scale) / scale).tolist()
    return short


def _unlabelled(graph: Graph) -> Graph:
    if "y" not in graph:
        return graph
    graph = graph.__copy__()
    del graph["y"]
    return graph
