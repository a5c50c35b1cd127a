"""Where should the anchors of prediction come from, and does it pay to learn that?

    python benchmarks/learned_anchors.py --root FOLDER [--scale small] [--steps 100]

Takes every finished run of the variant ``gduq`` that `gduq bench` left in a folder. Nothing but the
bank of anchors changes: other training rows (ten times as many, or spread out by k-means++),
validation rows, a Gaussian with the moments of the training rows (random or quasi-random), and one
whose mean and standard deviation (one number a dimension) are moved by Adam to lower the negative
log-likelihood on one half of ``id_val``. Beside it: a temperature fitted on the same half (one
number instead of many), and one that never raises confidence, as `gduq.fit` has it. All are judged
on the other half, on corrupted copies of it, and on the shifted test rows.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.cluster import kmeans_plusplus
from torch import Tensor
from torch_geometric.data import Data

from gduq import Anchored, metrics
from gduq.bundle import load
from gduq.calibration import TemperatureScaling
from gduq.calibration.scaling import softening
from gduq.data import View
from gduq.evaluation.copies import corrupted_views
from gduq.experiments import build
from gduq.experiments.engines import map_cells
from gduq.experiments.folder import FINISHED, RunFolder
from gduq.experiments.specs import SCALES, ScaleName
from gduq.experiments.tables import TABLES
from gduq.prediction import Prediction, predict
from gduq.tempering import reach_of

WHERE = ("id_val, other half", "corrupted copies", "ood_test")
METRICS = ("ece", "nll")


class Rows:
    """Representations at the readout with their labels: all that changes of anchors can touch."""

    def __init__(self, model: Anchored, h: Tensor, y: Tensor, train: Tensor) -> None:
        self.model, self.h, self.y, self.train = model, h, y, train

    @classmethod
    def of(cls, model: Anchored, view: View, train: Tensor) -> Rows:
        p = predict(model, view, features=True)
        assert p.features is not None
        assert p.target is not None
        return cls(model, p.features, p.target, train)

    def __getitem__(self, rows: Tensor) -> Rows:
        return Rows(self.model, self.h[rows], self.y[rows], self.train)

    def logits(self, bank: Tensor) -> Tensor:
        """``[K, m, C]`` under a bank; gradients reach it."""
        self.model.bank = bank
        self.model.reach.fill_(reach_of(self.train, bank.detach()))
        return self.model.sample(Data(cut_0=self.h, num_nodes=len(self.h)))

    def prediction(self, bank: Tensor) -> Prediction:
        with torch.no_grad():
            return Prediction(self.logits(bank), target=self.y)


def learned(fit_on: Rows, start: tuple[Tensor, Tensor], noise: Tensor, steps: int) -> Tensor:
    """The bank whose Gaussian was moved for the likelihood of some rows."""
    mean = start[0].clone().requires_grad_()
    spread = torch.zeros_like(start[1]).requires_grad_()  # log of a factor, a dimension
    optimizer = torch.optim.Adam([mean, spread], lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        bank = mean + start[1] * spread.exp() * noise
        loss = torch.nn.functional.cross_entropy(fit_on.logits(bank).mean(0), fit_on.y)
        loss.backward()
        optimizer.step()
    return (mean + start[1] * spread.exp() * noise).detach()


def representations(model: Anchored, view: View) -> Tensor:
    """The rows anchors come from, at the readout."""
    found = predict(model, view, features=True).features
    assert found is not None
    return found


def other_banks(train: Tensor, val: Tensor, k: int, seed: int) -> dict[str, Tensor]:
    """K training rows spread out, more of them, validation rows, and quasi-random draws."""
    generator = torch.Generator().manual_seed(seed)
    spread, _ = kmeans_plusplus(train.numpy(), k, random_state=seed)
    sobol = torch.quasirandom.SobolEngine(train.size(1), scramble=True, seed=seed)
    normal = torch.special.ndtri(sobol.draw(k).clamp(1e-6, 1 - 1e-6)).to(train)
    return {
        "training rows, k-means++": torch.from_numpy(spread).to(train),
        f"training rows, {10 * k}": train[
            torch.randperm(len(train), generator=generator)[: 10 * k]
        ],
        "validation rows": val[torch.randperm(len(val), generator=generator)[:k]],
        "gaussian, quasi-random": train.mean(0) + train.std(0) * normal,
    }


class Study:
    """All ways for one run."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, path: str) -> dict[str, dict[str, dict[str, float]]]:
        folder = RunFolder(Path(path))
        model, _ = load(folder.bundle)
        assert isinstance(model, Anchored)
        model.requires_grad_(False)
        model.temperature.fill_(1.0)  # what validation rows said comes last, as a way of its own
        splits, own = build.splits_of(folder.config), model.bank
        assert splits.id_val is not None
        generator = torch.Generator().manual_seed(folder.config.seed)
        train = representations(model, splits.train)
        val = Rows.of(model, splits.id_val, train)
        halves = torch.randperm(len(val.y), generator=generator).chunk(2)
        start = train.mean(0), train.std(0)
        noise = torch.randn(own.shape, generator=generator)
        banks = {
            "own bank": own,
            **other_banks(train, val[halves[0]].h, len(own), folder.config.seed),
            "gaussian": start[0] + start[1] * noise,
            "gaussian, learned": learned(val[halves[0]], start, noise, self.steps),
        }
        spoilt = corrupted_views(splits.id_val)
        copies = [Rows.of(model, view, train)[halves[1]] for view in spoilt]
        places = [[val[halves[1]]], copies, [Rows.of(model, splits.ood_test, train)]]
        temperature = TemperatureScaling().fit(val[halves[0]].prediction(own))
        ways = {
            name: _scores(partial(Rows.prediction, bank=b), places) for name, b in banks.items()
        }
        ways["own bank, temperature"] = _scores(
            lambda rows: temperature(rows.prediction(own)), places
        )
        model.temperature.copy_(softening(val[halves[0]].prediction(own)))
        ways["own bank, temperature of at least 1"] = _scores(
            partial(Rows.prediction, bank=own), places
        )
        return ways


