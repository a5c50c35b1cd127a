"""`Prediction`: what predictions about classes, labels and values share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gduq._io import atomic_path
from gduq._torch import exporting
from gduq.errors import InputError
from gduq.graphs import Graph
from gduq.prediction import mixture

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

__all__ = ["Calibrate", "Discrete", "Prediction", "RowChoice", "check_nodes", "row_index"]

Calibrate = Literal["shifted", "clean"] | None  # how a temperature was found
RowChoice = Tensor | slice | Sequence[int]

_PER_ROW = ("target", "features", "novelty", "nodes")
_KINDS: dict[str, type[Prediction]] = {}


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(ABC):
    """K hypotheses about m rows, whatever they are about.

    Args:
        samples: Outputs ``[K, m, O]``; ``[m, O]`` is taken as K = 1.
        target: The truth, one entry or one row of entries per row.
        names: What classes, labels or values are called; used as column names.
        features: Representation at the cut ``[m, d]``.
        weights: Of the hypotheses ``[K]``, at least 0 and summing to 1; ``None`` for equal ones.
        novelty: How unlike the training data each row is ``[m]``, from 0 to 1.
        calibrated: What the model's temperature was fitted on: ``"shifted"`` (validation rows
            and shifted copies of them), ``"clean"`` (validation rows), or ``None``.
        nodes: The number of the node that each row is about ``[m]``.
    """

    if TYPE_CHECKING:

        @property
        def epistemic(self) -> Tensor: ...

    kind: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]  # all that `gduq.evaluate` measures, as in `gduq.metrics`
    summary: ClassVar[tuple[str, ...]]  # those that are shown first
    calibrator: ClassVar[str]  # the default of `gduq.calibration.METHODS`
    ood_scores: ClassVar[tuple[str, ...]]  # properties; the first is the default of `gduq.ood`
    conformal: ClassVar[str]  # the default method of `gduq.conformal`
    mean_of_parts: ClassVar[bool] = True  # whether several labels or values have a mean
    shift_columns: ClassVar[tuple[str, ...]]  # what `gduq.conformal.shift_test` compares

    samples: Tensor
    target: Tensor | None = None
    names: tuple[str, ...] = ()
    features: Tensor | None = field(default=None, kw_only=True)
    weights: Tensor | None = field(default=None, kw_only=True)
    novelty: Tensor | None = field(default=None, kw_only=True)
    calibrated: str | None = field(default=None, kw_only=True)
    nodes: Tensor | None = field(default=None, kw_only=True)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):
            _KINDS[cls.kind] = cls

    def __post_init__(self) -> None:
        self._set("samples", self._checked_samples(_as_samples(self.samples)))
        count, rows = self.samples.shape[:2]
        if self.target is not None:
            self._set("target", self._checked_target(torch.as_tensor(self.target)))
        if self.weights is not None:
            self._set("weights", _as_weights(self.weights, count).to(self.samples.device))
        self._set("names", tuple(str(name) for name in ([] if self.names is None else self.names)))
        if self.names and (len(self.names) != self.width or len({*self.names}) != self.width):
            raise InputError(f"{self.width} different names of {self.kind}", list(self.names))
        for name, dims in {"features": 2, "novelty": 1, "nodes": 1}.items():
            values: Tensor | None = getattr(self, name)
            if values is not None:
                values = torch.as_tensor(values) if name == "nodes" else _precise(values)
                if values.dim() != dims or values.size(0) != rows:
                    raise InputError(f"{name} of {rows} rows, one per row", list(values.shape))
                self._set(name, values)
        if self.novelty is not None and not bool(((self.novelty >= 0) & (self.novelty <= 1)).all()):
            raise InputError("novelty from 0 to 1", "values outside, or NaN")
        if self.nodes is not None and self.nodes.dtype != torch.int64:
            raise InputError("node numbers, one per row", self.nodes.dtype)
        if self.calibrated not in (None, "shifted", "clean"):
            raise InputError('calibrated="shifted", "clean" or None', repr(self.calibrated))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    # -- what a kind says ----------------------------------------------------------------------

    def _checked_samples(self, samples: Tensor) -> Tensor:
        """Samples ``[K, m, O]`` in one form; raises for what does not fit."""
        return samples

    @abstractmethod
    def _checked_target(self, target: Tensor) -> Tensor:
        """The truth in one form; raises for what does not fit."""

    @abstractmethod
    def _columns(self) -> dict[str, Any]:
        """The columns of `to_pandas`: tensors or arrays by name."""

    @property
    def width(self) -> int:
        """How many classes, labels or values there are."""
        return self.samples.size(2)

    @property
    def size(self) -> str:
        """The same in words: ``"3 classes"``."""
        return f"{self.width} {self.kind if self.width != 1 else self.kind[:-1]}"

    def column(self, t: int) -> Prediction:
        """Label or value number ``t`` alone."""
        raise NotImplementedError

    def parts(self) -> dict[str, Prediction]:
        """What is looked at one by one, by name: every label, as a task of two classes on the rows
        whose label is known, or every value; one alone is ``{"": part}``."""
        numbers = tuple(str(t) for t in range(self.width))
        names = (self.names or numbers) if self.width > 1 else ("",)
        return {name: self.column(t) for t, name in enumerate(names)}

    def row_mean(self, values: Tensor) -> Tensor:
        """One number per row ``[m]`` of ``[m]`` or ``[m, n]``: the mean."""
        return values if values.dim() == 1 else values.mean(dim=1)

    # -- sizes ---------------------------------------------------------------------------------

    def __repr__(self) -> str:
        known = "with" if self.target is not None else "without"
        rows = f"{len(self)} rows, {self.size}"
        return f"{type(self).__name__}({self.num_samples} samples of {rows}, {known} targets)"

    def __len__(self) -> int:
        return self.samples.size(1)

    @property
    def num_samples(self) -> int:
        """K, the number of hypotheses."""
        return self.samples.size(0)

    @staticmethod
    def of_kind(kind: str) -> type[Prediction]:
        """The class of predictions about ``"classes"``, ``"labels"`` or ``"values"``."""
        return _KINDS[kind]

    def require_target(self) -> Tensor:
        """The targets, or an error that says they are missing."""
        if self.target is None:
            raise InputError("predictions with targets", "none", "Predict on labelled data.")
        return self.target

    # -- new predictions from this one ---------------------------------------------------------

    def with_samples(self, samples: Tensor) -> Self:
        """The same rows and weights with other samples ``[K, m, O]``."""
        return replace(self, samples=samples)

    def __getitem__(self, rows: RowChoice | int) -> Self:
        """Some rows, by mask, slice, indices or number; of the same kind, for one row too."""
        index = rows if isinstance(rows, slice) else torch.as_tensor(rows)
        if isinstance(index, Tensor):
            index = torch.atleast_1d(index if index.numel() else index.long())
        return self._changed(self.samples[:, index], lambda values: values[index])

    def to(self, device: torch.device | str) -> Self:
        """The same prediction on another device; the weights go where the samples are."""
        return self._changed(self.samples.to(device), lambda rows: rows.to(device))

    def _changed(self, samples: Tensor, change: Callable[[Tensor], Tensor]) -> Self:
        """Other samples, and a change of everything that has one entry per row."""
        given = ((name, getattr(self, name)) for name in _PER_ROW)
        changed: dict[str, Any] = {k: change(v) for k, v in given if v is not None}
        return replace(self, samples=samples, **changed)

    @staticmethod
    def concatenate(parts: Sequence[Any]) -> Any:
        """The rows of all parts in turn; all must be of one kind.

        Targets, features, novelty and nodes stay if every part has them, ``calibrated`` if it is
        the same.
        """
        kinds = sorted({(type(p).__name__, p.num_samples, p.samples.size(2)) for p in parts})
        if len(kinds) != 1:
            raise InputError("predictions of one kind with equal K and C", kinds or "none")
        joined: dict[str, Any] = {"samples": torch.cat([p.samples for p in parts], dim=1)}
        for name in (f.name for f in fields(parts[0]) if f.name != "samples"):
            found = [getattr(p, name) for p in parts]
            if name in _PER_ROW:
                joined[name] = None if any(x is None for x in found) else torch.cat(found)
            elif len({str(x.tolist() if isinstance(x, Tensor) else x) for x in found}) > 1:
                joined[name] = None
                if name != "calibrated":
                    raise InputError(f"parts with equal {name}", "different ones")
        return replace(parts[0], **joined)

    # -- out -----------------------------------------------------------------------------------

    def columns(self) -> dict[str, list[Any]]:
        """What `to_pandas` holds, as lists."""
        return {name: values.tolist() for name, values in self._columns().items()}

    def to_pandas(self) -> pd.DataFrame:
        """One line per row, with everything that is said of it: ``node`` is its number, where rows
        are nodes, ``spread`` a mean over classes, and each value has its 90 % interval."""
        import pandas as pd

        first = {} if self.nodes is None else {"node": self.nodes}
        found = (first | self._columns()).items()
        return pd.DataFrame({k: v.cpu().numpy() if isinstance(v, Tensor) else v for k, v in found})

    def _per_part(self, ends: Sequence[str], found: dict[str, Tensor]) -> dict[str, Any]:
        """Columns of every label or value, whose names end so, and of the row."""
        if self.target is not None:
            found = found | {"target": self.target}
        wide = {name: values.view(len(self), -1) for name, values in found.items()}
        columns = {f"{k}{end}": v[:, t] for t, end in enumerate(ends) for k, v in wide.items()}
        return columns | ({} if self.novelty is None else {"novelty": self.novelty})

    def to_npz(self, path: str | Path) -> None:
        """Write everything this was made from; `from_npz` reads it back."""
        given = {f.name: getattr(self, f.name) for f in fields(self)} | {"kind": self.kind}
        arrays = {
            name: value.cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
            for name, value in given.items()
            if value is not None and value != ()
        }
        with atomic_path(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def from_npz(cls, path: str | Path) -> Any:
        """Read what `to_npz` wrote, of whatever kind it is; nothing is unpickled."""
        content = BytesIO(Path(path).read_bytes())
        try:
            with np.load(content, allow_pickle=False) as file:
                arrays = dict(file)
            kind = _KINDS[str(arrays.pop("kind", "classes"))]
            names = {f.name for f in fields(kind)}
            found = kind(**{k: _from_array(v) for k, v in arrays.items() if k in names})
            found.to_pandas()  # all that is said of a row can be said
            return found
        except InputError:
            raise
        except Exception:  # zip, zlib, NumPy and torch raise of all kinds for damaged bytes
            got = f"{path}, which is none, or damaged"
            raise InputError("a file that Prediction.to_npz wrote", got) from None


def _from_array(array: NDArray[Any]) -> Any:
    if array.dtype.kind != "U":
        return torch.from_numpy(array)
    return tuple(array.tolist()) if array.ndim else str(array)


def _as_samples(given: Tensor) -> Tensor:
    """Finite samples ``[K, m, O]`` in single or double precision."""
    samples = torch.as_tensor(given).detach()
    if samples.dim() == 2:
        samples = samples.unsqueeze(0)
    if samples.dim() != 3 or 0 in (samples.size(0), samples.size(2)):
        raise InputError("samples [K, m, O] or [m, O] with K, O >= 1", list(samples.shape))
    if not samples.is_floating_point():
        raise InputError("floating-point samples", samples.dtype, "Convert with .float().")
    if not exporting() and not torch.isfinite(samples).all():
        got = f"{int((~torch.isfinite(samples)).sum())} NaN or infinite values"
        do = "Look for NaN in the input features; else train with a lower learning rate."
        raise InputError("finite samples", got, do)
    return _precise(samples)


def _precise(values: Tensor) -> Tensor:
    """Half floats become single; integers too."""
    values = torch.as_tensor(values).detach()
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _as_weights(given: Tensor, count: int) -> Tensor:
    """Weights ``[K]`` in float64 that sum to 1, as they are if they do so but for rounding."""
    weights = torch.as_tensor(given).detach().double()
    if exporting():
        return weights
    total = float(weights.sum())
    fits = weights.shape == (count,) and bool((weights >= 0).all()) and abs(total - 1.0) < 1e-4
    if not fits:
        raise InputError(f"{count} weights of at least 0 that sum to 1", weights.tolist())
    return weights if abs(total - 1.0) < 1e-12 else weights / total


def row_index(rows: RowChoice | None, length: int) -> Tensor | slice:
    """A slice, mask or numbers of rows as what indexes ``length`` rows.

    Example:
        >>> row_index([0, 2], length=3)
        tensor([0, 2])
    """
    if rows is None or isinstance(rows, slice):
        return rows or slice(None)
    index = torch.as_tensor(rows).cpu()
    try:
        return torch.arange(length)[index if index.numel() else index.long()]
    except IndexError:
        got = f"{index.dtype} of shape {list(index.shape)}"
        raise InputError(f"a slice, a mask or numbers of {length} rows", got) from None


def check_nodes(graph: Graph | None, p: Prediction, name: str) -> Graph:
    """The graph of a method for nodes, when it is there and ``p`` is about all its nodes."""
    if graph is None:
        do = f"Pass {name}(graph=data), or bind a restored one with .on(data)."
        raise InputError(f"a graph for {name}", "none", do)
    if len(p) != graph.num_nodes:
        do = "Predict all nodes, and choose with rows=."
        raise InputError(f"predictions of all {graph.num_nodes} nodes", f"{len(p)} rows", do)
    return graph


class Discrete(Prediction):
    """What classes and labels share: each is a choice, of which hypotheses have logits.

    Differences of entropies are taken in float64.
    """

    @property
    @abstractmethod
    def _choices(self) -> Tensor:
        """Logits ``[K, n, C]`` of n choices."""

    @abstractmethod
    def _out(self, values: Tensor) -> Tensor:
        """What was found of n choices, per row and in the precision of the samples."""

    @cached_property
    def _logs(self) -> Tensor:
        return mixture.log_mixture(self._choices, self.weights)

    @cached_property
    def confidence(self) -> Tensor:
        return self._out(self._logs.exp().amax(dim=-1))

    @cached_property
    def entropy(self) -> Tensor:
        return self._out(self._entropy)

    @cached_property
    def aleatoric(self) -> Tensor:
        return self._out((self._entropy - self._information).clamp_min(0.0))

    @cached_property
    def epistemic(self) -> Tensor:
        return self._out(self._information)

    @cached_property
    def _entropy(self) -> Tensor:
        return -(self._logs.exp() * self._logs).sum(dim=-1)

    @cached_property
    def _information(self) -> Tensor:
        return mixture.disagreement(self._choices, self._logs, self.weights)
