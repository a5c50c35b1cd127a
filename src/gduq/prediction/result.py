"""`Prediction`: the only thing that leaves a model."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from gduq.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RESCALING_RULES", "Prediction", "Rule"]

Rule = Literal["paper", "released", "none"]
RESCALING_RULES: tuple[Rule, ...] = ("paper", "released", "none")


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    r"""K hypotheses about m rows, and everything that follows from them.

    With logits :math:`s_k` of hypothesis k and :math:`p_k = \mathrm{softmax}(s_k)`:

    ============== ========= ================================================================
    ``logits``     ``[m,C]`` :math:`\mu = \frac1K \sum_k s_k`
    ``probs``      ``[m,C]`` :math:`\mathrm{softmax}(\mu)`
    ``confidence`` ``[m]``   largest entry of ``probs``
    ``label``      ``[m]``   its index
    ``entropy``    ``[m]``   :math:`H(\mathrm{probs})`
    ``aleatoric``  ``[m]``   :math:`\frac1K\sum_k H(p_k)`, the entropy the hypotheses agree on
    ``epistemic``  ``[m]``   :math:`H(\frac1K\sum_k p_k) - \frac1K\sum_k H(p_k)`, mutual information
    ``spread``     ``[m,C]`` standard deviation of :math:`p_k` over k (divisor K - 1; 0 for K = 1)
    ============== ========= ================================================================

    A one-logit (binary) task is seen as two logits ``(0, z)``; half floats become single.

    Args:
        samples: Logits ``[K, m, C]``; ``[m, C]`` is taken as K = 1.
        target: Integer labels ``[m]``, or ``None`` when unknown.
        class_names: One name a class, used as column names.
        features: Representation at the cut ``[m, d]`` for scores that need one, or ``None``.

    Example:
        >>> p = Prediction(torch.tensor([[[2.0, 0.0]], [[0.0, 0.0]]]), target=torch.tensor([0]))
        >>> p.logits, p.label
        (tensor([[1., 0.]]), tensor([0]))
        >>> round(p.epistemic.item(), 4)
        0.0895
    """

    samples: Tensor
    target: Tensor | None = None
    class_names: tuple[str, ...] | None = None
    features: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        samples = _as_samples(torch.as_tensor(self.samples).detach())
        object.__setattr__(self, "samples", samples)
        if self.target is not None:
            object.__setattr__(self, "target", _as_labels(self.target, *samples.shape[1:]))
        if self.class_names is not None:
            names = tuple(str(name) for name in self.class_names)
            if len(names) != samples.size(2) or len(set(names)) != len(names):
                raise InputError(f"{samples.size(2)} different class names", list(names))
            object.__setattr__(self, "class_names", names)
        if self.features is not None:
            features = _precise(torch.as_tensor(self.features).detach())
            if features.dim() != 2 or features.size(0) != samples.size(1):
                raise InputError(f"features of shape [{len(self)}, d]", list(features.shape))
            object.__setattr__(self, "features", features)

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
    def logits(self) -> Tensor:
        return self.samples.mean(dim=0)

    @cached_property
    def probs(self) -> Tensor:
        return self.logits.softmax(dim=-1)

    @cached_property
    def confidence(self) -> Tensor:
        return self.probs.amax(dim=-1)

    @cached_property
    def label(self) -> Tensor:
        return self.logits.argmax(dim=-1)

    @cached_property
    def entropy(self) -> Tensor:
        return _entropy(self.probs)

    @cached_property
    def _sample_probs(self) -> Tensor:
        return self.samples.softmax(dim=-1)

    @cached_property
    def aleatoric(self) -> Tensor:
        return _entropy(self._sample_probs).mean(dim=0)

    @cached_property
    def epistemic(self) -> Tensor:
        total = _entropy(self._sample_probs.mean(dim=0))
        return (total - self.aleatoric).clamp_min(0.0)

    @cached_property
    def spread(self) -> Tensor:
        return _std(self._sample_probs)

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

    def rescaled(self, rule: Rule) -> Prediction:
        r"""Logits pulled towards zero where the hypotheses disagree.

        * ``"paper"``: :math:`\mu \odot (1 - \sigma)`, with :math:`\sigma` = ``spread``.
        * ``"released"``: :math:`\mu / (1 + e^{\bar\sigma})`, where :math:`\bar\sigma` is the mean
          over classes (the one logit of a binary task) of the deviation of element-wise sigmoids.
          The divisor is at least 2 even when all hypotheses agree: compare with temperature 2.
        * ``"none"``: :math:`\mu`.

        Every sample is scaled by the same factor, so the sample axis stays.
        """
        if rule == "none" or (rule == "released" and self.num_samples == 1):
            return self
        if rule == "paper":
            return replace(self, samples=self.samples * (1.0 - self.spread))
        if rule == "released":
            one_logit = self.num_classes == 2 and not self.samples[..., 0].any()
            own = self.samples[..., 1:] if one_logit else self.samples
            deviation = _std(own.sigmoid()).mean(dim=-1, keepdim=True)
            return replace(self, samples=self.samples / (1.0 + deviation.exp()))
        raise InputError(f"a rule from {', '.join(RESCALING_RULES)}", repr(rule))

    def with_samples(self, samples: Tensor) -> Prediction:
        """The same rows with other logits ``[K, m, C]``."""
        return replace(self, samples=samples)

    def __getitem__(self, rows: Tensor | slice | Sequence[int] | int) -> Prediction:
        """Some rows, by mask, slice, indices or number; always a `Prediction`, of one row too."""
        index = rows if isinstance(rows, slice) else torch.as_tensor(rows)
        if isinstance(index, Tensor):
            index = torch.atleast_1d(index if index.numel() else index.long())
        return self._changed(self.samples[:, index], lambda rows: rows[index])

    def _changed(self, samples: Tensor, change: Callable[[Tensor], Tensor]) -> Prediction:
        target, features = self.target, self.features
        return replace(
            self,
            samples=samples,
            target=None if target is None else change(target),
            features=None if features is None else change(features),
        )

    @staticmethod
    def concatenate(parts: Sequence[Prediction]) -> Prediction:
        """The rows of all parts in turn; targets and features stay if every part has them."""
        if not parts:
            raise InputError("at least one prediction", "none")
        shapes = sorted({(p.num_samples, p.num_classes) for p in parts})
        if len(shapes) > 1:
            raise InputError("parts with equal K and C", f"(K, C) of {shapes}")
        if len(names := {p.class_names for p in parts}) > 1:
            raise InputError("parts with equal class names", names)
        targets = [p.target for p in parts if p.target is not None]
        features = [p.features for p in parts if p.features is not None]
        return Prediction(
            samples=torch.cat([p.samples for p in parts], dim=1),
            target=torch.cat(targets) if len(targets) == len(parts) else None,
            class_names=parts[0].class_names,
            features=torch.cat(features) if len(features) == len(parts) else None,
        )

    def to(self, device: torch.device | str) -> Prediction:
        """The same prediction on another device."""
        return self._changed(self.samples.to(device), lambda rows: rows.to(device))

    # -- out -----------------------------------------------------------------------------------

    def to_dataframe(self) -> pd.DataFrame:
        """One row a labelled row; ``spread`` is averaged over classes."""
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
        """Write the samples, targets and class names; `from_npz` reads them back."""
        arrays = {"samples": self.samples.cpu().numpy()}
        if self.target is not None:
            arrays["target"] = self.target.cpu().numpy()
        if self.class_names is not None:
            arrays["class_names"] = np.asarray(self.class_names)
        if self.features is not None:
            arrays["features"] = self.features.cpu().numpy()
        with _replacing(path) as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def from_npz(cls, path: str | Path) -> Prediction:
        """Read what `to_npz` wrote; nothing is unpickled."""
        try:
            with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                arrays = dict(file)
            names = arrays.pop("class_names", None)
            tensors = {k: torch.from_numpy(arrays[k]) for k in arrays if k in cls.__annotations__}
        except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, AttributeError, TypeError):
            raise InputError(
                "a file that Prediction.to_npz wrote", f"{path}, which is none, or damaged"
            ) from None
        if "samples" not in tensors:
            raise InputError("an npz file with an array 'samples'", sorted(arrays))
        return cls(**tensors, class_names=None if names is None else tuple(names.tolist()))


def _entropy(probs: Tensor) -> Tensor:
    return -torch.xlogy(probs, probs).sum(dim=-1)


def _std(values: Tensor) -> Tensor:
    """Deviation over the first axis, divisor K - 1; exactly 0 for K = 1 or equal values."""
    if values.size(0) == 1 or values.numel() == 0:
        return torch.zeros_like(values[0])
    return (values - values[:1]).std(dim=0)  # measured from the first: equal values give 0


def _as_samples(samples: Tensor) -> Tensor:
    """Logits ``[K, m, C]`` in single or double precision, with C >= 2."""
    shape = list(samples.shape)
    if samples.dim() == 2:
        samples = samples.unsqueeze(0)
    if samples.dim() != 3 or 0 in (samples.size(0), samples.size(2)):
        raise InputError("logits of shape [K, m, C] or [m, C] with K, C >= 1", shape)
    if not samples.is_floating_point():
        raise InputError("floating-point logits", samples.dtype, "Convert with .float().")
    if not torch.isfinite(samples).all():
        raise InputError(
            "finite logits",
            f"{int((~torch.isfinite(samples)).sum())} NaN or infinite values",
            "Check the learning rate and the input features.",
        )
    if samples.size(2) == 1:
        samples = torch.cat([torch.zeros_like(samples), samples], dim=2)
    return _precise(samples)


def _precise(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _as_labels(target: Tensor, rows: int, classes: int) -> Tensor:
    target = torch.as_tensor(target)
    if target.dim() == 2 and target.size(1) == 1:
        target = target.squeeze(1)
    if target.shape != (rows,):
        raise InputError(f"targets of shape [{rows}], one a row", list(target.shape))
    labels = target.long()
    if not torch.equal(labels.to(target.dtype), target):
        raise InputError("integer class labels", f"{target.dtype} values with fractions or NaN")
    if rows and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise InputError(
            f"labels from 0 to {classes - 1}",
            f"{int(labels.min())} to {int(labels.max())}",
            "Mark the rows that have labels with gduq.data.View(data, rows), or delete y.",
        )
    return labels


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
