"""Estimators for molecules with scikit-learn's interface: SMILES in, answers with doubt out.

They take part in a ``Pipeline``, in ``cross_val_score``, ``GridSearchCV`` and MAPIE like any other
estimator. Inside is what ``gduq train`` makes of a table: a `BondGNN`, trained until validation
rows say stop, and a mixture of methods on it, weighted and calibrated by the same rows
(`gduq.choose`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import train_test_split
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d
from torch_geometric.data import Data

from gduq.data.smiles import molecules
from gduq.errors import InputError
from gduq.nn import BondGNN
from gduq.prediction import ClassPrediction, Prediction, ValuePrediction
from gduq.prediction.predicting import predict
from gduq.training import choose, fit

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from gduq.models import Stack

__all__ = ["MoleculeClassifier", "MoleculeRegressor"]

_FEWEST = 10  # molecules: fewer leave nothing to validate by


class _MoleculeEstimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: reading SMILES, cutting off validation rows, training."""

    model_: Stack
    _target: Literal["classes", "values"]

    def __init__(
        self,
        *,
        budget: float = 1.2,
        max_epochs: int = 100,
        patience: int = 15,
        hidden_channels: int = 96,
        num_layers: int = 3,
        dropout: float = 0.0,
        learning_rate: float = 1e-3,
        batch_size: int = 32,
        validation_fraction: float = 0.15,
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        self.budget = budget
        self.max_epochs = max_epochs
        self.patience = patience
        self.hidden_channels = hidden_channels
        self.num_layers = num_layers
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.verbose = verbose

    def predict_distribution(self, X: ArrayLike) -> Any:
        """The whole answer, a `gduq.Prediction`: entropy and its parts, novelty, hypotheses."""
        check_is_fitted(self, "model_")
        return predict(self.model_, _graphs(X))

    def novelty(self, X: ArrayLike) -> NDArray[np.float64]:
        """How unlike the training molecules each one is, from 0 to 1; 0.5 is as usual."""
        p: Prediction = self.predict_distribution(X)
        if p.novelty is None:
            raise InputError("a model that knows its training data", "one without")
        return _array(p.novelty)

    def _train(
        self, X: ArrayLike, y: NDArray[np.number], outputs: int, strata: ArrayLike | None = None
    ) -> None:
        graphs = _graphs(X)
        if len(graphs) != len(y):
            raise InputError("as many molecules as targets", f"{len(graphs)} and {len(y)}")
        if len(graphs) < _FEWEST:
            raise InputError(f"at least {_FEWEST} molecules", len(graphs))
        for graph, row in zip(graphs, y, strict=True):
            graph.y = torch.as_tensor(row)[None]
        seed = self.random_state
        train, val = train_test_split(
            graphs, test_size=self.validation_fraction, random_state=seed, stratify=strata
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = BondGNN(outputs, self.hidden_channels, self.num_layers, self.dropout)
        options: dict[str, Any] = {"lr": self.learning_rate, "batch_size": self.batch_size}
        options |= {"seed": seed, "target": self._target, "progress": self.verbose}
        options |= {"epochs": self.max_epochs}
        fit(net, train, val, patience=self.patience, calibrate=None, **options)
        self.model_ = choose(net, train, val, budget=self.budget, **options)
        self.n_features_in_ = 1

    def __sklearn_tags__(self) -> object:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array = True, True
        tags.input_tags.two_d_array = False
        tags.target_tags.required = True
        return tags


class MoleculeRegressor(RegressorMixin, _MoleculeEstimator):  # type: ignore[misc]
    """Values of molecules, with standard deviations and intervals.

    Args:
        budget: Cost of everything after the network's training, in trainings of the network: 1.2
            leaves the network as it is, from 1.5 on it is also trained on (`gduq.choose`).
        max_epochs: At most so many passes over the training rows.
        patience: Passes without a better validation loss after which training stops.
        hidden_channels: Width of the features of an atom.
        num_layers: Layers of the network.
        dropout: Its probability.
        learning_rate: Of Adam.
        batch_size: Molecules per step.
        validation_fraction: Share of the rows that training stops and calibrates by.
        random_state: Seed of the cut, the network and its training.
        verbose: Show the epochs.

    Attributes:
        model_: The fitted model; ``gduq.save(regressor.model_, "model")`` writes a bundle.

    Example:
        >>> smiles = ["C" * n + end for n in range(1, 26) for end in "ONFS"]
        >>> regressor = MoleculeRegressor(max_epochs=20, validation_fraction=0.5)
        >>> regressor = regressor.fit(smiles, [len(text) for text in smiles])
        >>> mean, std = regressor.predict(["CCO", "CCCO"], return_std=True)
        >>> mean.shape, std.shape, regressor.predict_interval(["CCO"]).shape
        ((2,), (2,), (1, 2))
    """

    _target = "values"

    def fit(self, X: ArrayLike, y: ArrayLike) -> MoleculeRegressor:
        """Train on SMILES ``X [n]`` and their values ``y``, ``[n]`` or ``[n, targets]``."""
        values = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        values = values.ravel() if values.ndim == 2 and values.shape[1] == 1 else values
        self._train(X, values.astype(np.float32), 1 if values.ndim == 1 else values.shape[1])
        return self

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> NDArray[np.float64]: ...
    @overload
    def predict(
        self, X: ArrayLike, return_std: Literal[True]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The expected value of each molecule, and its standard deviation where asked for."""
        p: ValuePrediction = self.predict_distribution(X)
        return (_array(p.mean), _array(p.std)) if return_std else _array(p.mean)

    def predict_interval(self, X: ArrayLike, level: float = 0.9) -> NDArray[np.float64]:
        """Lower and upper end ``[n, 2]`` (``[n, targets, 2]``) of the interval that holds the value
        with a probability of ``level``."""
        p: ValuePrediction = self.predict_distribution(X)
        return np.stack([_array(end) for end in p.interval(level)], axis=-1)


class MoleculeClassifier(ClassifierMixin, _MoleculeEstimator):  # type: ignore[misc]
    """Classes of molecules, with calibrated probabilities.

    Args and ``model_`` are those of `MoleculeRegressor`.

    Attributes:
        classes_: The classes, sorted, in the order of the columns of `predict_proba`.

    Example:
        >>> texts = ["C" * n + end for end in "ON" for n in range(1, 51)]
        >>> classifier = MoleculeClassifier(max_epochs=10, validation_fraction=0.5)
        >>> classifier = classifier.fit(texts, ["alcohol"] * 50 + ["amine"] * 50)
        >>> classifier.predict_proba(["CCO"]).shape, classifier.classes_.tolist()
        ((1, 2), ['alcohol', 'amine'])
    """

    _target = "classes"

    def fit(self, X: ArrayLike, y: ArrayLike) -> MoleculeClassifier:
        """Train on SMILES ``X [n]`` and their classes ``y [n]``."""
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        self.classes_, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
        if len(self.classes_) < 2:
            raise InputError("at least two classes", len(self.classes_))
        if counts.min() < 2:
            rare = self.classes_[counts.argmin()]
            raise InputError("at least two molecules of every class", f"one of class {rare!r}")
        self._train(X, codes.astype(np.int64), len(self.classes_), strata=codes)
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class of each molecule."""
        p: ClassPrediction = self.predict_distribution(X)
        return np.asarray(self.classes_[p.label.cpu().numpy()])

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Calibrated probabilities ``[n, classes]``."""
        p: ClassPrediction = self.predict_distribution(X)
        return _array(p.probs)


def _array(values: torch.Tensor) -> NDArray[np.float64]:
    return np.asarray(values.detach().cpu().numpy(), dtype=np.float64)


def _graphs(X: ArrayLike) -> list[Data]:
    """The molecules of a list, an array, a series or a table of one column."""
    values = np.asarray(X, dtype=object)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InputError("SMILES, one per row", f"an array of the shape {values.shape}")
    texts: list[str] = values.tolist()
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError("SMILES as text", f"{text!r} in row {row}")
    found = molecules(texts)
    for row, graph in enumerate(found):
        if isinstance(graph, str):
            raise InputError("valid SMILES", f"in row {row}: {graph}")
    return [graph for graph in found if isinstance(graph, Data)]
