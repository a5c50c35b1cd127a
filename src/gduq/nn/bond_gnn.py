"""`BondGNN`: the default network for molecules, which reads atoms and bonds as categories."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

from gduq._torch import exporting
from gduq.errors import InputError
from gduq.graphs import num_graphs, row_batch
from gduq.nn.gnn_settings import Config, check_sizes
from gduq.nn.layers import two_layers

__all__ = ["BondGNN"]

# Values of each column that PyG's ``from_smiles`` makes: of atoms the element, chirality, degree,
# charge, hydrogens, radical electrons, hybridisation, aromatic, in a ring; of bonds the kind,
# stereo, conjugated.
ATOMS = (119, 9, 11, 12, 9, 5, 8, 2, 2)
BONDS = (22, 6, 2)
_SPREAD = 0.3  # of the embeddings at the start; nine of them make a feature of about 1
_TYPICAL = 10.0  # atoms: sums over a molecule are divided by it


class BondGNN(nn.Module):
    """A network for molecules as PyG's ``from_smiles`` (or a table of SMILES) gives them.

    The nine columns of ``x`` and the three of ``edge_attr`` are categories: each has an embedding,
    and those of an atom or bond are added. A layer is a graph isomorphism network with bonds
    (GINE): it adds to an atom's features what an MLP makes of them and of its neighbours, each
    joined with its bond. A molecule is the sum of its atoms, as many properties grow with it,
    beside their mean; a head of two layers reads both. On small tables a learning rate of 3e-3
    that falls (``gduq.fit(..., lr=3e-3, milestones=(30, 42), gamma=0.3)`` of 50 epochs) served it
    better than 1e-3.

    Args:
        out_channels: Outputs per molecule: 1 for a value or a yes/no answer, one per target, or
            one per class.
        hidden_channels: Width of the features of an atom.
        num_layers: How often atoms hear from their neighbours.
        dropout: Probability, in every layer and in the head.

    Example:
        >>> graph = Data(x=torch.zeros(3, 9), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> graph.edge_attr = torch.zeros(2, 3)
        >>> BondGNN(out_channels=2)(graph).shape
        torch.Size([1, 2])
    """

    def __init__(
        self,
        out_channels: int = 1,
        hidden_channels: int = 96,
        num_layers: int = 3,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.config: Config = {k: v for k, v in locals().items() if k not in ("self", "__class__")}
        check_sizes(self.config)
        self.atoms = _Categories(ATOMS, hidden_channels)
        self.layers = nn.ModuleList(_BondLayer(hidden_channels, dropout) for _ in range(num_layers))
        self.head = nn.Sequential(
            nn.Linear(2 * hidden_channels, hidden_channels),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden_channels, out_channels),
        )

    def forward(self, graph: Data) -> Tensor:
        """Outputs ``[G, out_channels]``, one row per molecule."""
        h = self.atoms(_columns(graph, "x", len(ATOMS)))
        bonds = _columns(graph, "edge_attr", len(BONDS))
        for layer in self.layers:
            h = layer(h, graph.edge_index, bonds)
        batch, graphs = row_batch(graph, "node", h.size(0)), num_graphs(graph)
        total = h.new_zeros(graphs, h.size(1)).index_add(0, batch, h)
        size = h.new_zeros(graphs, 1).index_add(0, batch, h.new_ones(h.size(0), 1)).clamp(min=1)
        out: Tensor = self.head(torch.cat([total / _TYPICAL, total / size], dim=1))
        return out


class _BondLayer(MessagePassing):  # type: ignore[misc]
    """One step: an atom reads its neighbours through their bonds and adds what it makes of them."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__(aggr="add")
        self.in_channels = channels
        self.bonds = _Categories(BONDS, channels)
        self.mlp = two_layers(channels, dropout)

    def forward(self, x: Tensor, edge_index: Tensor, bonds: Tensor) -> Tensor:
        messages = self.propagate(edge_index, x=x, bond=self.bonds(bonds))
        out: Tensor = x + self.mlp(x + messages)
        return out

    def message(self, x_j: Tensor, bond: Tensor) -> Tensor:
        return (x_j + bond).relu()


class _Categories(nn.Module):
    """The sum of one embedding per column of category numbers; unknown ones count as the last."""

    last: Tensor
    start: Tensor

    def __init__(self, sizes: Sequence[int], channels: int) -> None:
        super().__init__()
        counts = torch.tensor(sizes)
        self.register_buffer("last", counts - 1, persistent=False)
        self.register_buffer("start", counts.cumsum(0) - counts, persistent=False)
        self.weight = nn.Parameter(torch.empty(sum(sizes), channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the embeddings anew."""
        nn.init.normal_(self.weight, std=_SPREAD)

    def forward(self, x: Tensor) -> Tensor:
        numbers = torch.minimum(x.round().long().clamp(min=0), self.last) + self.start
        if exporting():  # bags are faster, but not everywhere known
            return nn.functional.embedding(numbers, self.weight).sum(dim=1)
        return nn.functional.embedding_bag(numbers, self.weight, mode="sum")


def _columns(graph: Data, name: str, width: int) -> Tensor:
    """Category numbers of a graph, whole or as floats ``[n, width]``."""
    value = graph.get(name)
    if not isinstance(value, Tensor) or value.dim() != 2 or value.size(1) != width:
        wanted = f"{name} of {width} columns, as torch_geometric.utils.from_smiles makes it"
        got = list(value.shape) if isinstance(value, Tensor) else "none"
        do = "Read molecules with gduq.data.read, or use gduq.nn.GNN for other graphs."
        raise InputError(wanted, got, do)
    return value
