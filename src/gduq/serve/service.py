"""A model with all that turns its predictions into decisions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from gduq import conformal, ood
from gduq.calibration import Calibrator
from gduq.errors import InputError, one_line
from gduq.graphs import Graph, Rows, check_graph
from gduq.models.network import checked_predictor
from gduq.prediction import Prediction, predict
from gduq.serve.settings import Settings

__all__ = ["REASONS", "Decisions", "Service", "Settings"]

REASONS = ("unlike training data", "hypotheses disagree", "ambiguous")  # the first that applies
_ANSWER = len(REASONS)


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
        default = "novelty" if self.model.novelty.fitted else scores[0]
        self.score: str = self.settings.ood_score or default
        if self.score not in (known := (*scores, *ood.FITTED)):
            wanted = f"an OOD score for {self.kind} from {', '.join(known)}"
            raise InputError(wanted, repr(self.score))
        self._score: ood.Score = partial(ood.score, score=self.score)
        self.reference: Prediction | None = None
        self.decisions = Decisions(self.settings)

    @property
    def units(self) -> dict[str, str]:
        """Of values: the unit of each that has one."""
        units = self.target.get("units") or ()
        names = self.target.get("names") or map(str, range(len(units)))
        return {name: unit for name, unit in zip(names, units, strict=False) if unit}

    @property
    def rows(self) -> Rows | None:
        """What is answered for, as far as the model says so."""
        return None if self.model.trunk is None else self.model.trunk.row_kind

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
        self.reference, self.decisions = known, Decisions(self.settings, known)
        if self.needs_features:
            self._score = ood.FITTED[self.score]().fit(known)
        self._known_scores = self._score(known).double().sort().values
        return self

    def answer(self, graphs: Sequence[Graph], labelled: bool = True) -> Prediction:
        """Calibrated predictions of some graphs at once; ``labelled``: with targets if all have
        them."""
        # torch warns of unchecked sparse features unless told that they are meant to be
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            batch = Batch.from_data_list(list(graphs), exclude_keys=[] if labelled else ["y"])
        weights = (w.dtype for w in self.model.parameters() if w.is_floating_point())
        dtype = next(weights, torch.get_default_dtype())  # a file may hold doubles
        batch.apply(lambda value: value.to(dtype) if value.is_floating_point() else value)
        p = predict(self.model, batch, features=self.needs_features).to("cpu")
        return self.calibrated(p, batch)

    def calibrated(self, p: Prediction, graph: Graph | None = None) -> Prediction:
        """The same with the calibrator; one that looks at neighbours needs the graph."""
        if self.calibrator is None or not self.calibrator.needs_graph:
            return p if self.calibrator is None else self.calibrator(p)
        if graph is None:
            name, do = type(self.calibrator).__name__, "Choose another one, such as temperature."
            raise InputError("a calibrator that reads single rows", name, do)
        return self.calibrator.on(graph)(p)

    def answer_each(self, graphs: Sequence[Graph]) -> Iterator[tuple[list[int], Prediction | str]]:
        """Answers for graphs of which some may be bad, without their labels: in one pass, or in
        halves where some are refused.

        Yields:
            Numbers of graphs with their prediction, or one number with the reason, a text.
        """
        parts = [list(range(len(graphs)))]
        while parts:
            if not (numbers := parts.pop()):
                continue
            try:
                chosen = [graphs[number] for number in numbers]
                for graph in chosen:
                    check_graph(graph)
                yield numbers, self.answer(chosen, labelled=False)
            except Exception as error:  # whatever a network raises for a graph it cannot read
                if len(numbers) == 1:
                    yield numbers, one_line(error)
                else:
                    middle = len(numbers) // 2
                    parts += [numbers[middle:], numbers[:middle]]

    def table(self, graphs: Sequence[Graph], p: Prediction) -> dict[str, list[Any]]:
        """What is written of some graphs: ``graph``, the number of each row's graph, ``node`` where
        nodes are answered for, and `columns`."""
        if self.rows != "node" and len(p) == len(graphs):
            return {"graph": list(range(len(graphs))), **self.columns(p)}
        pairs = [(n, node) for n, g in enumerate(graphs) for node in range(g.num_nodes or 0)]
        if len(p) != len(pairs):
            raise InputError("a model that answers for graphs or nodes", f"{len(p)} rows")
        return {"graph": [n for n, _ in pairs], "node": [i for _, i in pairs], **self.columns(p)}

    def columns(self, p: Prediction) -> dict[str, list[Any]]:
        """What is written of each row: `Prediction.columns`, decisions and the OOD score."""
        if self.reference is None and self.needs_features:
            raise InputError(f"reference data for the score {self.score!r}", "none")
        p = self._named(p)
        answers = p.columns()
        answers.pop("target", None)  # what is asked about has none
        first = {"novelty": answers.pop("novelty")} if "novelty" in answers else {}
        found: dict[str, list[Any]] = {**first, **answers, **self.decisions.columns(p)}
        if "class" in found and "conformal_set" in found:
            found["conformal_set"] = [[p.names[c] for c in one] for one in found["conformal_set"]]
        abstain = {name: found.pop(name) for name in list(found) if name.startswith("abstain")}
        score = self._score(p).double()
        found["ood_score"] = score.tolist()
        if self.reference is not None:
            below = torch.searchsorted(self._known_scores, score)
            found["ood_rank"] = (below / len(self._known_scores)).tolist()
        return {name: _short(values) for name, values in found.items()} | abstain

    def _named(self, p: Prediction) -> Prediction:
        return p if p.names or self.class_names is None else replace(p, names=self.class_names)


def _short(values: list[Any]) -> list[Any]:
    """Numbers of single precision without the digits that double precision adds to them."""
    floats = bool(values) and isinstance(values[0], float)
    return [float(str(one)) for one in np.asarray(values, np.float32)] if floats else values


class Decisions:
    """Conformal sets or intervals, and reasons to abstain, for any kind of prediction.

    A row is not answered where it is unlike the training data, where the hypotheses disagree, or
    where the answer is ambiguous: not sure enough for the wished coverage or accuracy. Several
    labels or values are decided one by one; a row is abstained from where all of them are.

    Args:
        settings: How to decide.
        known: Calibrated predictions of labelled rows the model was not trained on. Without them
            only rows that are unlike the training data can be found.

    Example:
        >>> from gduq.prediction import ValuePrediction
        >>> known = ValuePrediction(torch.zeros(1, 40, 2), target=torch.linspace(-2, 2, 40))
        >>> list(Decisions(Settings(), known).columns(known[:3]))
        ['conformal_low', 'conformal_high', 'abstain']
    """

    def __init__(self, settings: Settings, known: Prediction | None = None) -> None:
        if known is not None:
            known.require_target()
        parts = {} if known is None else known.parts()
        self.settings, self._rules = settings, {n: _Rule(settings, one) for n, one in parts.items()}
        self.notes = _rare_classes(settings, parts.values()) if settings.per_class else []

    def columns(self, p: Prediction) -> dict[str, list[Any]]:
        """What is decided about each row; ``abstain`` holds the reason or ``None``."""
        if not self._rules:
            return {} if p.novelty is None else {"abstain": _in_words(_alarms(self.settings, p))}
        parts, found = replace(p, target=None).parts(), dict[str, list[Any]]()
        for name, rule in self._rules.items():
            held = rule.held(parts[name])
            found |= {f"{column}_{name}" if name else column: v for column, v in held.items()}
        reasons = {name: rule.reasons(parts[name]) for name, rule in self._rules.items()}
        if len(reasons) > 1:
            found |= {f"abstain_{name}": _in_words(r) for name, r in reasons.items()}
        every = torch.stack(list(reasons.values()))
        row = torch.where((every < _ANSWER).all(0), every.amin(0), _ANSWER)
        return found | {"abstain": _in_words(row)}


class _Rule:
    """What is decided about one thing: a class, a label or a value."""

    def __init__(self, settings: Settings, known: Prediction) -> None:
        self.settings, self.most_epistemic = settings, math.inf
        self.conformal: conformal.ConformalPredictor[Any] | None = None
        self.sure: ood.Abstention | None = None  # without rows nobody knows how sure to be
        if not len(known):
            return
        method = "class_conditional" if settings.per_class else None
        self.conformal = conformal.make(known, method, alpha=settings.alpha, shift_level=0)
        self.conformal.fit(known)
        if settings.max_epistemic < 1 and known.num_samples > 1:
            spread, share = known.epistemic.double(), settings.max_epistemic
            self.most_epistemic = float(spread.quantile(share, interpolation="higher"))
        rest = known[_alarms(settings, known, self.most_epistemic) == _ANSWER]
        if len(rest) and settings.accuracy is not None:
            self.sure = ood.Abstention(accuracy=settings.accuracy).fit(rest)
        elif len(rest):
            coverage = min(1.0, settings.coverage * len(known) / len(rest))
            self.sure = ood.Abstention(coverage=coverage).fit(rest)

    def held(self, p: Prediction) -> dict[str, list[Any]]:
        """Sets or intervals that hold the truth; all classes where nothing is known."""
        if self.conformal is None:
            return {"conformal_set": [[0, 1]] * len(p)}
        held = self.conformal(p)
        if isinstance(held, conformal.Intervals):
            return {"conformal_low": held.low.tolist(), "conformal_high": held.high.tolist()}
        return {"conformal_set": [row.nonzero().flatten().tolist() for row in held.mask]}

    def reasons(self, p: Prediction) -> Tensor:
        """Per row the number of the reason, or that of an answer ``[m]``."""
        found = _alarms(self.settings, p, self.most_epistemic)
        kept = torch.zeros(len(p), dtype=torch.bool) if self.sure is None else self.sure(p).kept
        return torch.where(kept, found, found.clamp_max(REASONS.index("ambiguous")))


def _alarms(settings: Settings, p: Prediction, most_epistemic: float = math.inf) -> Tensor:
    """Per row that it is unlike the training data, that hypotheses disagree, or neither."""
    found = torch.full((len(p),), _ANSWER)
    if most_epistemic < math.inf:
        found[p.epistemic.double() > most_epistemic] = 1
    return found if p.novelty is None else found.masked_fill(p.novelty > settings.max_novelty, 0)


def _in_words(reasons: Tensor) -> list[str | None]:
    return [(*REASONS, None)[number] for number in reasons.tolist()]


def _rare_classes(settings: Settings, parts: Iterable[Prediction]) -> list[str]:
    """Which classes, or answers about labels, have too few labelled rows for sets of their own."""
    least, rare = math.ceil(1 / settings.alpha - 1 - 1e-9), list[str]()
    for part in parts:
        names = part.names or [f"class {number}" for number in range(part.width)]
        counts = part.require_target().long().bincount(minlength=len(names)).tolist()
        rare += [f"{n} has {c}" for n, c in zip(names, counts, strict=True) if c < least]
    needed = f"--per-class needs {least} rows of a class with --alpha {settings.alpha:g}"
    return [f"{needed}, {', '.join(rare)}: every set holds it."] if rare else []
