"""The title and the first lines of a page: what was learned, from which file, by what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gduq.report.subject import Subject

__all__ = ["facts_of_run", "first_lines", "title_of"]

_MOST = 6  # names of targets or classes that are listed


def title_of(subjects: Sequence[Subject]) -> str:
    """What a page is called: the target and where it comes from, where that is known.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> p = {"test": Prediction(torch.eye(2))}
        >>> title_of([Subject("a", p, facts={"Target": "toxic", "Data": "rare.csv"})])
        'toxic, from rare.csv: how far to trust it'
    """
    facts = subjects[0].facts
    target, data = facts.get("Target", ""), facts.get("Data", "")
    about = f"{target}, from {data}" if target and data else target or data
    return f"{about}: how far to trust it" if about else "How far to trust it"


def first_lines(subjects: Sequence[Subject]) -> dict[str, str]:
    """Facts of the first subject; what was trained of all of them."""
    facts = dict(subjects[0].facts)
    if len(subjects) > 1 and "Model" in facts:
        facts["Model"] = "; ".join(s.facts.get("Model", s.name) for s in subjects)
    return facts


def facts_of_run(name: str, config: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, str]:
    """Data, target, rows and model of a finished run, in words.

    Args:
        name: What the subject is called.
        config: The run's config.
        info: Its ``info.json``.
    """
    names = [str(n) for n in info.get("target_names") or ()]
    units = [str(u) for u in info.get("units") or ()] or [""] * len(names)
    targets = [f"{n} [{u}]" if u and f"[{u}]" not in n else n
               for n, u in zip(names, units, strict=False)]  # fmt: skip
    classes = [str(c) for c in info.get("class_names") or ()]
    rows = [f"{count:,} {split}" for split, count in info["rows"].items() if isinstance(count, int)]
    found = {
        "Data": str(config["data"]["name"]),
        "Target": _listed(targets),
        "Classes": _listed(classes),
        "Rows": f"{info.get('description') or ''} {', '.join(rows)}.".strip(),
        "Model": f"{name}: {info['model']}" if info.get("model") else name,
    }
    return {key: value for key, value in found.items() if value}


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more
