"""The bars the comparison has to clear, each with what was found.

A cell counts with the means of its seeds. Every method is taken at the calibration that validation
rows and their shifted copies like best, which is a temperature from both (``copies``); where a bar
names temperature scaling, the plain network has it from validation rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gduq_reproduction.comparison.scoring import MEASURES
from gduq_reproduction.molecules.bars import Bar

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["bars", "cell_means"]

_OURS, _SCALED, _COPIES = ("choose 1.2", "copies"), ("plain", "validation"), ("plain", "copies")
_ENSEMBLE = ("ensemble of 3", "copies")
_BUDGETS = ("1.2", "1.5", "2.5")

Method = tuple[str, str]  # name and level
Compare = Callable[["pd.Series", "pd.Series"], "pd.Series"]


def cell_means(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, by cell, method, level and split."""
    keys = ["cell", "method", "level", "split"]
    numbers = table[[*MEASURES, "auroc", "cost"]].astype(float)
    return table[keys].fillna({"level": ""}).join(numbers).groupby(keys).mean()


def bars(table: pd.DataFrame) -> list[Bar]:
    """All bars, on OOD test rows."""
    means = cell_means(table)
    return [
        *_default(means),
        *_against_ensemble(means),
        *(_regret(table, budget) for budget in _BUDGETS),
        *_epistemic(means),
        *_novelty(means),
        _time(means),
    ]


def _of(means: pd.DataFrame, method: Method, measure: str, split: str = "ood_test") -> pd.Series:
    name, level = method
    rows = means[means.index.get_level_values("method") == name]
    rows = rows[rows.index.get_level_values("level") == level]
    rows = rows[rows.index.get_level_values("split") == split]
    return rows[measure].droplevel(["method", "level", "split"]).dropna()


def _pair(
    means: pd.DataFrame, ours: Method, theirs: Method, measure: str
) -> tuple[pd.Series, pd.Series]:
    a, b = _of(means, ours, measure), _of(means, theirs, measure)
    both = a.index.intersection(b.index)
    return a[both], b[both]


def _share(
    what: str, pair: tuple[pd.Series, pd.Series], good: Compare, least: float, wanted: str
) -> Bar:
    if not len(pair[0]):
        return Bar(what, wanted, "no cell yet", None)
    wins = good(*pair)
    got = f"{int(wins.sum())} of {len(wins)} cells ({wins.mean():.0%})"
    return Bar(what, wanted, got, bool(wins.mean() >= least))


def _default(means: pd.DataFrame) -> Iterator[Bar]:
    """The default choice against the plain network."""
    pair = _pair(means, _OURS, _SCALED, "nll")
    yield _share(
        "choose(1.2): OOD NLL at most 2 % above plain + temperature scaling",
        pair, lambda a, b: a <= 1.02 * b, 0.95, "≥ 95 % of cells",
    )  # fmt: skip
    for measure, first, second in (("nll", 0.80, 0.65), ("brier", 0.75, 0.60)):
        for rival, name, least in (
            (_SCALED, "temperature scaling", first),
            (_COPIES, "a temperature on shifted copies", second),
        ):
            yield _share(
                f"choose(1.2): lower OOD {measure.upper() if measure == 'nll' else 'Brier score'} "
                f"than plain + {name}",
                _pair(means, _OURS, rival, measure), lambda a, b: a < b, least,
                f"≥ {least:.0%} of cells",
            )  # fmt: skip
    ours, theirs = _pair(means, _OURS, _COPIES, "ece_debiased")
    bar = _share(
        "choose(1.2): debiased OOD ECE no worse than plain + shifted copies",
        (ours, theirs), lambda a, b: a <= b, 0.6, "≥ 60 % of cells, ratio of means ≤ 0.95",
    )  # fmt: skip
    ratio = ours.mean() / theirs.mean() if len(ours) else float("nan")
    yield Bar(bar.what, bar.wanted, f"{bar.got}, {ratio:.2f}", bar.met and bool(ratio <= 0.95))
    ours, plain = _pair(means, _OURS, _COPIES, "accuracy")
    gap = 100 * (ours - plain)
    yield Bar(
        "choose(1.2): OOD accuracy against plain",
        "mean ≥ 0, worst cell ≥ -2 points",
        f"mean {gap.mean():+.1f}, worst {gap.min():+.1f} ({gap.idxmin()})" if len(gap) else "none",
        bool(gap.mean() >= 0 and gap.min() >= -2) if len(gap) else None,
    )


