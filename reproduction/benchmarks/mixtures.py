"""What `gduq.choose` should mix and how: judged on rows that the training data hold back.

Per cell of the search half and per seed the training rows are cut once more, along a number of
their own: how large a graph is or how many edges a node has, and where a row lies along the widest
direction of the features. The upper 30 % are held back. A network and all candidates of
`gduq.choose` see the others only; mixtures of them are judged on the rows that were held back. A
shifted split is never read; nodes that are shifted test rows of the table's seeds are left out.

    python reproduction/benchmarks/mixtures.py --workers 2 -o out/mixtures.csv
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from gduq.baselines.ensemble import Ensemble
from gduq.baselines.laplace import LastLayerLaplace
from gduq.baselines.neighbours import Neighbours
from gduq.baselines.stack import Stack
from gduq.data.splits import Splits
from gduq.data.view import View
from gduq.graph import structure_of
from gduq.graph.sparse import take_rows
from gduq.prediction.predictor import Answer, Predictor
from gduq.shifts.copies import changes_of
from gduq.training.candidates import Candidate, Candidates, Plan
from gduq.training.choosing import mixture_weights, weighed
from gduq.training.finishing import Judged, fit_temperature, judged
from gduq_reproduction.comparison.cells import ShiftCell
from gduq_reproduction.comparison.methods import BUDGETS, Work
from recipes import searched

SEEDS, SEEDS_OF_TABLE = (100, 101), 3  # the first are in no table
CUTS = ("structure", "features")
HELD, TRAIN, VAL = 0.3, 0.65, 0.2  # shares: of all rows; of the others
COPIES = (  # a name, what copies change, and how much of it
    ("temperature scaling", "nothing", ()),
    ("copies at severities 1 and 3", "", (1, 3)),
    ("copies at severity 5", "", (5,)),
    ("copies of edges only", "edge", (3, 5)),
    ("copies of features only", "feature", (3, 5)),
)


def main() -> None:
    table, _ = searched(compared, "mixtures", SEEDS)
    print(summary(table).to_string(float_format="%.3f"))


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Loss on rows held back, relative to the plain network with the same calibration: mean over
    cells and cuts, and how often it is lower (a cell and a cut count once, with their mean)."""
    key = ["task", "cell", "cut"]
    means = table.groupby([*key, "way"], sort=False)["loss"].mean().reset_index()
    joined = means.merge(means[means["way"] == "plain"], on=key, suffixes=("", "_plain"))
    joined["ratio"] = joined["loss"] / joined["loss_plain"]
    found = joined.groupby(["task", "way"], sort=False)["ratio"]
    return pd.DataFrame({"ratio": found.mean(), "lower": found.agg(lambda r: (r < 1).mean())})


def held_back(cell: ShiftCell, seed: int, cut: str) -> Splits:
    """The training rows of a cell as all that there is: the uppermost of them are the shift."""
    whole, generator = cell.splits(seed), torch.Generator().manual_seed(seed)
    train = whole.train
    if cell.on_nodes:
        train = _without(train, [cell.splits(s).ood_test for s in range(SEEDS_OF_TABLE)])
    values = _along(train, cut)
    noise = torch.rand(len(values), generator=generator, dtype=torch.float64)
    order = (values + 1e-9 * values.abs().max() * noise).argsort()  # ties fall at random
    most = int((1 - HELD) * len(order))
    inner = order[:most][torch.randperm(most, generator=generator)]
    sizes = [int(TRAIN * most), int(VAL * most)]
    parts = (*inner.split([*sizes, most - sum(sizes)]), order[most:])
    names = ("train", "id_val", "id_test", "ood_test")
    views = {name: _part(train, rows) for name, rows in zip(names, parts, strict=True)}
    return Splits(**views, class_names=whole.class_names)


def _without(view: View, tests: Sequence[View | None]) -> View:
    """The nodes of a view that are in none of the others, which are of the same graph."""
    kept = torch.zeros(view.graphs[0].num_nodes, dtype=torch.bool)
    kept[view.rows] = True
    for test in tests:
        assert test is not None
        kept[test.rows] = False
    return replace(view, rows=kept)


def _along(view: View, cut: str) -> Tensor:
    """One number per row."""
    batch = next(iter(view.batches(len(view.graphs))))
    if cut == "structure":
        found = structure_of(batch, view.task)
        assert found is not None
        return found[:, 0]
    if view.task == "node":
        x = take_rows(batch.x, _numbers(view))
        x = (x.to_dense() if x.layout != torch.strided else x).double()
    else:
        count = torch.bincount(batch.batch).double().unsqueeze(1)
        total = torch.zeros(len(count), batch.x.size(1), dtype=torch.float64)
        x = total.index_add_(0, batch.batch, batch.x.double()) / count
        if float(x.std(dim=0).max()) < 1e-6:  # no features: edges per node
            found = structure_of(batch, "graph")
            assert found is not None
            return found[:, 1]
    widest = torch.linalg.svd(x - x.mean(dim=0), full_matrices=False).Vh[0]
    return (x - x.mean(dim=0)) @ widest


