"""A model with all that turns its predictions into decisions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

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
from gduq.serve.server import Settings

__all__ = ["REASONS", "Decisions", "Graphs", "Service", "Settings"]

Graphs: TypeAlias = Mapping[int, Graph]  # by number
REASONS = ("unlike training data", "hypotheses disagree", "not sure enough")  # the first counts


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
        >>> _ = service.refer_to(service.answer([graph] * 40))
        >>> list(service.columns(service.answer([graph])))[-6:]
        ['prob_no', 'prob_yes', 'conformal_set', 'ood_score', 'ood_rank', 'abstain']
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
        self.score = "novelty" if self.model.novelty.fitted else None  # else that of the kind
        self.reference: Prediction | None = None
        self.decisions = Decisions(self.settings)

    @property
    def rows(self) -> Rows | None:
        """What is answered for, as far as the model says so."""
        return None if self.model.trunk is None else self.model.trunk.row_kind

    def refer_to(self, known: Prediction) -> Service:
        """Fit conformal sets, the rule for abstaining and the OOD reference to calibrated
        predictions of labelled rows the model was not trained on."""
        known = self._named(known)
        self.reference, self.decisions = known, Decisions(self.settings, known)
        self._known_scores = ood.score(known, self.score).double().sort().values
        return self

    def monitor(self) -> ood.Monitor | None:
        """Whether rows are still like those of `refer_to`, if these have novelty and are graphs:
        nodes of one graph are not exchangeable."""
        known = None if self.reference is None else self.reference.novelty
        return None if known is None or self.rows != "graph" else ood.Monitor(known)

    def answer(self, graphs: Sequence[Graph], labelled: bool = True) -> Prediction:
        """Calibrated predictions of graphs at once; ``labelled``: with targets if all have them."""
        # torch warns of unchecked sparse features unless told that they are meant to be
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            batch = Batch.from_data_list(list(graphs), exclude_keys=[] if labelled else ["y"])
        weights = (w.dtype for w in self.model.parameters() if w.is_floating_point())
        dtype = next(weights, torch.get_default_dtype())  # a file may hold doubles
        batch.apply(lambda value: value.to(dtype) if value.is_floating_point() else value)
        return self.calibrated(predict(self.model, batch).to("cpu"), batch)

    def calibrated(self, p: Prediction, graph: Graph | None = None) -> Prediction:
        """The same with the calibrator; one that looks at neighbours needs the graph."""
        found = self.calibrator
        if found is not None and found.needs_graph and graph is not None:
            found = found.on(graph)
        return p if found is None else found(p)

    def answer_each(self, graphs: Graphs) -> Iterator[tuple[Graphs, Prediction | str]]:
        """Answers for graphs of which some may be bad, without their labels: in one pass, or in
        halves where some are refused. They come with some of the graphs, a reason with one."""
        try:
            for graph in graphs.values():
                check_graph(graph)
            found: Prediction | str = self.answer(list(graphs.values()), labelled=False)
        except Exception as error:  # whatever a network raises for a graph it cannot read
            found = one_line(error)
        if isinstance(found, str) and len(graphs) > 1:
            items, middle = list(graphs.items()), len(graphs) // 2
            yield from self.answer_each(dict(items[:middle]))
            yield from self.answer_each(dict(items[middle:]))
        elif graphs:
            yield graphs, found

    def records(self, graphs: Graphs, p: Prediction) -> list[dict[str, Any]]:
        """What is written of graphs, row by row: ``row``, the number of its graph, ``node`` where
        nodes are answered for, ``smiles`` of a molecule, and `columns`."""
        found: list[dict[str, Any]] = [{"row": number} for number in graphs]
        if self.rows == "node" or len(p) != len(found):
            nodes = ((row, n) for row, one in graphs.items() for n in range(one.num_nodes or 0))
            found = [{"row": row, "node": n} for row, n in nodes]
        if len(p) != len(found):
            raise InputError("a model that answers for graphs or nodes", f"{len(p)} rows")
        columns = self.columns(p)
        for record, values in zip(found, zip(*columns.values(), strict=True), strict=True):
            graph = graphs[record["row"]]
            record |= {"smiles": graph.smiles} if "smiles" in graph else {}
            record.update(zip(columns, values, strict=True))
        return found

    def columns(self, p: Prediction) -> dict[str, list[object]]:
        """What is written of each row: `Prediction.columns`, decisions and the OOD score."""
        p = self._named(p)
        answers = {name: values.tolist() for name, values in p.columns().items()}
        answers.pop("target", None)  # what is asked about has none
        first = {"novelty": answers.pop("novelty")} if "novelty" in answers else {}
        decided = self.decisions.columns(p)
        if "class" in answers and "conformal_set" in decided:
            decided["conformal_set"] = [[p.names[c] for c in s] for s in decided["conformal_set"]]
        reasons = {name: decided.pop(name) for name in [*decided] if name.startswith("abstain")}
        score = ood.score(p, self.score).double()
        found = {**first, **answers, **decided, "ood_score": score.tolist()}
        if self.reference is not None:
            below = torch.searchsorted(self._known_scores, score)
            found["ood_rank"] = (below / len(self._known_scores)).tolist()
        return {name: _short(values) for name, values in found.items()} | reasons

    def _named(self, p: Prediction) -> Prediction:
        return p if p.names or self.class_names is None else replace(p, names=self.class_names)


def _short(values: list[object]) -> list[object]:
    """Numbers of single precision without the digits that double precision adds to them."""
    floats = bool(values) and isinstance(values[0], float)
    return [float(str(one)) for one in np.array(values, np.float32)] if floats else values


class Decisions:
    """Conformal sets or intervals, and reasons to abstain, for any kind of prediction.

    A row is not answered where it is unlike the training data, where the hypotheses disagree, or
    where the answer is not sure enough (by trust) for the wished coverage or accuracy. Several
    labels or values are decided one by one; a row is abstained from where all of them are. Without
    ``known``, calibrated predictions of labelled rows the model was not trained on, only rows that
    are unlike the training data can be found.
    """

    def __init__(self, settings: Settings, known: Prediction | None = None) -> None:
        if known is not None:
            known.require_target()
        parts = {} if known is None else known.parts()
        self.settings, self._rules = settings, {n: _Rule(settings, one) for n, one in parts.items()}

    def columns(self, p: Prediction) -> dict[str, list[Any]]:
        """What is decided about each row; ``abstain`` holds the reason or ``None``."""
        found, reasons = dict[str, list[Any]](), dict[str, Tensor]()
        for name, part in replace(p, target=None).parts().items() if self._rules else ():
            end = f"_{name}" if name else ""
            found |= {f"{column}{end}": v for column, v in self._rules[name].held(part).items()}
            reasons[f"abstain{end}"] = self._rules[name].reasons(part)
        if reasons:
            reasons["abstain"] = torch.stack([*reasons.values()]).amin(0)
        elif p.novelty is not None:
            reasons["abstain"] = _alarms(self.settings, p)
        words = (None, *REASONS)
        return found | {name: [words[n] for n in numbers] for name, numbers in reasons.items()}


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
        rest = known[_alarms(settings, known, self.most_epistemic) == 0]
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
        """Per row the number of the reason, from 1, or 0 for an answer ``[m]``."""
        found = _alarms(self.settings, p, self.most_epistemic)
        kept = torch.zeros(len(p), dtype=torch.bool) if self.sure is None else self.sure(p).kept
        return torch.where(kept | (found > 0), found, len(REASONS))


def _alarms(settings: Settings, p: Prediction, most_epistemic: float = math.inf) -> Tensor:
    """Per row that it is unlike the training data (1), that hypotheses disagree (2) or neither."""
    found = torch.zeros(len(p), dtype=torch.long)
    if most_epistemic < math.inf:
        found[p.epistemic.double() > most_epistemic] = 2
    return found if p.novelty is None else found.masked_fill(p.novelty > settings.max_novelty, 1)
