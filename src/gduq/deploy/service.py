"""A model with all that turns its predictions into decisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from gduq.baselines import as_predictor
from gduq.calibration import Calibrator
from gduq.deploy.decisions import Decisions, Settings, too_few, unlike
from gduq.deploy.rowfiles import Kind
from gduq.errors import InputError, one_line
from gduq.graph import Rows, check_graph
from gduq.novelty import KNN, SCORES, Mahalanobis, scores_for
from gduq.prediction import predict

__all__ = ["Service", "Settings"]

_SCORE = {"classes": "energy", "labels": "entropy", "values": "std"}
_OF_FEATURES: dict[str, Any] = {"mahalanobis": Mahalanobis, "knn": KNN}  # of representations
# what a network may say to a graph it cannot read
_REFUSALS = (ValueError, RuntimeError, TypeError, KeyError, IndexError, AttributeError)
_SLIPS = (KeyError, AttributeError)  # in gduq's own code these are no graph's fault
_KINDS: dict[str, Kind] = {"label": "whole", "class": "text", "abstain": "text"}
_DIGITS = 7  # that single precision has


class Service:
    """A model ready to answer, with a calibrator and thresholds.

    Args:
        model: What `gduq.load` gives.
        calibrator: A fitted one, or ``None``.
        class_names: Names for the classes, or ``None``.
        settings: How to decide.

    Example:
        >>> from gduq.nn import GNN
        >>> graph = Data(x=torch.ones(3, 4), edge_index=torch.tensor([[0, 1], [1, 2]]), y=0)
        >>> service = Service(GNN(4, 8, 2, num_layers=2).eval(), class_names=["no", "yes"])
        >>> list(service.columns(service.answer([graph])))  # doctest: +NORMALIZE_WHITESPACE
        ['label', 'class', 'confidence', 'epistemic', 'aleatoric', 'prob_no', 'prob_yes',
         'ood_score']
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
        self.model, self.calibrator = as_predictor(model), calibrator
        target = self.model.target
        self.kind = "classes" if target is None else target.kind
        self.target: dict[str, Any] = {} if target is None else target.spec()
        names = class_names if self.kind == "classes" else None  # others carry names of their own
        self.class_names = None if names is None else tuple(names)
        self.settings = settings or Settings()
        fallback = "novelty" if self.model.novelty.fitted else _SCORE[self.kind]
        self.score: str = self.settings.ood_score or fallback
        known = (*scores_for(self.kind), *_OF_FEATURES)
        if self.score not in known:
            wanted = f"an OOD score for {self.kind} from {', '.join(known)}"
            raise InputError(wanted, repr(self.score))
        self.reference: Any = None
        self.notes: list[str] = []  # what a user should know of the reference
        self._score: Any = SCORES.get(self.score)

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
        return None if trunk is None else trunk.answers

    @property
    def needs_features(self) -> bool:
        """Whether predictions must carry representations."""
        wanted = self.calibrator is not None and self.calibrator.needs_features
        return wanted or self.score in _OF_FEATURES

    def refer_to(self, known: Any) -> Service:
        """Fit conformal sets, the rule for abstaining and the OOD reference.

        Args:
            known: Calibrated predictions of labelled rows the model was not trained on.
        """
        self._decisions = Decisions(self.settings, known)
        self.reference, self.notes = known, too_few(self.settings, known, self.class_names)
        if self.score in _OF_FEATURES:
            self._score = _OF_FEATURES[self.score]().fit(known)
        self._known_scores = self._score(known).double().sort().values
        return self

    # -- answers -------------------------------------------------------------------------------

    def answer(self, graphs: Sequence[Data]) -> Any:
        """Calibrated predictions of some graphs at once, with targets if all have them."""
        # torch warns of unchecked sparse features unless told that they are meant to be
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            batch = Batch.from_data_list(list(graphs))
        values = [value for value in batch._store.values() if isinstance(value, Tensor)]
        if any(v.is_floating_point() and v.dtype != self._dtype for v in values):
            batch = batch.apply(self._as_model)
        p = predict(self.model, batch, features=self.needs_features).to("cpu")
        return self.calibrated(p, batch)

    @cached_property
    def _dtype(self) -> torch.dtype | None:
        """The precision of the weights."""
        return next((w.dtype for w in self.model.parameters() if w.is_floating_point()), None)

    def _as_model(self, value: Tensor) -> Tensor:
        """In the precision of the weights: a file may hold doubles."""
        known = self._dtype is not None and value.is_floating_point()
        return value.to(self._dtype) if known else value

    def calibrated(self, p: Any, graph: Data | None = None) -> Any:
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
        bound: Calibrator = self.calibrator.unseen(graph)  # type: ignore[attr-defined]
        return bound(p)

    def answer_each(
        self, graphs: Sequence[Data], checked: bool = False
    ) -> Iterator[tuple[list[int], Any]]:
        """Answers for graphs of which some may be bad, without their labels.

        All are answered in one pass, or in halves where the network refuses some.

        Args:
            graphs: Of any size.
            checked: Whether `gduq.graph.check_graph` has seen them.

        Yields:
            Places in ``graphs`` with their prediction, or one place with the reason, a text.
        """
        sound = []
        for place, graph in enumerate(graphs):
            try:
                if not checked:
                    check_graph(graph)
                sound.append(place)
            except InputError as error:
                yield [place], one_line(error)
        if sound:
            yield from self._in_halves(graphs, sound)

    def _in_halves(
        self, graphs: Sequence[Data], places: list[int]
    ) -> Iterator[tuple[list[int], Any]]:
        try:
            yield places, self.answer([_unlabelled(graphs[place]) for place in places])
        except _REFUSALS as error:
            if not _is_refusal(error):
                raise
            if len(places) == 1:
                yield places, one_line(error)
                return
            middle = len(places) // 2
            for half in (places[:middle], places[middle:]):
                yield from self._in_halves(graphs, half)

    def rows_each(self, graphs: Sequence[Data], p: Any) -> list[int] | None:
        """How many rows of a prediction each graph has: its nodes; ``None``: one."""
        if self.rows != "node" and len(p) == len(graphs):
            return None
        nodes = [int(graph.num_nodes or 0) for graph in graphs]
        if len(p) != sum(nodes):
            raise InputError("a model that answers for graphs or nodes", f"{len(p)} rows")
        return nodes

    # -- columns -------------------------------------------------------------------------------

    def columns(self, p: Any) -> dict[str, list[Any]]:
        """What is written of each row; `kind_of` says of what kind."""
        if self._score is None:
            raise InputError(f"reference data for the score {self.score!r}", "none")
        found = self._classes(p) if p.kind == "classes" else _said(p)
        if self.reference is not None:
            found |= self._decisions.columns(p, self.class_names)
        else:
            found |= unlike(self.settings, p)
        abstain = {name: found.pop(name) for name in list(found) if name.startswith("abstain")}
        score = self._score(p).double()
        found["ood_score"] = score.tolist()
        if self.reference is not None:
            below = torch.searchsorted(self._known_scores, score)
            found["ood_rank"] = (below / len(self._known_scores)).tolist()
        return {name: _short(values) for name, values in found.items()} | abstain

    def _classes(self, p: Any) -> dict[str, list[Any]]:
        names = self.class_names or tuple(str(c) for c in range(p.num_classes))
        if len(names) != p.num_classes:
            raise InputError(f"{p.num_classes} class names, one per class", len(names))
        found: dict[str, list[Any]] = {"label": p.label.tolist()}
        if self.class_names is not None:
            found["class"] = [names[label] for label in found["label"]]
        for name in ("confidence", "novelty", "epistemic", "aleatoric"):
            values = getattr(p, name)
            if values is not None:
                found[name] = values.tolist()
        return found | {f"prob_{name}": p.probs[:, c].tolist() for c, name in enumerate(names)}

    def kind_of(self, column: str) -> Kind:
        """What a column of `columns` holds."""
        if column.startswith("conformal_set"):
            return "wholes" if self.class_names is None else "texts"
        return _KINDS.get(column.partition("_")[0], "number")


