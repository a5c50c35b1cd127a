"""A model with all that turns its predictions into decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from gduq import ood
from gduq.abstention import Abstention
from gduq.baselines import as_predictor
from gduq.calibration import Calibrator
from gduq.conformal import SplitConformal
from gduq.errors import InputError
from gduq.experiments.rowfiles import Kind
from gduq.graph import Rows
from gduq.prediction import Prediction, predict

__all__ = ["Service", "Settings"]

_NEEDS_FEATURES = ("mahalanobis", "knn")


@dataclass(frozen=True)
class Settings:
    """How predictions become decisions.

    Attributes:
        alpha: Accepted share of misses of conformal sets.
        coverage: Share of rows like the reference that should be answered; or
        accuracy: the accuracy that answers should have; then ``coverage`` is not used.
        score: OOD score: a name of `gduq.ood.SCORES`, ``"mahalanobis"`` or ``"knn"``. ``None``:
            ``"novelty"`` where the model knows its training data, else ``"energy"``.
    """

    alpha: float = 0.1
    coverage: float = 0.9
    accuracy: float | None = None
    score: str | None = None

    def __post_init__(self) -> None:
        if self.score not in (None, *ood.SCORES, *_NEEDS_FEATURES):
            names = ", ".join([*ood.SCORES, *_NEEDS_FEATURES])
            raise InputError(f"an OOD score from {names}", repr(self.score))

    def abstention(self) -> Abstention:
        """The rule for answering, not yet fitted."""
        if self.accuracy is not None:
            return Abstention(accuracy=self.accuracy)
        return Abstention(coverage=self.coverage)


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
        self.class_names = None if class_names is None else tuple(class_names)
        self.settings = settings or Settings()
        known = self.model.novelty.fitted
        self.score: str = self.settings.score or ("novelty" if known else "energy")
        self.reference: Prediction | None = None
        self._score: Any = ood.SCORES.get(self.score)

    @property
    def rows(self) -> Rows | None:
        """What is answered for, as far as the model says so."""
        trunk = self.model.trunk
        return None if trunk is None else trunk.answers

    # -- thresholds ----------------------------------------------------------------------------

    @property
    def needs_features(self) -> bool:
        """Whether predictions must carry representations."""
        wanted = self.calibrator is not None and self.calibrator.needs_features
        return wanted or self.score in _NEEDS_FEATURES

    def refer_to(self, known: Prediction) -> Service:
        """Fit conformal sets, the rule for abstaining and the OOD reference.

        Args:
            known: Calibrated predictions of labelled rows the model was not trained on.
        """
        known.require_target()
        self.reference = known
        if self.score in _NEEDS_FEATURES:
            score = ood.Mahalanobis() if self.score == "mahalanobis" else ood.KNN()
            self._score = score.fit(known)
        self._conformal = SplitConformal(self.settings.alpha, shift_level=0).fit(known)
        self._abstention = self.settings.abstention().fit(known)
        self._known_scores = self._score(known).double().sort().values
        return self

    # -- answers -------------------------------------------------------------------------------

    def answer(self, graphs: Sequence[Data]) -> Prediction:
        """Calibrated predictions of some graphs at once, with targets if all have them."""
        # torch warns of unchecked sparse features unless told that they are meant to be
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            batch = Batch.from_data_list(list(graphs)).apply(self._as_model)
        p = predict(self.model, batch, features=self.needs_features).to("cpu")
        return self.calibrated(p, batch)

    def _as_model(self, value: Tensor) -> Tensor:
        """In the precision of the weights: a file may hold doubles."""
        weight = next((w for w in self.model.parameters() if w.is_floating_point()), None)
        return value.to(weight.dtype) if weight is not None and value.is_floating_point() else value

    def calibrated(self, p: Prediction, graph: Data | None = None) -> Prediction:
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

    def columns(self, p: Prediction) -> dict[str, list[Any]]:
        """What is written of each row; `kinds` says of what kind."""
        if self._score is None:
            raise InputError(f"reference data for the score {self.score!r}", "none")
        names = self._names(p.num_classes)
        found: dict[str, list[Any]] = {"label": p.label.tolist()}
        if self.class_names is not None:
            found["class"] = [names[label] for label in found["label"]]
        for name in ("confidence", "novelty", "epistemic", "aleatoric"):
            values = getattr(p, name)
            if values is not None:
                found[name] = values.tolist()
        found |= {f"prob_{name}": p.probs[:, c].tolist() for c, name in enumerate(names)}
        score = self._score(p).double()
        if self.reference is not None:
            found["conformal_set"] = self._sets(self._conformal(p).mask)
        found["ood_score"] = score.tolist()
        if self.reference is not None:
            below = torch.searchsorted(self._known_scores, score)
            found["ood_rank"] = (below / len(self._known_scores)).tolist()
            found["abstain"] = (~self._abstention(p).kept).tolist()
        return found

    def kinds(self, columns: Iterable[str]) -> dict[str, Kind]:
        """The kind of each column."""
        fixed: dict[str, Kind] = {
            **dict.fromkeys(("file", "class"), "text"),
            **dict.fromkeys(("row", "node", "label"), "whole"),
            "abstain": "flag",
            "conformal_set": "wholes" if self.class_names is None else "texts",
        }
        return {name: fixed.get(name, "number") for name in columns}

    def _names(self, classes: int) -> tuple[str, ...]:
        names = self.class_names or tuple(str(c) for c in range(classes))
        if len(names) != classes:
            raise InputError(f"{classes} class names, one per class", len(names))
        return names

    def _sets(self, mask: Tensor) -> list[list[Any]]:
        sets: list[list[Any]] = [row.nonzero().flatten().tolist() for row in mask]
        if self.class_names is None:
            return sets
        return [[self.class_names[c] for c in members] for members in sets]
