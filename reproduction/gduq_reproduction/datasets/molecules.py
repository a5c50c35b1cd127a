"""Five public tables of molecules by name: three with a measured value, two with a yes/no answer.

They are read by `gduq.data.table`, as anybody's own table would be, and cut by scaffold or by size.
The raw tables are those of MoleculeNet, in the folders of PyG's ``MoleculeNet``; nothing is
downloaded.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gduq import shifts
from gduq.data.cache import cached, digest
from gduq.data.packed import Packed
from gduq.data.rejected_rows import RejectLog
from gduq.data.splits import Splits
from gduq.data.table import MoleculeTable
from gduq.shifts.groups import scaffold_ranks
from gduq.whole import one_of
from gduq_reproduction.datasets.raw import raw_file

__all__ = ["MOLECULES", "load_molecules"]

VERSION = 1
_CUTS = {
    "scaffold": "Training on the common scaffolds, testing on the rare.",
    "size": "Training on molecules of at most the median number of atoms, testing from the 0.9 "
    "quantile on; ood_val holds the sizes between.",
}


@dataclass(frozen=True)
class _Source:
    """One raw table: its file, its columns, and what its target means."""

    title: str
    file: str
    target: str
    smiles: str = "smiles"
    unit: str = ""
    class_names: tuple[str, ...] = ()


MOLECULES = {
    "esol": _Source(
        "ESOL: solubility in water, measured",
        "esol/raw/delaney-processed.csv",
        "measured log solubility in mols per litre",
        unit="log mol/L",
    ),
    "freesolv": _Source(
        "FreeSolv: free energy of hydration, measured",
        "freesolv/raw/SAMPL.csv",
        "expt",
        unit="kcal/mol",
    ),
    "lipo": _Source(
        "Lipophilicity: octanol/water distribution at pH 7.4, measured",
        "lipo/raw/Lipophilicity.csv",
        "exp",
        unit="log D",
    ),
    "bbbp": _Source(
        "BBBP: whether a compound passes the blood-brain barrier",
        "bbbp/raw/BBBP.csv",
        "BBBP",
        class_names=("does not pass", "passes"),
    ),
    "bace": _Source(
        "BACE: whether a compound inhibits human beta-secretase 1",
        "bace/raw/bace.csv",
        "Class",
        "mol",
        class_names=("inactive", "active"),
    ),
}


def load_molecules(name: str, shift: str, root: str | Path | None = None, seed: int = 0) -> Splits:
    """One of `MOLECULES`, cut by ``"scaffold"`` (`gduq.shifts.scaffold`) or by ``"size"``.

    Molecules that occur twice stay. Rows without a valid SMILES are left out: a warning says so
    when the table is read for the first time, the description always.
    """
    one_of("a dataset of molecules", name, MOLECULES)
    one_of("a shift", shift, _CUTS)
    source = MOLECULES[name]
    path = raw_file(f"MoleculeNet/{source.file}", root)
    key = {"name": f"molecules/{name}", "version": VERSION, "raw": digest([path])}
    packed = cached(root, key, lambda: _read(path, source))
    if shift == "size":
        splits = shifts.size(packed, seed=seed)
    else:
        splits = shifts.by(packed, packed.extras["scaffold"], seed=seed, task="graph")
    rejected = int(packed.extras["rejected"])
    left_out = f" {rejected} rows without a valid SMILES are left out." if rejected else ""
    return splits.with_(
        name=f"molecules/{name}/{shift}",
        description=f"{source.title}; {len(packed)} molecules. {_CUTS[shift]}{left_out}",
        class_names=source.class_names,
        target_names=(source.target,),
        units=(source.unit,) if source.unit else (),
        sources=(str(path),),
    )


def _read(path: Path, source: _Source) -> Packed:
    log = RejectLog(None, max_rejects=0.1)
    graphs = list(log.good(MoleculeTable(path, source.smiles, (source.target,))))
    if log.rejected:
        warnings.warn(str(log), stacklevel=2)
    ranks = scaffold_ranks([graph.smiles for graph in graphs])
    extras = {"scaffold": ranks, "rejected": torch.tensor(log.rejected)}
    return replace(Packed.pack(graphs), extras=extras)
