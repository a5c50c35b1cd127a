"""`Prediction`: what predictions about classes, labels and values share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gduq._io import atomic_path
from gduq.errors import InputError
from gduq.prediction import checks, mixture

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

__all__ = ["Discrete", "Prediction"]

_PER_ROW = ("target", "features", "novelty", "nodes")
_KINDS: dict[str, type[Prediction]] = {}


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(ABC):
    """K hypotheses about m rows, whatever they are about.

    Args:
        samples: Outputs ``[K, m, O]``; ``[m, O]`` is taken as K = 1.
        target: The truth, one entry or one row of entries per row; ``None`` when unknown.
        names: What classes, labels or values are called, or ``()``; used as column names.
        features: Representation at the cut ``[m, d]`` for scores that need one, or ``None``.
        weights: Of the hypotheses ``[K]``, at least 0 and summing to 1; ``None`` for equal ones.
        novelty: How unlike the training data each row is ``[m]``, from 0 to 1, or ``None``.
        calibrated: What the model's temperature was fitted on: ``"shifted"`` (validation rows
            and shifted copies of them), ``"clean"`` (validation rows), or ``None``.
        nodes: The number of the node that each row is about ``[m]``, or ``None``.
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
        self._set("samples", self._checked_samples(torch.as_tensor(self.samples).detach()))
        count, rows = self.samples.shape[:2]
        if self.target is not None:
            self._set("target", self._checked_target(torch.as_tensor(self.target), rows))
        self._set("names", checks.as_names(self.names, self.width, f"names of {self.kind}"))
        if self.features is not None:
            self._set("features", checks.as_features(self.features, rows))
        if self.weights is not None:
            weights = checks.as_weights(self.weights, count)
            self._set("weights", weights.to(self.samples.device))
        if self.novelty is not None:
            self._set("novelty", checks.as_novelty(self.novelty, rows))
        if self.nodes is not None:
            self._set("nodes", checks.as_nodes(self.nodes, rows))
        if self.calibrated not in (None, "shifted", "clean"):
            raise InputError('calibrated="shifted", "clean" or None', repr(self.calibrated))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    # -- what a kind says ----------------------------------------------------------------------

    @abstractmethod
    def _checked_samples(self, samples: Tensor) -> Tensor:
        """Samples ``[K, m, O]`` in one form; raises for what does not fit."""

    @abstractmethod
    def _checked_target(self, target: Tensor, rows: int) -> Tensor:
        """The truth of so many rows in one form; raises for what does not fit."""

    @property
    @abstractmethod
    def width(self) -> int:
        """How many classes, labels or values there are."""

    @property
    def size(self) -> str:
        """The same in words: ``"3 classes"``."""
        return f"{self.width} {self.kind if self.width != 1 else self.kind[:-1]}"

    def parts(self) -> dict[str, Prediction]:
        """What is looked at one by one, by name: every label, as a task of two classes on the rows
        whose label is known, or every value. Classes, one label and one value are ``{"": part}``.
        """
        return {"": self}

    def _part_names(self) -> tuple[str, ...]:
        numbers = tuple(str(t) for t in range(self.width))
        return (self.names or numbers) if self.width > 1 else ("",)

    @abstractmethod
    def _columns(self) -> dict[str, Any]:
        """The columns of `to_pandas`: tensors or arrays by name."""

    def columns(self) -> dict[str, list[Any]]:
        """What `to_pandas` holds, as lists."""
        return {name: values.tolist() for name, values in self._columns().items()}

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

    def row_mean(self, values: Tensor) -> Tensor:
        """One number per row ``[m]`` of ``[m]`` or ``[m, n]``: the mean."""
        return values if values.dim() == 1 else values.mean(dim=1)

    def require_target(self) -> Tensor:
        """The targets, or an error that says they are missing."""
        if self.target is None:
            raise InputError("predictions with targets", "none", "Predict on labelled data.")
        return self.target

    # -- new predictions from this one ---------------------------------------------------------

    def with_samples(self, samples: Tensor) -> Self:
        """The same rows and weights with other samples ``[K, m, O]``."""
        return replace(self, samples=samples)

    def __getitem__(self, rows: Tensor | slice | Sequence[int] | int) -> Self:
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
        given = {name: getattr(self, name) for name in _PER_ROW}
        changed: dict[str, Any] = {k: None if v is None else change(v) for k, v in given.items()}
        return replace(self, samples=samples, **changed)

    @staticmethod
    def concatenate(parts: Sequence[Any]) -> Any:
        """The rows of all parts in turn; all must be of one kind.

        Targets, features, novelty and nodes stay if every part has them, ``calibrated`` if it is
        the same.
        """
        if not parts:
            raise InputError("at least one prediction", "none")
        if len(kinds := {type(p).__name__ for p in parts}) > 1:
            raise InputError("predictions of one kind", ", ".join(sorted(kinds)))
        shapes = sorted({(p.num_samples, p.samples.size(2)) for p in parts})
        if len(shapes) > 1:
            raise InputError("parts with equal K and C", f"(K, C) of {shapes}")
        joined: dict[str, Any] = {"samples": torch.cat([p.samples for p in parts], dim=1)}
        for name in (f.name for f in fields(parts[0]) if f.name != "samples"):
            found = [getattr(p, name) for p in parts]
            if name in _PER_ROW:
                joined[name] = None if any(x is None for x in found) else torch.cat(found)
            elif len({_comparable(value) for value in found}) > 1:
                if name != "calibrated":
                    raise InputError(f"parts with equal {name.replace('_', ' ')}", "different ones")
                joined[name] = None
        return replace(parts[0], **joined)

    # -- out -----------------------------------------------------------------------------------

    def to_pandas(self) -> pd.DataFrame:
        """One line per row, with everything that is said of it.

        ``node`` is the number of the node, where rows are nodes; ``spread`` is a mean over classes;
        ``novelty`` is there if known; each value has its 90 % interval.
        """
        import pandas as pd

        first = {} if self.nodes is None else {"node": self.nodes}
        found = (first | self._columns()).items()
        return pd.DataFrame({k: v.cpu().numpy() if isinstance(v, Tensor) else v for k, v in found})

    def to_parquet(self, path: str | Path) -> None:
        """Write `to_pandas` as a parquet file."""
        with atomic_path(Path(path)) as temporary, temporary.open("wb") as file:
            self.to_pandas().to_parquet(file, index=False)

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
        bad = InputError(
            "a file that Prediction.to_npz wrote", f"{path}, which is none, or damaged"
        )
        if Path(path).exists() and not Path(path).is_file():
            raise bad
        raw = Path(path).read_bytes()
        try:
            with np.load(BytesIO(raw), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file}
            kind = _KINDS[str(arrays.pop("kind", "classes"))]
            known = {f.name for f in fields(kind)}
            given = {k: _read(k, v) for k, v in arrays.items() if k in known}
            if "samples" not in given:
                raise InputError("an npz file with an array 'samples'", sorted(arrays))
            found = kind(**given)
            found.to_pandas()  # all that is said of a row can be said
            return found
        except InputError:
            raise
        except Exception:  # zip, zlib, NumPy and torch raise of all kinds for damaged bytes
            raise bad from None


def _comparable(value: Any) -> Any:
    return tuple(value.flatten().tolist()) if isinstance(value, Tensor) else value


def _read(name: str, array: np.ndarray[Any, Any]) -> Any:
    """A tensor, a text or a tuple of texts, as an array of the file holds it."""
    if array.dtype.kind != "U" or name in ("samples", *_PER_ROW):
        return torch.from_numpy(array)
    return tuple(array.tolist()) if array.ndim else str(array)


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
