"""Five tables of MoleculeNet by name: three with a measured value, two with a yes/no answer.

They are read by `gduq.data.read`, as anybody's own table would be, and cut by scaffold or by size.
Raw tables lie in the folders of PyG's ``MoleculeNet``; nothing is downloaded.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import gduq.data
from gduq import shifts
from gduq.data import Splits
from gduq_reproduction.datasets.raw import Root, cached_graphs, digest, raw_file

__all__ = ["MOLECULES", "load_molecules"]


class _Source(NamedTuple):
    title: str
    file: str
    target: str
    unit: str = ""
    class_names: tuple[str, ...] = ()
    smiles: str = "smiles"


MOLECULES = {
    "esol": _Source("ESOL: solubility in water, measured", "esol/raw/delaney-processed.csv",
                    "measured log solubility in mols per litre", "log mol/L"),
    "freesolv": _Source("FreeSolv: free energy of hydration, measured", "freesolv/raw/SAMPL.csv",
                        "expt", "kcal/mol"),
    "lipo": _Source("Lipophilicity: octanol/water distribution at pH 7.4, measured",
                    "lipo/raw/Lipophilicity.csv", "exp", "log D"),
    "bbbp": _Source("BBBP: whether a compound passes the blood-brain barrier", "bbbp/raw/BBBP.csv",
                    "BBBP", class_names=("does not pass", "passes")),
    "bace": _Source("BACE: whether a compound inhibits human beta-secretase 1", "bace/raw/bace.csv",
                    "Class", class_names=("inactive", "active"), smiles="mol"),
}  # fmt: skip


def load_molecules(name: str, shift: str, root: Root = None, seed: int = 0) -> Splits:
    """One of `MOLECULES`, cut by ``"scaffold"`` (rare ones are tested on) or by ``"size"``.

    Molecules that occur twice stay. Rows without a valid SMILES are left out, with a warning when
    the table is read for the first time.
    """
    source = MOLECULES[name]
    path = raw_file(f"MoleculeNet/{source.file}", root)
    key, wanted = (f"molecules/{name}", 1, digest([path])), [source.target]
    read = partial(gduq.data.read, path, smiles=source.smiles, targets=wanted)
    graphs = cached_graphs(root, key, read)
    cut = partial(shifts.by, values="scaffold", task="graph") if shift != "size" else shifts.size
    return cut(graphs, seed=seed).with_(
        name=f"molecules/{name}/{shift}",
        description=f"{source.title}; {len(graphs)} molecules with a valid SMILES, cut by {shift}.",
        class_names=source.class_names,
        target_names=(source.target,),
        units=(source.unit,) if source.unit else (),
    )
