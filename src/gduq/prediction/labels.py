"""`LabelPrediction`: K hypotheses about T yes/no labels per row, and their mixture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.prediction import checks
from gduq.prediction.base import Discrete
from gduq.prediction.result import Prediction

__all__ = ["LabelPrediction"]


@dataclass(frozen=True, eq=False, repr=False)
class LabelPrediction(Discrete):
    r"""K hypotheses about T yes/no labels of m rows, and what follows from their mixture.

    Labels are looked at one by one. With logits :math:`s_k` of hypothesis k and weights
    :math:`w_k`, each of these is ``[m, T]``:

    ============== ================================================================
    ``probs``      :math:`\bar p = \sum_k w_k \sigma(s_k)`, of "yes"
    ``label``      whether ``probs`` is above the label's threshold
    ``confidence`` the probability of the likelier answer
    ``entropy``    of the yes/no distribution, equal to ``aleatoric`` + ``epistemic``
    ``aleatoric``  the entropy the hypotheses agree on
    ``epistemic``  mutual information of label and hypothesis
    ============== ================================================================

    Args:
        samples: Logits ``[K, m, T]``.
        target: 0, 1 or NaN (unknown) ``[m, T]``, or ``None``.
        names: One name per label, used as column names.
        thresholds: Above which probability a label counts as "yes" ``[T]``; default one half.
            `gduq.metrics.label_thresholds` finds them.

    Example:
        >>> p = LabelPrediction(torch.tensor([[[2.0, -1.0]]]), torch.tensor([[1.0, float("nan")]]))
        >>> p.probs.round(decimals=3), p.label
        (tensor([[0.8810, 0.2690]]), tensor([[ True, False]]))
    """

    kind: ClassVar[str] = "labels"

    names: tuple[str, ...] | None = None
    thresholds: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("names", checks.as_names(self.names, self.num_labels, "names of labels"))
        if self.thresholds is not None:
            given = torch.as_tensor(self.thresholds).detach().to(self.samples)
            if given.shape != (self.num_labels,) or not bool(((given >= 0) & (given <= 1)).all()):
                raise InputError(
                    f"{self.num_labels} thresholds from 0 to 1, one per label", given.tolist()
                )
            self._set("thresholds", given)

    def _checked_samples(self, samples: Tensor) -> Tensor:
        return checks.as_outputs(samples, "logits of shape [K, m, T]")

    def _checked_target(self, target: Tensor, rows: int) -> Tensor:
        if target.dim() == 1 and self.num_labels == 1:
            target = target.unsqueeze(1)
        if target.shape != (rows, self.num_labels):
            wanted = [rows, self.num_labels]
            raise InputError(f"labels of shape {wanted}, one per logit", list(target.shape))
        values = target.to(self.samples.dtype)
        if not bool(((values == 0) | (values == 1) | values.isnan()).all()):
            raise InputError("labels 0, 1 or NaN (unknown)", "other numbers")
        return values

    @property
    def size(self) -> str:
        return f"{self.num_labels} label{'s' * (self.num_labels != 1)}"

    @property
    def num_labels(self) -> int:
        """T, the number of labels per row."""
        return self.samples.size(2)

    @property
    def known(self) -> Tensor:
        """Which labels are known ``[m, T]``; raises without targets."""
        return ~self.require_target().isnan()

    @cached_property
    def _choices(self) -> Tensor:
        """Logits of "no" and "yes" ``[K, m T, 2]``: every label as a row of two classes."""
        flat = self.samples.flatten(1)
        return torch.stack([torch.zeros_like(flat), flat], dim=-1)

    def _out(self, values: Tensor) -> Tensor:
        return values.view(self.samples.shape[1:]).to(self.samples.dtype)

    @cached_property
    def probs(self) -> Tensor:
        return self._out(self._logs[:, 1].exp())

    @cached_property
    def label(self) -> Tensor:
        if self.thresholds is not None:
            return self.probs > self.thresholds
        no, yes = self._logs.to(self.samples.dtype).unbind(dim=1)  # as `column` compares them
        return (yes > no).view(len(self), self.num_labels)

    def with_thresholds(self, thresholds: Tensor | Sequence[float] | None) -> LabelPrediction:
        """The same probabilities with other thresholds ``[T]``; ``None``: one half for all."""
        given = None if thresholds is None else torch.as_tensor(thresholds)
        return replace(self, thresholds=given)

    def column(self, t: int) -> Prediction:
        """Label number ``t`` with its threshold as a task of two classes; of the rows whose label
        is known, where there are targets."""
        rows = slice(None) if self.target is None else self.known[:, t]
        name = str(t) if self.names is None else self.names[t]
        return Prediction(
            self.samples[:, rows, t : t + 1],
            None if self.target is None else self.target[rows, t].long(),
            (f"no {name}", name),
            threshold=None if self.thresholds is None else float(self.thresholds[t]),
            features=None if self.features is None else self.features[rows],
            weights=self.weights,
            novelty=None if self.novelty is None else self.novelty[rows],
            calibrated=self.calibrated,
        )

    def _columns(self) -> dict[str, Tensor]:
        columns: dict[str, Tensor] = {}
        for t, name in enumerate(self.names or range(self.num_labels)):
            columns |= {
                f"prob_{name}": self.probs[:, t],
                f"label_{name}": self.label[:, t].long(),
                f"aleatoric_{name}": self.aleatoric[:, t],
                f"epistemic_{name}": self.epistemic[:, t],
            }
            if self.target is not None:
                columns[f"target_{name}"] = self.target[:, t]
        return columns | ({} if self.novelty is None else {"novelty": self.novelty})
