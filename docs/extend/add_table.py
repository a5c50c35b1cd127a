"""A table for `gduq bench`: which data, networks and methods to compare, and in which figures."""

import sys

from gduq_reproduction.bench import bench
from gduq_reproduction.specs import VARIANTS, PaperTable, Setting
from gduq_reproduction.tables import TABLES

CBAS = Setting("cbas/color/covariate", conv="gcn", epochs=100, hidden=64)

# A variant says what it changes in the config of the plain network.
VARIANTS["three-heads"] = {"method.kind": "heads", "method.size": 3}

# In gduq these lines stand in gduq_reproduction/tables.py, where `gduq bench` finds them.
TABLES["heads"] = PaperTable(
    title="One anchored head against three plain ones",
    row=None,  # a table of our own: no row in the paper's list, no printed figures
    labels=(),
    settings=(CBAS,),
    smoke=(CBAS,),
    variants=("gduq", "three-heads"),
    calibrators=("vector",),
    metrics=("accuracy", "ece", "nll"),
    seeds=3,
    note="Heads cost a tenth of the training; members of an ensemble a whole one.",
)

if __name__ == "__main__":
    result = bench("heads", scale="smoke", root=sys.argv[1], workers=0, seeds=1, progress=False)
    print(result.to_markdown())
    assert not result.failures
