"""`Prediction`: what predictions about classes, labels and values share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gduq._io import atomic_path
from gduq._torch import exporting
from gduq.errors import InputError
from gduq.graphs import Graph

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

__all__ = ["Calibrate", "Columns", "Prediction", "RowChoice", "check_nodes",
           "known_entries", "row_index"]  # fmt: skip

Calibrate = Literal["shifted", "clean"] | None  # how a temperature was found
RowChoice = Tensor | slice | Sequence[int]
Columns = dict[str, Tensor | NDArray[np.object_]]

# What has one entry per row, and its number of axes; 0 where that depends.
PER_ROW = {"target": 0, "features": 2, "novelty": 1, "trust": 0, "nodes": 1}
P = TypeVar("P", bound="Prediction")
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
        trust: The probability that the answer is right ``[m]``, of labels and values ``[m, T]``.
        calibrated: What the model's temperature was fitted on: ``"shifted"`` (validation rows
            and shifted copies of them), ``"clean"`` (validation rows), or ``None``.
        nodes: The number of the node that each row is about ``[m]``.
    """

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
    trust: Tensor | None = field(default=None, kw_only=True)
    calibrated: str | None = field(default=None, kw_only=True)
    nodes: Tensor | None = field(default=None, kw_only=True)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):
            _KINDS[cls.kind] = cls

    def __post_init__(self) -> None:
        self._set("samples", self._checked_samples(_as_samples(self.samples)))
        count, rows = self.samples.shape[:2]
        for name, axes in PER_ROW.items():
            if getattr(self, name) is not None:
                entries = torch.as_tensor(getattr(self, name))
                if entries.dim() != (axes or entries.dim()) or entries.shape[:1] != (rows,):
                    raise InputError(f"{name} of {rows} rows, one per row", list(entries.shape))
                self._set(name, self._checked(name, entries))
        if self.weights is not None:
            self._set("weights", _as_weights(self.weights, count).to(self.samples.device))
        self._set("names", tuple(str(name) for name in ([] if self.names is None else self.names)))
        if self.names and (len(self.names) != self.width or len({*self.names}) != self.width):
            raise InputError(f"{self.width} different names of {self.kind}", list(self.names))
        if self.calibrated not in (None, "shifted", "clean"):
            raise InputError('calibrated="shifted", "clean" or None', repr(self.calibrated))

    def _checked(self, name: str, entries: Tensor) -> Tensor:
        """What has one entry per row in one form; raises for what does not fit."""
        if name == "target":
            return self._checked_target(entries)
        if name == "nodes":
            if entries.dtype != torch.int64:
                raise InputError("node numbers, one per row", entries.dtype)
            return entries
        if name != "features" and not exporting() and not ((entries >= 0) & (entries <= 1)).all():
            raise InputError(f"{name} from 0 to 1", "values outside, or NaN")
        return _precise(entries)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _checked_samples(self, samples: Tensor) -> Tensor:
        """Samples ``[K, m, O]`` in one form; raises for what does not fit."""
        return samples

    @abstractmethod
    def _checked_target(self, target: Tensor) -> Tensor:
        """The truth in one form; raises for what does not fit."""

    @property
    @abstractmethod
    def _parts(self) -> tuple[Tensor, ...]:
        """Noise that the hypotheses agree on, and their disagreement, in float64."""

    def _out(self, found: Tensor) -> Tensor:
        """What was found in float64, as it leaves."""
        return found.to(self.samples.dtype)

    @abstractmethod
    def _answers(self) -> Columns:
        """Columns of `to_pandas`; those of every class, label or value ``[m, width]``."""

    # what `gduq.ood.Trust` asks: of classes per row [m], of labels and values [m, T]

    chance: ClassVar[float] = 0.0  # the probability of being right by chance

    @abstractmethod
    def certainty(self, tolerance: Tensor) -> Tensor:
        """The probability that the answer is right, by the hypotheses alone."""

    @abstractmethod
    def is_right(self, tolerance: Tensor) -> Tensor:
        """1 where the answer is right, 0 where not, NaN where the truth is unknown."""

    def usual_error(self) -> Tensor:
        """Root mean square errors ``[T]``, where answers are right to a degree only."""
        return torch.empty(0, dtype=torch.float64)

    @cached_property
    def aleatoric(self) -> Tensor:
        return self._out(self._parts[0])

    @cached_property
    def epistemic(self) -> Tensor:
        return self._out(self._parts[1])

    @property
    def width(self) -> int:
        """How many classes, labels or values there are."""
        return self.samples.size(2)

    @property
    def size(self) -> str:
        """The same in words: ``"3 classes"``."""
        return f"{self.width} {self.kind if self.width != 1 else self.kind[:-1]}"

    def column(self, t: int) -> Prediction:
        """Label or value number ``t`` alone, of the rows where it is known, if there are targets; a
        label is a task of two classes."""
        raise NotImplementedError

    def _fields_of(self, t: int, outputs: Sequence[int]) -> dict[str, Any]:
        """What `column` is made from."""
        p = self if self.target is None else self[self.known[:, t]]
        found = {f.name: getattr(p, f.name) for f in fields(p)}
        for name in ("target", "trust"):
            if found[name] is not None:
                found[name] = found[name].view(len(p), self.width)[:, t]
        return found | {"samples": p.samples[..., outputs]}

    def parts(self) -> dict[str, Prediction]:
        """What is looked at one by one, by name: the `column` of every label or value; one alone is
        ``{"": part}``."""
        numbers = tuple(str(t) for t in range(self.width))
        names = (self.names or numbers) if self.width > 1 else ("",)
        return {name: self.column(t) for t, name in enumerate(names)}

    def __repr__(self) -> str:
        known = "with" if self.target is not None else "without"
        size = f"{self.num_samples} samples of {len(self)} rows, {self.size}"
        return f"{type(self).__name__}({size}, {known} targets)"

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

    @property
    def known(self) -> Tensor:
        """Which targets are known, one column per label or value; raises without targets."""
        return known_entries(self.require_target())

    def with_samples(self, samples: Tensor) -> Self:
        """The same rows and weights with other samples ``[K, m, O]``."""
        return replace(self, samples=samples)

    def __getitem__(self, rows: RowChoice | int) -> Self:
        """Some rows, by mask, slice, indices or number; of the same kind, for one row too."""
        index = row_index(rows, len(self))
        return self._changed(self.samples[:, index], lambda values: values[index])

    def to(self, device: torch.device | str) -> Self:
        """The same prediction on another device; the weights go where the samples are."""
        if self.samples.device == torch.device(device):
            return self
        return self._changed(self.samples.to(device), lambda rows: rows.to(device))

    def _changed(self, samples: Tensor, change: Callable[[Tensor], Tensor]) -> Self:
        """Other samples, and a change of everything that has one entry per row."""
        given = ((name, getattr(self, name)) for name in PER_ROW)
        changed: dict[str, Any] = {k: change(v) for k, v in given if v is not None}
        return replace(self, samples=samples, **changed)

    @staticmethod
    def concatenate(parts: Sequence[P]) -> P:
        """The rows of all parts in turn; all must be of one kind.

        What rows have stays if every part has it, ``calibrated`` if it is the same.
        """
        kinds = sorted({(type(p).__name__, p.num_samples, p.samples.size(2)) for p in parts})
        if len(kinds) != 1:
            raise InputError("predictions of one kind with equal K and C", kinds or "none")
        if len(parts) == 1:
            return parts[0]
        joined: dict[str, Any] = {"samples": torch.cat([p.samples for p in parts], dim=1)}
        for name in {f.name for f in fields(parts[0])} - {"samples"}:
            found = [getattr(p, name) for p in parts]
            if name in PER_ROW:
                joined[name] = None if any(x is None for x in found) else torch.cat(found)
            elif len({str(x.tolist() if isinstance(x, Tensor) else x) for x in found}) > 1:
                joined[name] = None
                if name != "calibrated":
                    raise InputError(f"parts with equal {name}", "different ones")
        return replace(parts[0], **joined)

    def to_pandas(self) -> pd.DataFrame:
        """One line per row, with everything that is said of it: ``node`` is its number, where rows
        are nodes, ``spread`` a mean over classes, and each value has its 90 % interval."""
        import pandas as pd

        first = {} if self.nodes is None else {"node": self.nodes}
        found = (first | self.columns()).items()
        return pd.DataFrame({k: v.cpu().numpy() if isinstance(v, Tensor) else v for k, v in found})

    def columns(self) -> Columns:
        """The columns of `to_pandas` by name, but for ``node``: those of the row, then those of
        every class, label or value, whose names end in its name."""
        more = ("aleatoric", "epistemic", "trust", "target", "novelty")
        given = ((name, getattr(self, name)) for name in more)
        found = self._answers() | {k: v for k, v in given if v is not None}
        columns = {k: v for k, v in found.items() if v.ndim == 1}
        for t, name in enumerate(self.names or range(self.width)):
            columns |= {f"{k}_{name}": v[:, t] for k, v in found.items() if v.ndim == 2}
        return columns

    def to_npz(self, path: str | Path) -> None:
        """Write everything this was made from; `from_npz` reads it back."""
        given = {f.name: getattr(self, f.name) for f in fields(self)} | {"kind": self.kind}
        arrays = {
            name: np.asarray(value.cpu() if isinstance(value, Tensor) else value)
            for name, value in given.items()
            if value is not None and value != ()
        }
        with atomic_path(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def from_npz(cls, path: str | Path) -> Prediction:
        """Read what `to_npz` wrote, of whatever kind it is; nothing is unpickled."""
        content = BytesIO(Path(path).read_bytes())
        try:
            with np.load(content, allow_pickle=False) as file:
                arrays = dict(file)
            kind = _KINDS[str(arrays.pop("kind"))]
            names = {f.name for f in fields(kind)}
            found = kind(**{k: _from_array(v) for k, v in arrays.items() if k in names})
            found.to_pandas()  # all that is said of a row can be said
            return found
        except InputError:
            raise
        except Exception:  # zip, zlib, NumPy and torch raise of all kinds for damaged bytes
            got = f"{path}, which is none, or damaged"
            raise InputError("a file that Prediction.to_npz wrote", got) from None


def _from_array(array: NDArray[np.generic]) -> Any:
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
    if weights.shape != (count,) or bool((weights < 0).any()) or not abs(total - 1.0) < 1e-4:
        raise InputError(f"{count} weights of at least 0 that sum to 1", weights.tolist())
    return weights if abs(total - 1.0) < 1e-12 else weights / total


def known_entries(y: Tensor) -> Tensor:
    """Which classes, labels or values of rows are known ``[m, T]``: those that are not NaN."""
    return ~(y.unsqueeze(1) if y.dim() == 1 else y).isnan()


def row_index(rows: RowChoice | int | None, length: int) -> Tensor | slice:
    """A slice, mask, numbers or one number of rows as what indexes ``length`` rows."""
    if rows is None or isinstance(rows, slice):
        return rows or slice(None)
    index = torch.as_tensor(rows).cpu()
    try:
        return torch.arange(length)[index if index.numel() else index.long()].view(-1)
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
