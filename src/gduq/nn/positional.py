"""Positional encodings: Laplacian eigenvectors, and edge gates that see only their distances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gduq.errors import InputError
from gduq.nn.neighbourhoods import Structure

__all__ = ["EdgeGate", "encoding", "with_random_signs"]


def encoding(graph: Any, channels: int) -> Tensor:
    """The encoding stored on a graph as ``pe``, ``[n, channels]``."""
    pe = graph.get("pe")
    if pe is None or tuple(pe.shape) != (graph.num_nodes, channels):
        raise InputError(
            f"graphs with an encoding pe of shape [{graph.num_nodes}, {channels}]",
            "none" if pe is None else list(pe.shape),
            f"Apply torch_geometric.transforms.AddLaplacianEigenvectorPE({channels}, 'pe').",
        )
    if not torch.compiler.is_compiling() and not bool(torch.isfinite(pe).all()):
        raise InputError("finite encodings pe", "NaN or infinite values")
    return pe  # type: ignore[no-any-return]


def with_random_signs(pe: Tensor, structure: Structure) -> Tensor:
    """Flip each eigenvector of each graph with probability 1/2: its sign means nothing."""
    signs = torch.randint(0, 2, (structure.graphs, pe.size(1)), device=pe.device) * 2 - 1
    return pe * signs[structure.batch]


class EdgeGate(nn.Module):
    r"""A weight in (0, 1) for each edge from the distance of its ends' encodings.

    .. math::
        w_{uv} = \mathrm{sigmoid}\bigl(\mathrm{MLP}(\lVert p_u - p_v \rVert^2)\bigr)

    Distances do not change when eigenvectors flip sign or turn within an eigenspace, so the layer
    is equivariant and stable in the sense of PEG (Wang et al., ICLR 2022).

    Args:
        hidden: Width of the MLP.
    """

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, pe: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        distance = (pe[source] - pe[target]).square().sum(dim=-1, keepdim=True)
        return self.mlp(distance).sigmoid().squeeze(-1)  # type: ignore[no-any-return]