def _part(view: View, rows: Tensor) -> View:
    if view.task == "graph":
        return View([view.graphs[int(i)] for i in rows])
    return replace(view, rows=_numbers(view)[rows])


def _numbers(view: View) -> Tensor:
    """Which nodes of the graph are rows."""
    assert view.rows is not None
    return view.rows.nonzero().flatten() if view.rows.dtype == torch.bool else view.rows


# -- one cell --------------------------------------------------------------------------------------


def compared(job: tuple[ShiftCell, int]) -> list[dict[str, Any]]:
    """All ways on one cell, both cuts."""
    cell, seed = job
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for cut in CUTS:
        work = Work(cell, seed)
        work.splits = held_back(cell, seed, cut)
        same = {"cell": cell.name, "task": "node" if cell.on_nodes else "graph", "cut": cut}
        rows += [{**same, "seed": seed, "way": way, "loss": loss} for way, loss in _ways(work)]
    return rows


def _ways(work: Work) -> Iterator[tuple[str, float]]:
    """Losses on the rows held back, by what was mixed and how."""
    candidates, away = work.candidates(BUDGETS[-1]), work.views["ood_test"]
    found = {one.name: one for one in candidates}
    fresh = {name: one for name, one in found.items() if "network" in name}
    third, halves = (_networks(candidates, *how) for how in ((1.0, (2,)), (0.5, (1, 2))))
    others = {one.name: one for one in _others(candidates)}
    everything = found | third | halves | others
    losses = {name: _losses(one.model, judged(one.model, away)) for name, one in everything.items()}
    for name in everything:
        yield name, float(losses[name].mean())
    yield from _copies(found["plain"].model, work)
    yield "ensemble of 3", _ensemble(candidates, [found["plain"], *_bare(fresh | third)], away)
    for budget in BUDGETS:
        inside = [name for name, one in found.items() if one.budget <= budget]
        for way, loss in _mixtures(everything, losses, inside):
            yield f"choose({budget}){way}", loss
        stack = _stack(found, inside)
        yield f"choose({budget}), one more temperature", _tempered(candidates, found, stack, away)
    inside = [name for name, one in found.items() if one.budget <= BUDGETS[0]]
    on = next(name for name in found if name.startswith("trained on"))
    changed = [name for name in inside if name != on] if on in inside else [*inside, on]
    said = "without" if on in inside else "with"
    yield f"choose(1.2), {said} training on", _even(found, losses, changed)
    for name in others:
        if "neighbours" in name:
            instead = [name if one == "neighbours" else one for one in inside]
            yield f"choose(1.2), {name}", _even(everything, losses, instead)
    inside = [name for name, one in found.items() if one.budget <= BUDGETS[1]]
    yield "choose(2.5), two, half of the epochs", _even(everything, losses, [*inside, *halves])
    bare = [one.name for one in _bare(fresh)]
    yield "choose(2.5), the network by itself", _even(everything, losses, [*inside, *bare])


def _networks(candidates: Candidates, share: float, numbers: Sequence[int]) -> dict[str, Candidate]:
    """More networks, trained for a share of the epochs, each with what its rows allow."""
    found = []
    for i in numbers:
        plan = Plan(99.0, None, share, fresh=i)
        name, before = f"{plan}, {share} of the epochs", len(candidates.seen)
        found.append(candidates.judged(name, 99.0, candidates.planned(plan), 0.0))
        for rows in candidates.seen[before:]:
            more, budget, make = candidates.on_rows(rows, 99.0, f", {name}")
            found.append(candidates.judged(more, budget, make(), 0.0))
    return {one.name: one for one in found}


def _others(candidates: Candidates) -> Iterator[Candidate]:
    """Laplace, and other numbers of neighbours than ten."""
    kinds: dict[str, Callable[..., Predictor]] = {
        f"{k} neighbours": partial(Neighbours, k=k) for k in (5, 20, 50)
    }
    for name, kind in {"Laplace": LastLayerLaplace, **kinds}.items():
        model = candidates.learned(kind, candidates.seen[0])
        yield candidates.judged(name, 99.0, model, 0.0)


def _bare(networks: Mapping[str, Candidate]) -> list[Candidate]:
    """Without what stands on them."""
    return [one for name, one in networks.items() if name.startswith("network")]