def _against_ensemble(means: pd.DataFrame) -> Iterator[Bar]:
    def lower(a: pd.Series, b: pd.Series) -> pd.Series:
        return a < b

    yield _share(
        "choose(1.5): OOD NLL no worse than an ensemble of 3",
        _pair(means, ("choose 1.5", "copies"), _ENSEMBLE, "nll"), lambda a, b: a <= b, 0.55,
        "≥ 55 % of cells",
    )  # fmt: skip
    ours = ("choose 2.5", "copies")
    what = "choose(2.5): lower OOD {} than an ensemble of 3"
    pair = _pair(means, ours, _ENSEMBLE, "nll")
    yield _share(what.format("NLL"), pair, lower, 0.8, "≥ 80 % of cells")
    pair = _pair(means, ours, _ENSEMBLE, "brier")
    yield _share(what.format("Brier score"), pair, lower, 0.75, "≥ 75 % of cells")


def _regret(table: pd.DataFrame, budget: str) -> Bar:
    """A candidate's least budget stands in the column of costs."""
    rows = table[table["method"].str.startswith("candidate: ") & (table["split"] == "ood_test")]
    rows = rows[rows["cost"] <= float(budget)]
    best = rows.groupby(["cell", "method"])["nll"].mean().groupby("cell").min()
    ours = _of(cell_means(table), (f"choose {budget}", "copies"), "nll")
    both = best.index.intersection(ours.index)
    return _share(
        f"choose({budget}): OOD NLL at most 3 % above the best single candidate in hindsight",
        (ours[both], best[both]), lambda a, b: a <= 1.03 * b, 0.75, "≥ 75 % of cells",
    )  # fmt: skip


def _epistemic(means: pd.DataFrame) -> Iterator[Bar]:
    for budget in _BUDGETS:
        ours, theirs = _pair(means, (f"choose {budget}", "copies"), _ENSEMBLE, "errors")
        what = f"choose({budget}): AUROC of p.epistemic for its own OOD errors"
        if not len(ours):
            yield Bar(what, "mean ≥ 0.68", "no cell yet", None)
            continue
        wins = ours >= theirs
        yield Bar(
            what,
            "mean ≥ 0.68; at least an ensemble's on ≥ 60 % of cells",
            f"{ours.mean():.3f} (an ensemble's {theirs.mean():.3f}); {wins.mean():.0%}",
            bool(ours.mean() >= 0.68 and wins.mean() >= 0.6),
        )


def _novelty(means: pd.DataFrame) -> Iterator[Bar]:
    def auroc(method: str, score: str) -> pd.Series:
        return _of(means, (method, score), "auroc", "detection")

    ours = auroc("novelty", "novelty")
    rivals = [auroc("choose 1.2", name) for name in ("energy", "msp", "epistemic")]
    known = ours.index.intersection(rivals[0].index)
    shifted = [cell for cell in known if not cell.split(" ")[0].endswith("concept")]
    if shifted:
        best = rivals[0][shifted]
        for rival in rivals[1:]:
            best = best.combine(rival[shifted], max)
        pair = ours[shifted], best
        bar = _share(
            "p.novelty: AUROC of ID against OOD above energy, MSP and epistemic",
            pair, lambda a, b: a > b, 0.75, "≥ 75 % of covariate and size cells",
        )  # fmt: skip
        read = pair[0].index.str.contains("/size|/degree/")
        wins = pair[0] > pair[1]
        told = [f"{half.sum()} of {len(half)}" for half in (wins[read], wins[~read])]
        yield Bar(
            bar.what, bar.wanted,
            f"{bar.got}; {told[0]} where size or degree, which it reads, shift; {told[1]} else",
            bar.met,
        )  # fmt: skip
    gebm = auroc("gebm", "energy")
    for name, rival in (("GEBM", gebm), ("GNNSafe", auroc("gnnsafe", "energy"))):
        both = ours.index.intersection(rival.index)
        yield _share(
            f"p.novelty: AUROC of ID against OOD no worse than {name}",
            (ours[both], rival[both]), lambda a, b: a >= b, 0.5, "≥ 50 % of node cells",
        )  # fmt: skip


def _time(means: pd.DataFrame) -> Bar:
    cost = _of(means, ("choose 1.2", ""), "cost", "training")
    what, wanted = "choose(1.2): time of the network's training and the choice", "≤ 1.2× everywhere"
    if not len(cost):
        return Bar(what, wanted, "no cell yet", None)
    inside = int((cost <= 1.2).sum())
    got = f"mean {cost.mean():.2f}×, {inside} of {len(cost)} cells, most {cost.max():.2f}×"
    return Bar(what, wanted, f"{got} ({cost.idxmax()})", bool(cost.max() <= 1.2))
