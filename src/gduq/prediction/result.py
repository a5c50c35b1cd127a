"""`Prediction`: the only thing that leaves a model."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.prediction import checks, mixture

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RESCALING_RULES", "Prediction", "Rule"]

Rule = Literal["paper", "released"]
RESCALING_RULES: tuple[Rule, ...] = ("paper", "released")

_PER_ROW = ("target", "features", "novelty")


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    r"""K hypotheses about m rows, and everything that follows from their mixture.

    With logits :math:`s_k` of hypothesis k, :math:`p_k = \mathrm{softmax}(s_k)` and weights
    :math:`w_k` that sum to 1:

    ============== ========= ================================================================
    ``probs``      ``[m,C]`` :math:`\bar p = \sum_k w_k p_k`, the mixture
    ``log_probs``  ``[m,C]`` its logarithm, which does not underflow
    ``confidence`` ``[m]``   largest entry of ``probs``
    ``label``      ``[m]``   its index
    ``entropy``    ``[m]``   :math:`H(\bar p)`, equal to ``aleatoric`` + ``epistemic``
    ``aleatoric``  ``[m]``   :math:`\sum_k w_k H(p_k)`, the entropy the hypotheses agree on
    ``epistemic``  ``[m]``   :math:`\sum_k w_k \mathrm{KL}(p_k \| \bar p)`, mutual information
    ``spread``     ``[m,C]`` standard deviation of :math:`p_k` over k (see `mixture.deviation`)
    ``logits``     ``[m,C]`` :math:`\mu = \sum_k w_k s_k`, which the paper's rules are about
    ============== ========= ================================================================

    A one-logit (binary) task is seen as two logits ``(0, z)``; half floats become single.

    Args:
        samples: Logits ``[K, m, C]``; ``[m, C]`` is taken as K = 1.
        target: Integer labels ``[m]``, or ``None`` when unknown.
        class_names: One name per class, used as column names.
        features: Representation at the cut ``[m, d]`` for scores that need one, or ``None``.
        weights: Of the hypotheses ``[K]``, at least 0 and summing to 1; ``None`` for equal ones.
        novelty: How unlike the training data each row is ``[m]``, from 0 to 1, or ``None``.
        calibrated: What the model's temperature was fitted on: ``"shifted"`` (validation rows
            and shifted copies of them), ``"clean"`` (validation rows), or ``None``.

    Example:
        >>> p = Prediction(torch.tensor([[[9.0, 0.0]], [[0.0, 0.0]]]), target=torch.tensor([0]))
        >>> p.probs, p.label
        (tensor([[0.7499, 0.2501]]), tensor([0]))
        >>> round(p.epistemic.item(), 4), round((p.entropy - p.aleatoric).item(), 4)
        (0.2152, 0.2152)
    """

    samples: Tensor
    target: Tensor | None = None
    class_names: tuple[str, ...] | None = None
    features: Tensor | None = field(default=None, repr=False)
    weights: Tensor | None = None
    novelty: Tensor | None = None
    calibrated: str | None = None

    def __post_init__(self) -> None:
        samples = checks.as_samples(torch.as_tensor(self.samples).detach())
        count, rows, classes = samples.shape
        self._set("samples", samples)
        if self.target is not None:
            self._set("target", checks.as_labels(self.target, rows, classes))
        if self.class_names is not None:
            self._set("class_names", checks.as_names(self.class_names, classes))
        if self.features is not None:
            self._set("features", checks.as_features(self.features, rows))
        if self.weights is not None:
            self._set("weights", checks.as_weights(self.weights, count).to(samples.device))
        if self.novelty is not None:
            self._set("novelty", checks.as_novelty(self.novelty, rows))
        if self.calibrated not in (None, "shifted", "clean"):
            raise InputError('calibrated="shifted", "clean" or None', repr(self.calibrated))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        known = "with" if self.target is not None else "without"
        size = f"{len(self)} rows, {self.num_classes} classes"
        return f"Prediction({self.num_samples} samples of {size}, {known} targets)"

    # -- sizes ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.samples.size(1)

    @property
    def num_samples(self) -> int:
        """K, the number of hypotheses."""
        return self.samples.size(0)

    @property
    def num_classes(self) -> int:
        """C, the number of classes (2 for a one-logit task)."""
        return self.samples.size(2)

    # -- what follows from the samples ---------------------------------------------------------

    @cached_property
    def _logs(self) -> Tensor:
        """`log_probs` in float64: differences of entropies are taken there."""
        return mixture.log_mixture(self.samples, self.weights)

    @cached_property
    def log_probs(self) -> Tensor:
        return self._logs.to(self.samples.dtype)

    @cached_property
    def probs(self) -> Tensor:
        return self._logs.exp().to(self.samples.dtype)

    @cached_property
    def confidence(self) -> Tensor:
        return self.probs.amax(dim=-1)

    @cached_property
    def label(self) -> Tensor:
        return self.log_probs.argmax(dim=-1)  # what metrics read, so they never differ

    @cached_property
    def entropy(self) -> Tensor:
        return self._entropy.to(self.samples.dtype)

    @cached_property
    def aleatoric(self) -> Tensor:
        return (self._entropy - self._information).clamp_min_(0.0).to(self.samples.dtype)

    @cached_property
    def epistemic(self) -> Tensor:
        return self._information.to(self.samples.dtype)

    @cached_property
    def spread(self) -> Tensor:
        return mixture.deviation(self.samples.softmax(dim=-1), self.weights)

    @cached_property
    def logits(self) -> Tensor:
        return mixture.weighted_mean(self.samples, self.weights)

    @cached_property
    def _entropy(self) -> Tensor:
        return -(self._logs.exp() * self._logs).sum(dim=-1)

    @cached_property
    def _information(self) -> Tensor:
        return mixture.disagreement(self.samples, self._logs, self.weights)

    @property
    def correct(self) -> Tensor:
        """Whether each row's label is right ``[m]``; raises without targets."""
        return self.label == self.require_target()

    def require_target(self) -> Tensor:
        """The targets, or an error that says they are missing."""
        if self.target is None:
            raise InputError("predictions with targets", "none", "Predict on labelled data.")
        return self.target

    # -- new predictions from this one ---------------------------------------------------------

    def mean_logits(self) -> Prediction:
        r"""The paper's average: one hypothesis, :math:`\mu`.

        The temperature was fitted to the mixture, not to it: ``calibrated`` is ``None``.

        Example:
            >>> Prediction(torch.tensor([[[9.0, 0.0]], [[0.0, 0.0]]])).mean_logits().samples
            tensor([[[4.5000, 0.0000]]])
        """
        return self._alone(self.logits)

    def rescaled(self, rule: Rule) -> Prediction:
        r"""The mean logits pulled towards zero where the hypotheses disagree: K = 1.

        * ``"paper"``: :math:`\mu \odot (1 - \sigma)`, with :math:`\sigma` = ``spread``.
        * ``"released"``: :math:`\mu / (1 + e^{\bar\sigma})`, where :math:`\bar\sigma` is the mean
          over classes (the one logit of a binary task) of the deviation of element-wise sigmoids.
          The divisor is at least 2 even when all hypotheses agree (compare with temperature 2),
          but one hypothesis alone stays as it is.

        As of `mean_logits`, ``calibrated`` is ``None``.
        """
        if rule == "paper":
            return self._alone(self.logits * (1.0 - self.spread))
        if rule == "released":
            if self.num_samples == 1:
                return self.mean_logits()
            one_logit = self.num_classes == 2 and not self.samples[..., 0].any()
            own = self.samples[..., 1:] if one_logit else self.samples
            deviation = mixture.deviation(own.sigmoid(), self.weights).mean(dim=-1, keepdim=True)
            return self._alone(self.logits / (1.0 + deviation.exp()))
        raise InputError(f"a rule from {', '.join(RESCALING_RULES)}", repr(rule))

    def _alone(self, logits: Tensor) -> Prediction:
        return replace(self, samples=logits.unsqueeze(0), weights=None, calibrated=None)

    def with_samples(self, samples: Tensor) -> Prediction:
        """The same rows and weights with other logits ``[K, m, C]``."""
        return replace(self, samples=samples)

    def __getitem__(self, rows: Tensor | slice | Sequence[int] | int) -> Prediction:
        """Some rows, by mask, slice, indices or number; always a `Prediction`, of one row too."""
        index = rows if isinstance(rows, slice) else torch.as_tensor(rows)
        if isinstance(index, Tensor):
            index = torch.atleast_1d(index if index.numel() else index.long())
        return self._changed(self.samples[:, index], lambda values: values[index])

    def _changed(self, samples: Tensor, change: Callable[[Tensor], Tensor]) -> Prediction:
        """Other samples, and a change of everything that has one entry per row."""
        given = {name: getattr(self, name) for name in _PER_ROW}
        changed: dict[str, Any] = {k: None if v is None else change(v) for k, v in given.items()}
        return replace(self, samples=samples, **changed)

    @staticmethod
    def concatenate(parts: Sequence[Prediction]) -> Prediction:
        """The rows of all parts in turn.

        Targets, features and novelty stay if every part has them, ``calibrated`` if it is the same.
        """
        if not parts:
            raise InputError("at least one prediction", "none")
        shapes = sorted({(p.num_samples, p.num_classes) for p in parts})
        if len(shapes) > 1:
            raise InputError("parts with equal K and C", f"(K, C) of {shapes}")
        if len(names := {p.class_names for p in parts}) > 1:
            raise InputError("parts with equal class names", names)
        if len({None if p.weights is None else tuple(p.weights.tolist()) for p in parts}) > 1:
            raise InputError("parts with equal weights", "different ones")
        known = {name: [getattr(p, name) for p in parts] for name in _PER_ROW}
        per_row = {k: None if any(x is None for x in v) else torch.cat(v) for k, v in known.items()}
        same = len({p.calibrated for p in parts}) == 1
        return Prediction(
            samples=torch.cat([p.samples for p in parts], dim=1),
            class_names=parts[0].class_names,
            weights=parts[0].weights,
            calibrated=parts[0].calibrated if same else None,
            **per_row,
        )

    def to(self, device: torch.device | str) -> Prediction:
        """The same prediction on another device; the weights go where the samples are."""
        return self._changed(self.samples.to(device), lambda rows: rows.to(device))

    # -- out -----------------------------------------------------------------------------------

    def to_dataframe(self) -> pd.DataFrame:
        """One line per row; ``spread`` is averaged over classes, ``novelty`` is there if known."""
        import pandas as pd

        names = self.class_names or tuple(str(c) for c in range(self.num_classes))
        columns: dict[str, object] = {"label": self.label}
        if self.class_names is not None:
            columns["class"] = np.asarray(names, dtype=object)[self.label.cpu().numpy()]
        columns |= {
            "confidence": self.confidence,
            "entropy": self.entropy,
            "aleatoric": self.aleatoric,
            "epistemic": self.epistemic,
            "spread": self.spread.mean(dim=-1),
        }
        if self.novelty is not None:
            columns["novelty"] = self.novelty
        columns |= {f"prob_{name}": self.probs[:, c] for c, name in enumerate(names)}
        if self.target is not None:
            columns["target"] = self.target
        return pd.DataFrame(
            {k: v.cpu().numpy() if isinstance(v, Tensor) else v for k, v in columns.items()}
        )

    def to_parquet(self, path: str | Path) -> None:
        """Write `to_dataframe` as a parquet file."""
        with _replacing(path) as file:
            self.to_dataframe().to_parquet(file, index=False)

    def to_npz(self, path: str | Path) -> None:
        """Write everything this was made from; `from_npz` reads it back."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        arrays = {
            name: value.cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
            for name, value in given.items()
            if value is not None
        }
        with _replacing(path) as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def from_npz(cls, path: str | Path) -> Prediction:
        """Read what `to_npz` wrote; nothing is unpickled."""
        try:
            with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file}
            names, calibrated = (arrays.pop(name, None) for name in ("class_names", "calibrated"))
            known = {f.name for f in fields(cls)}
            tensors = {k: torch.from_numpy(v) for k, v in arrays.items() if k in known}
        except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, AttributeError, TypeError):
            raise InputError(
                "a file that Prediction.to_npz wrote", f"{path}, which is none, or damaged"
            ) from None
        if "samples" not in tensors:
            raise InputError("an npz file with an array 'samples'", sorted(arrays))
        return cls(
            **tensors,
            class_names=None if names is None else tuple(names.tolist()),
            calibrated=None if calibrated is None else str(calibrated),
        )


@contextmanager
def _replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """A file that takes its place when it is complete, or not at all."""
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("wb") as file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
