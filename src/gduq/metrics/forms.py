"""Our metrics of classes on many resamples at once: ``[R]`` each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from gduq.metrics import binned, kernel, labels, scores, selective
from gduq.metrics.draws import Draws
from gduq.metrics.label_rows import LabelRows
from gduq.metrics.rows import Rows

__all__ = ["BATCHED", "Block", "LabelBlock", "label_form"]

Form = Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class Block(Draws):
    """R resamples of m rows about classes."""

    rows: Rows
    counts: Tensor
    _class_sums: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)

    @cached_property
    def by_confidence(self) -> tuple[Tensor, Tensor]:
        """Confidence, ascending, and tie-averaged correctness in each resample, ``[R, m]``."""
        return self.by(self.rows.confidence, self.rows.correct)

    @property
    def losses(self) -> Tensor:
        rows = self.rows
        if rows.decided is None:
            return 1.0 - self.by_confidence[1].flip(-1)
        return 1.0 - self.by(rows.confidence, rows.right)[1].flip(-1)

    @property
    def best_aurc(self) -> Tensor:
        rows = len(self.rows)
        return selective.best_aurc((self.risks[:, -1] * rows).round(), rows)

    def bin_sums(self, probs: Tensor, hits: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
        """As `binned.bin_sums`, ``[R, B]`` each."""
        cell = torch.nn.functional.one_hot(binned.bin_index(probs, bins), bins).double()
        sums = [self.counts @ (cell * v.double().unsqueeze(1)) for v in (probs, hits)]
        return self.counts @ cell, sums[0], sums[1]

    def class_sums(self, bins: int) -> tuple[Tensor, Tensor, Tensor]:
        """As `binned.class_sums`, ``[R, C, B]`` each; kept, since several metrics want them."""
        if bins not in self._class_sums:
            rows = self.rows
            found = [
                self.bin_sums(rows.probs[:, c], rows.labels == c, bins)
                for c in range(rows.num_classes)
            ]
            count, prob, hit = (torch.stack(part, dim=1) for part in zip(*found, strict=True))
            self._class_sums[bins] = count, prob, hit
        return self._class_sums[bins]


def _mean_of(values: Callable[[Rows], Tensor]) -> Form:
    return lambda block: block.mean(values(block.rows))


def _ece(
    block: Block,
    bins: int = 15,
    norm: str = "l1",
    binning: str = "width",
    debias: bool = False,
    strict: bool = True,
) -> Tensor:
    if binning == "mass":
        sums = binned.mass_sums(*block.by_confidence, bins)
    else:
        sums = block.bin_sums(block.rows.confidence, block.rows.correct, bins)
    return binned.bin_error(*sums, norm, debias)


def _adaptive_ece(block: Block, **options: Any) -> Tensor:
    return _ece(block, binning="mass", **options)


def _classwise_ece(
    block: Block, bins: int = 15, norm: str = "l1", debias: bool = False, strict: bool = True
) -> Tensor:
    return binned.bin_error(*block.class_sums(bins), norm, debias).mean(dim=-1)


def _brier_term(
    block: Block, term: str = "reliability", bins: int = 15, strict: bool = True
) -> Tensor:
    brier = block.mean(scores.row_brier(block.rows))
    return scores.terms(*block.class_sums(bins), brier)[term]


def _smooth_ece(block: Block, bandwidth: float | None = None) -> Tensor:
    rows, counts = block.rows, block.counts
    cell, residual = kernel.cell_index(rows.confidence), rows.correct - rows.confidence.double()
    used, place = torch.unique(cell, return_inverse=True)
    sums = counts.new_zeros(len(counts), int(used.numel()))
    sums.index_add_(1, place, counts * (residual / len(rows)))
    cells = counts.new_zeros(len(counts), kernel.CELLS)
    return kernel.smooth_error(cells.index_copy_(1, used, sums), bandwidth)


def _counted(form: Callable[[Rows, Tensor], Tensor]) -> Form:
    return lambda block: form(block.rows, block.counts)


BATCHED: dict[Callable[..., float], Form] = {
    scores.accuracy: _mean_of(lambda rows: rows.right),
    scores.nll: _mean_of(scores.row_nll),
    scores.brier: _mean_of(scores.row_brier),
    scores.brier_term: _brier_term,
    scores.sharpness: _mean_of(scores.row_sharpness),
    labels.balanced_accuracy: _counted(labels.recalls),
    labels.roc_auc: _counted(labels.areas),
    labels.average_precision: _counted(labels.precisions),
    binned.ece: _ece,
    binned.adaptive_ece: _adaptive_ece,
    binned.classwise_ece: _classwise_ece,
    kernel.smooth_ece: _smooth_ece,
    selective.aurc: lambda block: block.aurc,
    selective.excess_aurc: lambda block: block.aurc - block.best_aurc,
}

# Right for resamples of different sizes too, which the known rows of a label are.
_ANY_SIZE = {
    scores.accuracy,
    scores.nll,
    scores.brier,
    scores.sharpness,
    labels.balanced_accuracy,
    labels.roc_auc,
    labels.average_precision,
    binned.ece,
}


@dataclass(frozen=True, eq=False)
class LabelBlock:
    """R resamples of m rows about labels; per label those among them whose label is known."""

    rows: LabelRows
    counts: Tensor

    def macro(self, form: Form) -> Tensor:
        """The mean over the labels for which a form is defined ``[R]``."""
        parts, counts = self.rows.parts.values(), self.counts.to(self.rows.source.samples.device)
        found = [form(Block(rows, counts[:, known])) for known, rows in parts]
        return torch.stack(found).nanmean(dim=0)


def label_form(metric: Callable[..., float], options: dict[str, Any]) -> Form | None:
    """The mean over labels of one of our metrics, or ``None`` where resamples go one by one."""
    if metric not in _ANY_SIZE or options.get("binning") == "mass":
        return None
    return lambda block: block.macro(partial(BATCHED[metric], **options))