def _scores(
    way: Callable[[Rows], Prediction], places: list[list[Rows]]
) -> dict[str, dict[str, float]]:
    found = {}
    for where, parts in zip(WHERE, places, strict=True):
        ps = [way(rows) for rows in parts]
        found[where] = {
            "ece": statistics.fmean(metrics.ece(p, strict=False) for p in ps),
            "nll": statistics.fmean(metrics.nll(p) for p in ps),
        }
    return found


def runs(root: Path, scale: ScaleName) -> Iterator[tuple[str, str]]:
    """Cell and folder of every finished run of our defaults."""
    seen = set()
    for table in TABLES.values():
        for setting, variant, _, config in table.configs(scale, table.seeds_at(scale)):
            path = root / config.hash
            if variant == "gduq" and path not in seen and (path / FINISHED).is_file():
                seen.add(path)
                yield f"{setting.data} {setting.model}", str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--scale", choices=list(SCALES), default="small")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    found = list(runs(options.root, options.scale))
    if not found:
        parser.error(f"no finished run of gduq in {options.root}")
    outcomes = map_cells([path for _, path in found], Study(options.steps), title="learned anchors")
    cells: dict[str, list[Any]] = {}
    for (cell, _), outcome in zip(found, outcomes, strict=True):
        if outcome.value is None:
            print(outcome.error)
        else:
            cells.setdefault(cell, []).append(outcome.value)
    print(f"{len(cells)} networks, {sum(map(len, cells.values()))} runs; "
          "networks: how often better than the own bank\n")  # fmt: skip
    print(table(cells))


def table(cells: dict[str, list[Any]]) -> str:
    """A row a way: means over cells, and the number of cells where it beats the own bank."""
    head = [f"{m.upper()}, {where} (networks)" for where in WHERE for m in METRICS]
    lines = ["| anchors | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for way in next(iter(cells.values()))[0]:
        figures = []
        for where in WHERE:
            for metric in METRICS:
                mine = [_mean(c, way, where, metric) for c in cells.values()]
                theirs = [_mean(c, "own bank", where, metric) for c in cells.values()]
                wins = sum(a < b for a, b in zip(mine, theirs, strict=True))
                figures.append(f"{statistics.fmean(mine):.3f} ({wins})")
        lines.append(f"| {way} | {' | '.join(figures)} |")
    return "\n".join(lines)


def _mean(runs_of_cell: list[Any], way: str, where: str, metric: str) -> float:
    return statistics.fmean(run[way][where][metric] for run in runs_of_cell)


if __name__ == "__main__":
    main()