def _said(p: Any) -> dict[str, list[Any]]:
    """What a prediction about labels or values says, novelty first."""
    columns = {name: values.tolist() for name, values in p.to_pandas().items()}
    columns.pop("node", None)  # files number the nodes of each graph
    first = {"novelty": columns.pop("novelty")} if "novelty" in columns else {}
    return first | columns


def _short(values: list[Any]) -> list[Any]:
    """Numbers of single precision without the digits that double precision adds to them."""
    if not values or not isinstance(values[0], float):
        return values
    found = np.asarray(values, dtype=np.float64)
    size = np.abs(np.where(np.isfinite(found) & (found != 0), found, 1.0))
    scale = 10.0 ** np.clip(_DIGITS - 1 - np.floor(np.log10(size)), 0, 15)
    short: list[Any] = (np.round(found * scale) / scale).tolist()
    return short


def _is_refusal(error: Exception) -> bool:
    """Whether an error is about the graph; a slip of gduq's own must not look like a bad graph."""
    if not isinstance(error, _SLIPS):
        return True
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    home = "" if last is None else str(last.tb_frame.f_globals.get("__name__", ""))
    return not home.startswith("gduq.")


def _unlabelled(graph: Data) -> Data:
    if "y" not in graph:
        return graph
    graph = graph.__copy__()
    del graph["y"]
    return graph
