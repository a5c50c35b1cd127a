"""Shifts that leave whole groups, classes or molecular scaffolds out of training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq.data.splits import Splits
from gduq.errors import InputError, not_installed
from gduq.shifts.cuts import leave_out
from gduq.shifts.domains import DatasetRows, Graphs, Task, attribute, by

__all__ = ["class_out", "group", "scaffold", "scaffold_ranks"]


def group(
    data: Graphs,
    labels: Sequence[Any] | Tensor,
    test: Any,
    val: Any = (),
    *,
    holdout: float = 0.1,
    seed: int = 0,
    task: Task | None = None,
) -> Splits:
    """Leave groups out: train on all others (universities, hospitals, laboratories).

    Args:
        data: The dataset.
        labels: The group of each row.
        test: Groups (or one group) that make ``ood_test``.
        val: Groups that make ``ood_val``. None: the first half of the test rows, by position.
        holdout: Size of ``id_val``, and of ``id_test``, as a share of all rows.
        seed: Of their draw.
        task: See `by`.
    """
    rows = DatasetRows(data, task)
    names, test, val = _plain(labels), _plain(test), _plain(val)
    if len(names) != len(rows):
        raise InputError(f"one group for each of the {len(rows)} rows", len(names))
    known = set(names)
    unknown = [g for g in [*test, *val] if g not in known]
    if unknown or not test:
        raise InputError(f"test groups among {_some(known)}", unknown or "none")
    if both := set(test) & set(val):
        raise InputError("val and test without a common group", f"{_some(both)} in both")
    held, held_val = _positions(names, test), _positions(names, val)
    if not val:
        held_val, held = held[: len(held) // 2], held[len(held) // 2 :]
    pool = _positions(names, known - set(test) - set(val))
    cut = leave_out(pool, held_val, held, int(holdout * len(rows)), seed)
    return rows.splits(
        cut, _codes(names), name="group", description=f"Groups left out for testing: {_some(test)}."
    )


def class_out(
    data: Graphs,
    classes: int | Collection[int] | Tensor,
    *,
    holdout: float = 0.1,
    seed: int = 0,
    task: Task | None = None,
) -> Splits:
    """Leave classes out of training, for OOD detection: both OOD splits hold these classes only.

    Labels keep their numbers, so a network needs as many outputs as before; accuracy on the OOD
    splits means nothing. Values have no classes to leave out: cut those with `target`.
    """
    labels, classes = DatasetRows(data, task).labels(), _plain(classes)
    result = group(data, labels, test=classes, holdout=holdout, seed=seed, task=task)
    return result.with_(
        name="class_out",
        description=f"Classes {_some(classes)} appear in the OOD splits only, for OOD detection.",
    )


def _plain(values: Any) -> list[Any]:
    """Groups as Python values, whatever holds them; a single one counts as a list of one."""
    if isinstance(values, (Tensor, np.ndarray, np.generic)):
        values = values.tolist()
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        values = [values]
    found = [v.item() if isinstance(v, (Tensor, np.generic)) else v for v in values]
    for value in found:
        if not isinstance(value, Hashable):
            raise InputError("groups named by a number or text each", repr(value))
    return found


def _codes(names: list[Any]) -> Tensor:
    """Numbers as they are; anything else by its rank among the distinct values."""
    if all(isinstance(v, (bool, int, float)) for v in names):
        return torch.from_numpy(np.asarray(names))
    rank = {v: i for i, v in enumerate(sorted(set(names), key=str))}
    return torch.tensor([rank[v] for v in names])


def _positions(names: Sequence[Any], wanted: Iterable[Any]) -> Tensor:
    chosen = set(wanted)
    return torch.tensor([i for i, name in enumerate(names) if name in chosen], dtype=torch.long)


def _some(values: Iterable[Any]) -> str:
    names = sorted(str(v) for v in values)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


# -- molecules -------------------------------------------------------------------------------------


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
    texts = [attribute("smiles")(g) for g in data] if smiles is None else list(smiles)
    ranks = scaffold_ranks(texts)
    return by(data, ranks, seed=seed, task="graph", name="scaffold", cuts=cuts, **options)


def scaffold_ranks(smiles: Sequence[str]) -> Tensor:
    """The scaffold of each molecule, found by RDKit, as a number ``[n]``; 0 is the most common."""
    try:
        from rdkit import Chem, rdBase
        from rdkit.Chem.Scaffolds import MurckoScaffold
    except ImportError as error:
        raise not_installed("RDKit for scaffolds", "rdkit") from error
    found: list[str] = []
    scaffold: Any = MurckoScaffold.MurckoScaffoldSmiles
    with rdBase.BlockLogs():  # what it says of hydrogens helps nobody here
        for row, text in enumerate(smiles):
            molecule = Chem.MolFromSmiles(text)
            if molecule is None:
                raise InputError(
                    "SMILES that rdkit can read", f"{text!r} in row {row}", "Drop the row."
                )
            found.append(scaffold(mol=molecule))
    count = Counter(found)
    rank = {text: r for r, text in enumerate(sorted(count, key=lambda t: (-count[t], t)))}
    return torch.tensor([rank[text] for text in found])
