"""Which splits a report shows, in which order, and how a sentence calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gduq.data.splits import SPLIT_NAMES

if TYPE_CHECKING:
    from gduq.report.subject import Subject

__all__ = ["home_of", "is_severity", "main_split", "severities", "shift_name", "splits_of"]


def is_severity(split: str) -> bool:
    """Whether a name is a step of a growing shift, such as ``"rotation=10"``."""
    try:
        float(split.partition("=")[2])
    except ValueError:
        return False
    return True


def splits_of(subjects: Sequence[Subject]) -> list[str]:
    """Splits of the report in reading order, without training data."""
    found = dict.fromkeys(s for subject in subjects for s in subject.predictions if s != "train")
    known = [s for s in SPLIT_NAMES if s in found]
    other = [s for s in found if s not in known and not is_severity(s)]
    severe = [(s.partition("=")[0], float(s.partition("=")[2]), s) for s in found if is_severity(s)]
    return [*known, *other, *(name for _, _, name in sorted(severe))]


def severities(subjects: Sequence[Subject]) -> dict[str, list[str]]:
    """Severity splits by what grows, such as rotation."""
    kinds: dict[str, list[str]] = {}
    for split in filter(is_severity, splits_of(subjects)):
        kinds.setdefault(split.partition("=")[0], []).append(split)
    return kinds


def main_split(subjects: Sequence[Subject]) -> str | None:
    """The split the verdict is about: the shifted test data if there is any, with labels."""
    labelled = [s for s in splits_of(subjects) if subjects[0].labelled(s) is not None]
    severe = [s for s in labelled if is_severity(s)]
    wanted = ["ood_test", *severe[::-1][:1], "ood_val", "id_test", *labelled]
    return next((s for s in wanted if s in labelled), None)


def home_of(subject: Subject, split: str) -> str | None:
    """The labelled split of known kind to compare a shifted one with."""
    return "id_test" if split != "id_test" and subject.labelled("id_test") is not None else None


def shift_name(subjects: Sequence[Subject], split: str) -> str:
    """How a sentence calls the situation of a split: ``Under size shift``."""
    if is_severity(split):
        return f"At {split}"
    if not split.startswith("ood"):
        return "On data like its training data" if split.startswith("id") else f"On {split}"
    config = subjects[0].config or {}
    named = config.get("data", config.get("dataset", ""))
    data = named.get("name", "") if isinstance(named, Mapping) else named
    data = subjects[0].splits.name if subjects[0].splits else data
    parts = [p for p in str(data).split("/")[1:] if p not in ("covariate", "concept")]
    return f"Under {parts[-1]} shift" if parts else "Under shift"
