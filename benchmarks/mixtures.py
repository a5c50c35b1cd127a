"""How `gduq.choose` should calibrate its mixture: judged on a kind of corruption it has not seen.

Per cell of the search half and per seed all candidates of `gduq.choose` are trained. Then one kind
of shifted copies is left out: candidates are calibrated and weighted on validation rows and the
other kinds, and the mixture is judged on the kind that was left out. Training never reads a shifted
split. The seed draws the split too: of cells whose shift is drawn at random, some of these
validation rows are shifted test rows of the table's seeds.

    python benchmarks/mixtures.py --workers 2 -o out/mixtures.csv
"""

from __future__ import annotations

import warnings
from typing import Any

import pandas as pd
import torch

from gduq.baselines.stack import Stack
from gduq.paper.comparison.cells import ShiftCell
from gduq.paper.comparison.methods import BUDGETS, Work
from gduq.prediction.predictor import Answer
from gduq.training.candidates import Candidates
from gduq.training.choosing import mixture_weights
from gduq.training.finishing import Judged, fit_temperature
from recipes import searched

KINDS = 4  # of copies, each at two severities
STARTS = (2.0, 0.1)  # head start of the plain network: rows, or a share of the rows


def main() -> None:
    table, _ = searched(judged, "mixtures")
    print(summary(table).to_string(float_format="%.3f"))


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Loss on the unseen kind relative to the calibrated plain network's, mean over all."""
    key = ["cell", "seed", "kind", "budget"]
    plain = table[table["way"] == "plain"][[*key, "loss"]]
    joined = table.merge(plain, on=key, suffixes=("", "_plain"))
    joined["ratio"] = joined["loss"] / joined["loss_plain"]
    found = joined.groupby(["budget", "way"])["ratio"]
    return pd.DataFrame({"ratio": found.mean(), "better": found.agg(lambda r: (r < 1).mean())})


def judged(job: tuple[ShiftCell, int]) -> list[dict[str, Any]]:
    """All ways on one cell, each kind of copies left out in turn."""
    cell, seed = job
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    work = Work(cell, seed)
    candidates = work.candidates(BUDGETS[-1])
    found = list(candidates)
    said = [_said(candidates, one.model) for one in found]
    rows = []
    for kind in range(KINDS):
        unseen = [1 + 2 * kind, 2 + 2 * kind]
        seen = [i for i in range(len(said[0])) if i not in unseen]
        for one, judgements in zip(found, said, strict=True):
            one.model.set_temperature(1.0, None)
            fit_temperature(one.model, judgements[0], [judgements[i] for i in seen[1:]])
        for budget in BUDGETS:
            inside = [j for j, one in enumerate(found) if one.budget <= budget]
            for way, loss in _ways([found[j].model for j in inside],
                                   [said[j] for j in inside], seen, unseen):  # fmt: skip
                rows.append(
                    {"cell": cell.name, "seed": seed, "kind": kind, "budget": budget, "way": way,
                     "loss": loss}
                )  # fmt: skip
    return rows


def _said(candidates: Candidates, model: Any) -> list[Judged]:
    evidence = candidates.evidence(model)
    return [evidence.judged(model, rows) for rows in (evidence.val, *evidence.copies)]


def _ways(models: list[Any], said: list[list[Judged]], seen: list[int], unseen: list[int]) -> Any:
    losses = torch.stack([_losses(m, s, seen) for m, s in zip(models, said, strict=True)])
    away = torch.stack([_losses(m, s, unseen) for m, s in zip(models, said, strict=True)])
    yield "plain", float(away[0].mean())
    yield "best single", float(away[int(_half(losses).argmin())].mean())
    for start in STARTS:
        rows = start if start >= 1 else start * losses.size(2)
        prior = torch.tensor([rows, *[0.0] * (len(models) - 1)])
        weights = mixture_weights(-losses, prior)
        mixed = -(weights.log()[:, None, None] - away).logsumexp(dim=0)
        yield f"mixture, head start {start}", float(mixed.mean())
        kept = [j for j, w in enumerate(weights.tolist()) if w >= 0.02]
        stack = Stack([models[j] for j in kept], weights[kept] / weights[kept].sum())
        parts = [_mixed(stack, [said[j][i] for j in kept]) for i in seen]
        fit_temperature(stack, parts[0], parts[1:])
        for name, bound in (("tempered", 0.0), ("tempered, T ≥ 1", 1.0)):
            stack.set_temperature(max(bound, float(stack.temperature)), "shifted")
            tests = [_mixed(stack, [said[j][i] for j in kept]) for i in unseen]
            values = [_nll(stack, one).mean() for one in tests]
            yield f"mixture, head start {start}, {name}", float(torch.stack(values).mean())


def _half(losses: torch.Tensor) -> torch.Tensor:
    return 0.5 * losses[:, 0].mean(dim=1) + 0.5 * losses[:, 1:].mean(dim=(1, 2))


def _mixed(stack: Stack, said: list[Judged]) -> Judged:
    found = stack.mixed([Answer(one.outputs, weights=one.weights) for one in said])
    return Judged(found.outputs, said[0].y, found.weights)


def _losses(model: Any, said: list[Judged], which: list[int]) -> torch.Tensor:
    return torch.stack([_nll(model, said[i]) for i in which]).double()


def _nll(model: Any, one: Judged) -> torch.Tensor:
    return model.target.nll(model.calibrated(one.outputs, one.weights), one.y, one.weights)


if __name__ == "__main__":
    main()
