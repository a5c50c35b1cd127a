"""A whole predictor as one function of tensors: from the parts of a graph to all it says of it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gduq.bundle.export_symbols import knowing_graphs
from gduq.errors import InputError
from gduq.prediction.predictor import Predictor
from gduq.targets import Classes, Labels, Target, Values

__all__ = ["Program", "facts", "ready_to_trace"]


class Program(nn.Module):
    """A predictor that takes tensors and gives tensors, by name.

    Args:
        model: A fitted model; see `ready_to_trace`.
        names: The attributes of a graph that it is called with. ``sizes`` is the number of nodes
            of each graph ``[G]``; without it all nodes are of one graph.
        words: Attributes of the graph that are no tensors.
    """

    def __init__(self, model: Predictor, names: Collection[str], words: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.words = model, dict(words)

        def forward(**tensors: Tensor) -> dict[str, Tensor]:
            return self._answer(tensors)

        kind = inspect.Parameter.KEYWORD_ONLY  # torch names the inputs of a program by these
        given = [inspect.Parameter(name, kind) for name in names]
        forward.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
        self.__dict__["forward"] = forward

    def _answer(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the model says; see `facts`, and ``novelty`` where the model knows of it."""
        sizes = tensors.get("sizes")
        given = {name: value for name, value in tensors.items() if name != "sizes"}
        graph = Data(**given, **self.words)
        if sizes is None:
            return self._said(graph)
        ends = sizes.cumsum(0)
        graph.ptr = torch.cat([torch.zeros_like(ends[:1]), ends])
        graph.batch = _batch(ends, graph.num_nodes)
        with knowing_graphs(graph.batch, sizes.size(0)):
            return self._said(graph)

    def _said(self, graph: Data) -> dict[str, Tensor]:
        model = self.model
        asks = model.novelty.fitted
        found = model.answer(graph, features=asks)
        outputs = model.calibrated(found.outputs, found.weights)
        assert model.target is not None
        said = facts(model.target, outputs, found.weights)
        if asks and found.features is not None:
            said["novelty"] = model.novelty(found.features)
        return said


def facts(target: Target, outputs: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
    """What the hypotheses of a model and their mixture say, as the kinds of predictions define it.

    Args:
        target: What the outputs mean.
        outputs: Calibrated outputs ``[K, m, O]``.
        weights: Of the hypotheses ``[K]``, or ``None``.

    Returns:
        ``samples`` ``[K, m, ...]`` and ``weights`` ``[K]``; ``aleatoric`` and ``epistemic``;
        ``mean`` and ``std`` of values, or else ``probs``, ``confidence`` and ``entropy``.
    """
    count = outputs.size(0)
    share = outputs.new_full((count,), 1 / count) if weights is None else weights.to(outputs)
    if isinstance(target, Values):
        return _values(target, outputs, share)
    if isinstance(target, Labels):
        pairs = torch.stack([torch.zeros_like(outputs), outputs], dim=-1)
        said = _classes(pairs, share)
        return said | {"samples": outputs, "probs": said["probs"][..., 1]}
    if not isinstance(target, Classes):
        raise InputError("classes, labels or values to export", target.kind)
    one = outputs.size(2) == 1
    return _classes(torch.cat([torch.zeros_like(outputs), outputs], -1) if one else outputs, share)


def _classes(samples: Tensor, share: Tensor) -> dict[str, Tensor]:
    """Of logits ``[K, ..., C]``, in double precision where it counts."""
    wide = (-1,) + (1,) * (samples.dim() - 1)
    logs, weight = samples.double().log_softmax(dim=-1), share.double().view(wide)
    mixed = (logs + weight.log()).logsumexp(dim=0)
    entropy = -(mixed.exp() * mixed).sum(dim=-1)
    apart = (weight.squeeze(-1) * (logs.exp() * (logs - mixed)).sum(dim=-1)).sum(dim=0)
    epistemic = apart.clamp_min(0.0)
    said = {
        "probs": mixed.exp(),
        "confidence": mixed.exp().amax(dim=-1),
        "entropy": entropy,
        "aleatoric": (entropy - epistemic).clamp_min(0.0),
        "epistemic": epistemic,
    }
    return _rounded(samples, share, said)


def _values(target: Values, outputs: Tensor, share: Tensor) -> dict[str, Tensor]:
    """Of means and log-variances ``[K, m, 2T]`` in standardised units; all else in user units."""
    samples = target.in_units(outputs)
    means, logs = samples.double().chunk(2, dim=-1)
    weight = share.double().view(-1, 1, 1)
    apart = means - means[:1]
    centre = (weight * apart).sum(dim=0)
    epistemic = (weight * (apart - centre).square()).sum(dim=0)
    aleatoric = (weight * logs.exp()).sum(dim=0)
    said = {
        "mean": means[0] + centre,
        "std": (aleatoric + epistemic).sqrt(),
        "aleatoric": aleatoric,
        "epistemic": epistemic,
    }
    return _rounded(samples, share, said)


def _rounded(samples: Tensor, share: Tensor, said: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {name: value.to(samples.dtype) for name, value in said.items()}
    return {"samples": samples, "weights": share, **found}


def _batch(ends: Tensor, nodes: int) -> Tensor:
    """The number of the graph of each node: how many graphs have ended before it.

    Example:
        >>> _batch(torch.tensor([2, 3, 6]), 6)
        tensor([0, 0, 1, 2, 2, 2])
    """
    marks = torch.zeros(nodes + 1, dtype=torch.int64, device=ends.device)
    return marks.index_add(0, ends, torch.ones_like(ends)).cumsum(0)[:nodes]


def ready_to_trace(model: Predictor) -> Predictor:
    """A copy without gradients, in evaluation mode, whose flags are plain numbers.

    A program cannot look into a tensor to decide where to go on.
    """
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    for module in copied.modules():
        for name, value in list(module._buffers.items()):
            if value is not None and value.dim() == 0 and not value.is_floating_point():
                del module._buffers[name]
                module.__dict__[name] = value.item()
    return copied
