"""A table for `gduq bench`: which cells and methods to compare, and in which figures."""

import sys

import gduq
from gduq_reproduction.bench import bench
from gduq_reproduction.cells import Cell
from gduq_reproduction.methods import METHODS
from gduq_reproduction.tables import TABLES, Table

CBAS = Cell("cbas/color/covariate", conv="gcn", epochs=20, hidden=16)

# A method makes a model, given the work on a cell and seed: the trained network, splits, training.
METHODS["three heads"] = lambda work: work.finish(gduq.HeadEnsemble(work.plain, 3))

# In gduq these lines stand in gduq_reproduction/tables.py, where `gduq bench` finds them.
TABLES["heads"] = Table(
    "One anchored head against three plain ones",
    cells=lambda scale: [CBAS],
    methods=lambda cell, scale: ["plain", "anchored head", "three heads"],
    measures=("accuracy", "ece", "nll"),
    calibrations=("none", "validation", "vector"),
    last=False,  # weights are picked by validation loss only
    store="heads",  # tables of one store share their figures
)

if __name__ == "__main__":
    result = bench("heads", "smoke", sys.argv[1], seeds=1, workers=0, progress=False)
    print(result.to_markdown())
    assert not result.failures
