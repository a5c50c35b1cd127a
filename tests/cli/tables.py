"""Small tables of molecules, made of fragments, for the commands that read them."""

from __future__ import annotations

import csv
import random
from pathlib import Path

RINGS = ("c1ccccc1", "C1CCCCC1", "c1ccncc1", "C1CCNCC1", "c1ccoc1", "c1ccsc1", "C1CCCC1",
         "C1COCCN1")  # fmt: skip
TAILS = ("C", "CC", "CO", "N", "Cl", "OC", "CCO", "NC(=O)C", "FC")
LABELS = tuple(f"assay {t}" for t in range(12))
COLUMNS = {
    "values": ("logS [log mol/L]",),
    "rare": ("active",),
    "words": ("activity",),
    "labels": LABELS,
}
TARGETS = {
    "values": (),  # the only column of numbers
    "rare": (),
    "words": ("--target", "activity"),
    "labels": tuple(word for name in LABELS for word in ("--target", name)),
}


def molecules(count: int, seed: int = 0) -> list[str]:
    """SMILES of which the first rings are common and the last ones rare."""
    draw = random.Random(seed)
    return [
        draw.choice(TAILS) + "C" * draw.randint(0, 4) + RINGS[min(7, int(draw.expovariate(0.6)))]
        for _ in range(count)
    ]


def table(path: Path, kind: str, count: int = 100, seed: int = 0) -> Path:
    """A table of ``count`` molecules and one line that is none, with a column per target."""
    draw = random.Random(seed + 1)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["compound", "Structure SMILES", *COLUMNS[kind], "lab", "measured on"])
        for i, smiles in enumerate(["C1CC(", *molecules(count, seed)]):
            lab, date = "aaabbc"[i % 6], f"{2010 + i % 12}-05-{1 + i % 28:02d}"
            rows.writerow([f"M-{i}", smiles, *_targets(kind, i, smiles, draw), lab, date])
    return path


def _targets(kind: str, i: int, smiles: str, draw: random.Random) -> list[object]:
    if kind == "values":
        return [round(-0.3 * len(smiles) + draw.gauss(0, 0.3), 3)]
    if kind == "rare":
        return [int(i % 25 == 1)]
    if kind == "words":
        return ["binds" if "N" in smiles or i % 9 == 0 else "no binding"]
    return ["" if draw.random() < 0.3 else int(draw.random() < 0.4) for _ in LABELS]