def _copies(plain: Predictor, work: Work) -> Iterator[tuple[str, float]]:
    """The plain network with a temperature from other copies than those at severities 3 and 5."""
    val, known = work.views["id_val"], float(plain.temperature)
    clean, away = judged(plain, val), judged(plain, work.views["ood_test"])
    for way, names, severities in COPIES:
        kinds = [change for change in changes_of(val) if names in change.__name__]
        copies = [judged(plain, change(val, s, work.seed)) for change in kinds for s in severities]
        fit_temperature(plain, clean, copies)
        yield f"plain, {way}", float(_losses(plain, away).mean())
    plain.set_temperature(known, "shifted")


def _mixtures(
    found: Mapping[str, Candidate], losses: Mapping[str, Tensor], inside: Sequence[str]
) -> Iterator[tuple[str, float]]:
    weights = _weights(found, inside)
    yield "", _mixed(losses, weights)
    table = torch.stack([found[name].losses for name in inside])
    start = mixture_weights(-table, torch.tensor([2.0, *[0.0] * (len(inside) - 1)]))
    biased = dict(zip(inside, start.tolist(), strict=True))
    yield ", only a head start of the plain network", _mixed(losses, biased)
    known = torch.stack([found[name].losses for name in weights])
    share = torch.tensor(list(weights.values()), dtype=torch.float64)
    mixed = -(share.log()[:, None, None] - known).logsumexp(dim=0)
    likely = _half(mixed) <= _half(found["plain"].losses)
    guarded = weights if likely else {"plain": 1.0}
    yield ", plain where that is more likely", _mixed(losses, guarded)
    best = min(inside, key=lambda name: _half(found[name].losses))
    yield ", the best candidate alone", float(losses[best].mean())
    yield ", with Laplace on the first network", _even(found, losses, [*inside, "Laplace"])
    for name in ("neighbours", "anchored head"):
        others = [n for n in inside if not n.startswith(name)]
        yield f", without {name}", _even(found, losses, others)


def _even(
    found: Mapping[str, Candidate], losses: Mapping[str, Tensor], names: Sequence[str]
) -> float:
    """Mixed as `gduq.choose` does."""
    return _mixed(losses, _weights(found, names))


def _weights(found: Mapping[str, Candidate], names: Sequence[str]) -> dict[str, float]:
    by_number = weighed(torch.stack([found[name].losses for name in names]))
    return {names[j]: weight for j, weight in by_number.items()}


def _mixed(losses: Mapping[str, Tensor], weights: Mapping[str, float]) -> float:
    away = torch.stack([losses[name] for name in weights])
    share = torch.tensor(list(weights.values()), dtype=torch.float64)
    return float(-(share.log()[:, None] - away).logsumexp(dim=0).mean())


def _half(losses: Tensor) -> float:
    """Half of the weight on validation rows, half on their copies."""
    return float(0.5 * losses[0].mean() + 0.5 * losses[1:].mean())


def _losses(model: Predictor, said: Judged) -> Tensor:
    assert model.target is not None
    outputs = model.calibrated(said.outputs, said.weights)
    return model.target.nll(outputs, said.y, said.weights).double()


def _ensemble(candidates: Candidates, of: Sequence[Candidate], away: View) -> float:
    members = [one.model for one in of]
    temperatures = [float(member.temperature) for member in members]
    for member in members:
        member.set_temperature(1.0, None)
    model = Ensemble(members)
    assert members[0].target is not None
    model.target = members[0].target.combined()
    candidates.judged("", 1.0, model, 0.0)
    loss = float(_losses(model, judged(model, away)).mean())
    for member, temperature in zip(members, temperatures, strict=True):
        member.set_temperature(temperature, "shifted")
    return loss


def _stack(found: Mapping[str, Candidate], names: Sequence[str]) -> Stack:
    weights = _weights(found, names)
    return Stack([found[name].model for name in weights], list(weights.values()))


def _tempered(
    candidates: Candidates, found: Mapping[str, Candidate], stack: Stack, away: View
) -> float:
    """With a temperature of the mixture's own."""

    def said(rows: int | None) -> Judged:
        parts = []
        for member in stack:
            evidence = candidates.evidence(member)
            sets = (evidence.val, *evidence.copies)
            parts.append(
                judged(member, away) if rows is None else evidence.judged(member, sets[rows])
            )
        mixed = stack.mixed([Answer(one.outputs, weights=one.weights) for one in parts])
        return Judged(mixed.outputs, parts[0].y, mixed.weights)

    count = found["plain"].losses.size(0)
    clean, *copies = (said(i) for i in range(count))
    fit_temperature(stack, clean, copies)
    return float(_losses(stack, said(None)).mean())


if __name__ == "__main__":
    main()
