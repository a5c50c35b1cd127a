"""How many files of gduq hold a function that is called in two everyday jobs, and which."""

import sys
import tempfile
from importlib import import_module
from inspect import CO_OPTIMIZED
from pathlib import Path
from pkgutil import walk_packages

from torch_geometric.nn import GCN, Linear, Sequential, global_mean_pool

import gduq
from gduq.cli import app

FOLDER = Path(gduq.__file__).parent


def fit(splits):
    layers = [(GCN(1, 8, 2), "x, edge_index -> x"), (global_mean_pool, "x, batch -> x")]
    model = gduq.anchor(Sequential("x, edge_index, batch", [*layers, Linear(8, 3)]))
    gduq.fit(model, splits.train, splits.id_val, progress=False)
    gduq.predict(model, splits.id_test)


if __name__ == "__main__":
    for module in {m.name for m in walk_packages([str(FOLDER)], "gduq.")} - {"gduq.__main__"}:
        import_module(module)  # what imports call is no job's
    splits = gduq.data.load("motif/basis/covariate", limit=200)
    rows = "".join(f"{'C' * (1 + i % 9)}{'NO'[i % 2]},{i % 9 + i % 2}.5\n" for i in range(100))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in.csv").write_text("smiles,value\n" + rows)
        words = ["train", f"{folder}/in.csv", "--root", folder, "--set", "training.epochs=3"]
        for job in (lambda: fit(splits), lambda: app(words, standalone_mode=False)):
            codes = set()
            sys.setprofile(lambda frame, *_, codes=codes: codes.add(frame.f_code))
            job()
            sys.setprofile(None)
            files = {Path(code.co_filename) for code in codes if code.co_flags & CO_OPTIMIZED}
            found = sorted(str(f.relative_to(FOLDER)) for f in files if FOLDER in f.parents)
            print(len(found := [f for f in found if f.endswith(".py")]), "files:", *found)
