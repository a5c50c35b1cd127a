"""Scores of a run as the rows of a table that fits a screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gduq.evaluation import Evaluation

__all__ = ["ranked_class", "told_of"]

_TOLD = {
    "classes": ("accuracy", "balanced_accuracy", "roc_auc", "average_precision", "ece", "nll"),
    "labels": ("balanced_accuracy", "roc_auc", "average_precision", "ece", "nll"),
    "values": ("rmse", "r2", "coverage_90", "width_90", "nll"),
}


def ranked_class(class_names: Sequence[str]) -> str:
    """Of two classes, the one that roc_auc and average_precision are about; else nothing."""
    if len(class_names) != 2:
        return ""
    return f"roc_auc and average_precision are those of the class {class_names[1]!r}."


def told_of(
    evaluation: Evaluation, calibrators: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The few measures that say most: a row per split, calibrator and, of several, value.

    Of ``calibrators`` only these and none are told; all without.
    """
    kind, table = evaluation.settings.get("about", "classes"), evaluation.table
    held = table[(table["kind"] == "metrics") & table["measure"].isin(_TOLD[kind])]
    held = held[held["split"] != "train"]
    if calibrators is not None:
        held = held[held["calibrator"].isin(("none", *calibrators))]
    if kind != "values":
        held = held[held["variant"] == ""]  # labels one by one are in the report
    several = [name for name in ("calibrator", "variant") if held[name].nunique() > 1]
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for one in held.to_dict("records"):
        shown = {"target" if n == "variant" else n: one[n] for n in ("split", *several)}
        key = (one["split"], one["calibrator"], one["variant"])
        rows.setdefault(key, shown)[one["measure"]] = one["value"]
    return list(rows.values())
