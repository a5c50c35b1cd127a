"""`Prediction`: the only thing that leaves a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from gduq.errors import InputError
from gduq.prediction import checks, mixture
from gduq.prediction.base import Discrete

__all__ = ["RESCALING_RULES", "Prediction", "Rule"]

Rule = Literal["paper", "released"]
RESCALING_RULES: tuple[Rule, ...] = ("paper", "released")


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(Discrete):
    r"""K hypotheses about m rows, and everything that follows from their mixture.

    With logits :math:`s_k` of hypothesis k, :math:`p_k = \mathrm{softmax}(s_k)` and weights
    :math:`w_k` that sum to 1:

    ============== ========= ================================================================
    ``probs``      ``[m,C]`` :math:`\bar p = \sum_k w_k p_k`, the mixture
    ``log_probs``  ``[m,C]`` its logarithm, which does not underflow
    ``confidence`` ``[m]``   largest entry of ``probs``
    ``label``      ``[m]``   its index, unless ``threshold`` decides
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
        threshold: Above which probability the second of two classes is the answer; ``None``: the
            most likely class is.
        features, weights, novelty, calibrated: As in `Hypotheses`.

    Example:
        >>> import torch
        >>> p = Prediction(torch.tensor([[[9.0, 0.0]], [[0.0, 0.0]]]), target=torch.tensor([0]))
        >>> p.probs, p.label
        (tensor([[0.7499, 0.2501]]), tensor([0]))
        >>> round(p.epistemic.item(), 4), round((p.entropy - p.aleatoric).item(), 4)
        (0.2152, 0.2152)
    """

    kind: ClassVar[str] = "classes"

    class_names: tuple[str, ...] | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None:
            if self.num_classes != 2 or not 0 <= float(self.threshold) <= 1:
                got = f"{float(self.threshold):g} with {self.num_classes} classes"
                raise InputError("a threshold from 0 to 1 with two classes", got)
            self._set("threshold", float(self.threshold))
        names = checks.as_names(self.class_names, self.num_classes, "class names")
        self._set("class_names", names)

    def _checked_samples(self, samples: Tensor) -> Tensor:
        return checks.as_samples(samples)

    def _checked_target(self, target: Tensor, rows: int) -> Tensor:
        return checks.as_labels(target, rows, self.num_classes)

    @property
    def size(self) -> str:
        return f"{self.num_classes} classes"

    @property
    def num_classes(self) -> int:
        """C, the number of classes (2 for a one-logit task)."""
        return self.samples.size(2)

    # -- what follows from the samples ---------------------------------------------------------

    @property
    def _choices(self) -> Tensor:
        return self.samples

    def _out(self, values: Tensor) -> Tensor:
        return values.to(self.samples.dtype)

    @cached_property
    def log_probs(self) -> Tensor:
        return self._out(self._logs)

    @cached_property
    def probs(self) -> Tensor:
        return self._out(self._logs.exp())

    @cached_property
    def label(self) -> Tensor:
        if self.threshold is not None:
            return (self.probs[:, 1] > self.threshold).long()
        return self.log_probs.argmax(dim=-1)  # what metrics read, so they never differ

    @cached_property
    def spread(self) -> Tensor:
        return mixture.deviation(self.samples.softmax(dim=-1), self.weights)

    @cached_property
    def logits(self) -> Tensor:
        return mixture.weighted_mean(self.samples, self.weights)

    @property
    def correct(self) -> Tensor:
        """Whether each row's label is right ``[m]``; raises without targets."""
        return self.label == self.require_target()

    # -- new predictions from this one ---------------------------------------------------------

    def mean_logits(self) -> Prediction:
        r"""The paper's average: one hypothesis, :math:`\mu`.

        The temperature was fitted to the mixture, not to it: ``calibrated`` is ``None``.

        Example:
            >>> import torch
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

    def _columns(self) -> dict[str, Any]:
        names = self.class_names or tuple(str(c) for c in range(self.num_classes))
        columns: dict[str, Any] = {"label": self.label}
        if self.class_names is not None:
            columns["class"] = np.asarray(names, dtype=object)[self.label.cpu().numpy()]
        for name in ("confidence", "entropy", "aleatoric", "epistemic"):
            columns[name] = getattr(self, name)
        columns["spread"] = self.spread.mean(dim=-1)
        if self.novelty is not None:
            columns["novelty"] = self.novelty
        columns |= {f"prob_{name}": self.probs[:, c] for c, name in enumerate(names)}
        return columns | ({} if self.target is None else {"target": self.target})
