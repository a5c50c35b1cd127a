"""Shifts by molecular scaffold (Bemis-Murcko), found by RDKit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq.data.splits import Splits
from gduq.errors import InputError
from gduq.shifts.dataset import attribute
from gduq.shifts.domains import by

__all__ = ["scaffold", "scaffold_ranks"]


def scaffold(
    data: Sequence[Data],
    *,
    cuts: tuple[float, float] = (0.6, 0.8),
    seed: int = 0,
    smiles: Sequence[str] | None = None,
    **options: Any,
) -> Splits:
    """By molecular scaffold (Bemis-Murcko): train on the common ones, test on the rare.

    Args:
        data: Graphs with an attribute ``smiles``, as PyG's ``from_smiles`` makes them.
        cuts: Shares of the rows after which ``ood_val`` and ``ood_test`` begin.
        seed: Of the draw of ``id_val`` and ``id_test``.
        smiles: The molecules, where the graphs do not carry them.
        options: Further arguments of `gduq.shifts.covariate`.
    """
    texts = list(smiles) if smiles is not None else [attribute("smiles")(g) for g in data]
    ranks = scaffold_ranks(texts)
    return by(data, ranks, seed=seed, task="graph", name="scaffold", cuts=cuts, **options)


def scaffold_ranks(smiles: Sequence[str]) -> Tensor:
    """The scaffold of each molecule as a number ``[n]``; 0 is the most common one."""
    scaffolds = [_murcko(text, row) for row, text in enumerate(smiles)]
    count = Counter(scaffolds)
    rank = {text: r for r, text in enumerate(sorted(count, key=lambda t: (-count[t], t)))}
    return torch.tensor([rank[text] for text in scaffolds])


def _murcko(smiles: str, row: int) -> str:
    try:
        from rdkit import Chem
        from rdkit.Chem.Scaffolds import MurckoScaffold
    except ImportError as error:
        raise InputError(
            "rdkit for scaffolds", "no such package", "pip install 'gduq[molecules]'."
        ) from error
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None:
        raise InputError("SMILES that rdkit can read", f"{smiles!r} in row {row}", "Drop the row.")
    return str(MurckoScaffold.MurckoScaffoldSmiles(mol=molecule))  # type: ignore[no-untyped-call]
