"""`BenchResult`: the records of a table, compared with vanilla seed by seed, in all formats."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gduq.disk import to_json, write_text
from gduq.errors import InputError
from gduq_reproduction import table_text
from gduq_reproduction.printed import lookup
from gduq_reproduction.run_scores import HIGHER, MEASURES

__all__ = ["COLUMNS", "BenchResult", "record", "verdicts"]

Record = dict[str, Any]
_KEY = ("dataset", "shift", "model", "variant", "calibrator", "split", "metric")
COLUMNS = (
    "table",
    *_KEY,
    "mean",
    "std",
    "seeds",
    "paper",
    "paper_std",
    "paper_label",
    "versus",
    "verdict",
    "p_value",
    "values",
    "note",
    "scale",
    "command",
)
_COMPARED = MEASURES
_READINGS = ("none", "mean_logits", "rescaled_paper", "rescaled_released")  # of one row there
_LEVEL = 0.05


@dataclass(frozen=True, eq=False)
class BenchResult:
    """A table of the paper, made anew.

    Attributes:
        name: The table's.
        scale: At which it was made.
        records: One per cell; `COLUMNS` are their keys.
        title: What the table shows.
        notes: What to know when reading it.
        failures: Tracebacks of runs that failed, by title.
        figures: Pictures that belong to it.
        runs: Folders of the runs it was made of.
    """

    name: str
    scale: str
    records: list[Record]
    title: str = ""
    notes: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    figures: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()

    def wins(self) -> list[dict[str, Any]]:
        """Per variant and metric: cells compared with vanilla, better ones, and which for sure."""
        return table_text.win_counts(self.records)

    def content(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {**asdict(self), "wins": self.wins()}

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything, as JSON; also written to ``path`` if given."""
        return _written(to_json(self.content()) + "\n", path)

    @classmethod
    def from_json(cls, path: str | Path) -> BenchResult:
        """Read what `to_json` wrote."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            known = {k: content[k] for k in ("name", "scale", "records", "title", "failures")}
            known |= {k: tuple(content[k]) for k in ("notes", "figures", "runs")}
            return cls(**known)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError("a file that BenchResult.to_json wrote", f"{path} ({error})") from None

    def to_csv(self, path: str | Path | None = None) -> str:
        """One line per record."""
        return _written(table_text.csv(self.records, COLUMNS), path)

    def to_markdown(self, path: str | Path | None = None) -> str:
        """A table per dataset, shift and model, the paper's figures in brackets, and win counts."""
        return _written(self.markdown(), path)

    def markdown(self) -> str:
        """What `to_markdown` writes."""
        return table_text.markdown(self)

    def to_latex(self, path: str | Path | None = None) -> str:
        """The same as LaTeX tables (booktabs)."""
        return _written(table_text.latex(self), path)


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        write_text(Path(path), text)
    return text


def record(
    table: str,
    key: Mapping[str, str],
    values: Sequence[float | None],
    *,
    scale: str,
    command: str,
    printed: Sequence[str] = (),
    note: str = "",
) -> Record:
    """One cell: mean and standard deviation over seeds, beside the paper's figure.

    Args:
        table: Name of the table.
        key: ``dataset``, ``shift``, ``model``, ``variant``, ``calibrator``, ``split``, ``metric``.
        values: One per seed, in order; ``None`` where a run failed.
        scale: At which it was made.
        command: That makes it again.
        printed: Files of the paper's figures to look in.
        note: Why something is missing.
    """
    there = [v for v in values if v is not None and math.isfinite(v)]
    found = lookup(printed, **_printed_key(key))
    return {
        "table": table,
        **{name: key.get(name, "") for name in _KEY},
        "mean": statistics.fmean(there) if there else None,
        "std": statistics.stdev(there) if len(there) > 1 else None,
        "seeds": len(there),
        "paper": None if found is None else found.mean,
        "paper_std": None if found is None else found.std,
        "paper_label": None if found is None else found.label,
        "versus": "",
        "verdict": "",
        "p_value": None,
        "values": list(values),
        "note": note,
        "scale": scale,
        "command": command,
    }


def _printed_key(key: Mapping[str, str]) -> dict[str, str | None]:
    """The key under which the paper prints a cell."""
    wanted: dict[str, str | None] = {name: key.get(name) or None for name in _KEY}
    if wanted["metric"] == "ece100":
        wanted["metric"] = "ece"
    if wanted["calibrator"] in _READINGS:
        wanted["calibrator"] = "none"
    return wanted


def verdicts(records: Iterable[Record]) -> list[Record]:
    r"""Each record against vanilla: better, worse or "same", by a paired t-test over seeds.

    Compared is with vanilla under the same calibrator, where there is one (the released rescaling:
    with T = 2), and else with vanilla as it is; calibrated vanilla models with those that are not.
    With differences :math:`d_i` of n seeds, :math:`t = \bar d \sqrt n / s_d`; a verdict needs
    p < 0.05, and two seeds.

    Example:
        >>> key = dict(dataset="d", variant="vanilla", calibrator="none", metric="ece")
        >>> more = dict(scale="smoke", command="")
        >>> one = record("t", key, [0.3, 0.31, 0.32], **more)
        >>> two = record("t", {**key, "variant": "nfa"}, [0.1, 0.12, 0.11], **more)
        >>> [r["verdict"] for r in verdicts([one, two])]
        ['', 'better']
    """
    records = list(records)
    index = {tuple(r[k] for k in _KEY): r for r in records}
    return [_judged(r, index) for r in records]


def _judged(r: Record, index: Mapping[tuple[Any, ...], Record]) -> Record:
    if r["metric"] not in _COMPARED:
        return r
    other = _opponent(r, index)
    if other is None:
        return r
    pairs = [(a, b) for a, b in zip(r["values"], other["values"], strict=False)
             if a is not None and b is not None]  # fmt: skip
    p_value = _p_value([a - b for a, b in pairs])
    verdict = "same"
    if p_value is not None and p_value < _LEVEL:
        up = statistics.fmean(a - b for a, b in pairs) > 0
        verdict = "better" if up == (r["metric"] in HIGHER) else "worse"
    versus = f"{other['variant']}, {other['calibrator']}"
    return {**r, "versus": versus, "verdict": verdict, "p_value": p_value}


def _opponent(r: Record, index: Mapping[tuple[Any, ...], Record]) -> Record | None:
    wanted: tuple[str, ...]
    if r["variant"] == "vanilla":
        wanted = () if r["calibrator"] == "none" else ("none",)
    elif r["calibrator"] == "rescaled_released":  # it halves all logits, whatever anchors say
        wanted = ("t2", "none")
    else:
        wanted = (r["calibrator"], "none")
    for calibrator in wanted:
        key = {**{k: r[k] for k in _KEY}, "variant": "vanilla", "calibrator": calibrator}
        found = index.get(tuple(key.values()))
        if found is not None:
            return found
    return None


def _p_value(differences: Sequence[float]) -> float | None:
    """Of the paired t-test; 1 where nothing differs, ``None`` for fewer than two seeds."""
    if len(differences) < 2:
        return None
    if max(differences) - min(differences) <= 1e-12:  # no variance: a t-test has nothing to say
        return 1.0
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(differences, 0.0).pvalue)
