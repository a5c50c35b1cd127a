"""Load on a running service of a model for molecules: its errors and its throughput.

``python reproduction/benchmarks/serving.py http://127.0.0.1:8000 [molecules]``, beside
``gduq serve MODEL`` in another terminal.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from urllib.request import Request, urlopen

AT_A_TIME = 16
_ENDS = ("C", "CC", "CCC", "C(C)C", "C(=O)O", "C#N", "N", "OC", "SC", "F", "Cl", "Br", "C(F)(F)F")
_MIDDLES = ("CC", "CCO", "C(=O)N", "c1ccc(cc1)", "CN(C)", "C1CCN(CC1)", "S(=O)(=O)", "C=C")


def ask(url: str, texts: list[str]) -> bool:
    """Whether all molecules of a request are answered."""
    body, kind = json.dumps({"smiles": texts}).encode(), {"Content-Type": "application/json"}
    try:
        with urlopen(Request(f"{url}/predict", body, kind)) as reply:
            return len(json.load(reply)["answers"]) == len(texts)
    except (OSError, KeyError, ValueError):
        return False


def main(url: str, molecules: str = "2000") -> None:
    """A line for requests of one molecule, and one for requests of eight."""
    parts = product(_MIDDLES, _MIDDLES, _ENDS, _ENDS)  # some ten thousand different molecules
    texts = [f"C{a}{b}C({left}){right}" for a, b, left, right in parts][: int(molecules)]
    for each in (1, 8):
        requests = [texts[i : i + each] for i in range(0, len(texts), each)]
        start = time.perf_counter()
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            answered = list(pool.map(partial(ask, url), requests))
        errors, speed = answered.count(False), len(texts) / (time.perf_counter() - start)
        print(f"{len(requests)} requests of {each}: {errors} errors, {speed:.0f} molecules/s")


if __name__ == "__main__":
    main(*sys.argv[1:])
