"""`Neighbours`: the labels of the training rows that are nearest."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gduq._checks import check_int
from gduq.errors import InputError, NotFittedError
from gduq.graphs.sparse import take_rows
from gduq.models.head_ensemble import OnTrunk
from gduq.models.predictor import CachedRows, TrainHeads
from gduq.nn.network_specs import AnySize
from gduq.ood.distances import in_blocks, polar
from gduq.prediction import Classes, Labels, Target
from gduq.tracing.call import Call
from gduq.tracing.trunk import Trunk

__all__ = ["Neighbours"]

_SAME = 1e-6  # lengths that differ by less, between directions, are a tie


class Neighbours(AnySize, OnTrunk):
    r"""A trained network with a vote of the nearest training rows in place of its head.

    Where the k training rows nearest to h carry :math:`n_c` votes for class c, and :math:`\pi_c`
    is the share of that class among all rows that are kept (with one row more of every class),
    :math:`p_c(h) = (n_c + \pi_c) / (k + 1)`. A head draws lines that go on for ever; neighbours
    know only what is near: the two err on different rows, which is what a mixture is good for.

    Rows are compared by the direction of what the network makes of them, the cosine. All rows as
    near as the k-th one share in its votes, so the order of training rows does not matter. Nothing
    is trained, and there is one hypothesis: the vote. For classes and labels.

    Args:
        net: A trained network with a head; it is copied.
        k: How many votes there are; as many as there are rows, if these are fewer.
        size: How many training rows to keep at most, chosen at random.
        call: As in `gduq.anchor`.
        seed: For the choice of rows.
        trunk: A trunk to share with other models.
    """

    kind: ClassVar[str] = "Neighbours"
    settings: ClassVar[tuple[str, ...]] = ("k", "size", "seed")

    reference: Tensor
    says: Tensor

    def __init__(
        self,
        net: nn.Module | None,
        k: int = 10,
        size: int = 2048,
        call: Call | None = None,
        seed: int = 0,
        trunk: Trunk | None = None,
    ) -> None:
        self.k, self.size, self.seed = check_int("k", k, 1), check_int("size", size, 1), seed
        super().__init__(net, call, trunk)
        self.register_buffer("reference", torch.empty(0, 0))  # kept rows [R, d]
        self.register_buffer("says", torch.empty(0, 0))  # yes (1) or no per answer, or NaN [R, O]

    def check_target(self) -> None:
        super().check_target()
        if not isinstance(self.target, (Classes, Labels)):
            do = "gduq.LastLayerLaplace and gduq.anchor take values."
            raise InputError(
                "classes or labels, which rows can vote for", self.target and self.target.kind, do
            )

    @torch.no_grad()
    def fit_rows(
        self, train: CachedRows, held: CachedRows, learn: TrainHeads, before: Target | None = None
    ) -> None:
        h, y = train.h, train.y
        generator = torch.Generator().manual_seed(self.seed)
        kept = torch.randperm(h.size(0), generator=generator)[: self.size].to(h.device)
        rows, says = take_rows(h.detach(), kept), y[kept]
        if isinstance(self.target, Classes):
            several = not self.target.one_logit
            says = F.one_hot(says, self.target.num_classes) if several else says.unsqueeze(1)
        precise = torch.promote_types(rows.dtype, torch.float32)
        self.reference, self.says = rows.to(precise), says.to(precise)

    @torch.no_grad()
    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        self.check_ready()
        known = polar(self.reference)[0].T
        found = [self._vote(part, known) for part in in_blocks(h, self.reference)]
        return torch.cat(found).to(self.reference.dtype).unsqueeze(0)

    def _vote(self, h: Tensor, directions: Tensor) -> Tensor:
        """Log-probabilities or logits ``[m, O]``; ``directions`` ``[d, R]`` are of kept rows."""
        says, known = self.says.double().nan_to_num(), (~self.says.isnan()).double()
        k, far = min(self.k, says.size(0)), (1.0 - polar(h)[0] @ directions).clamp_min(0.0)
        last = (2.0 * far.topk(k, dim=1, largest=False).values[:, -1:]).sqrt()
        near = (far <= (last + _SAME * (1.0 + last)).square() / 2.0).double()
        votes = near * (k / near.sum(dim=1, keepdim=True))
        share = (says.sum(dim=0) + 1) / (known.sum(dim=0) + 2)
        if isinstance(self.target, Classes) and not self.target.one_logit:
            return ((votes @ says + share / share.sum()) / (k + 1)).log()
        yes = votes @ says + share
        return (yes / (votes @ known + 1 - yes)).log()

    def check_ready(self) -> None:
        complete = self.says.numel() and self.says.size(0) == self.reference.size(0)
        if self.trunk is None or not complete:
            raise NotFittedError("training rows", "none yet", "Call gduq.fit(model, train, val).")
