"""Calibrators by name: those of `METHODS`, with ``+corrupted`` or not, and fixed maps.

Nothing is fitted for a fixed map: ``t2`` halves the logits (the control every claim must beat),
``mean_logits`` is the paper's average of hypotheses, ``rescaled_paper`` and ``rescaled_released``
are the two readings of its rescaling.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from gduq.calibration import METHODS, Calibrator, TemperatureScaling
from gduq.calibration.lesson import Lesson, samples_of
from gduq.errors import InputError, did_you_mean
from gduq.prediction import Hypotheses, Prediction, Rule

if TYPE_CHECKING:
    from gduq.evaluation.calibrated import Whole

__all__ = ["FIXED", "VARIANTS", "Rescaled", "check_name", "fixed", "make_calibrator"]

FIXED = ("t2", "mean_logits", "rescaled_paper", "rescaled_released")
VARIANTS = {f"{name}+corrupted": name for name, cls in METHODS.items() if cls.takes_copies}


def check_name(name: str) -> None:
    """Raise unless a calibrator is called that."""
    known = [*METHODS, *VARIANTS, *FIXED]
    if name not in known:
        raise InputError("the name of a calibrator", repr(name), did_you_mean(name, known))


def make_calibrator(
    name: str, whole: Whole | None = None, train: Hypotheses | None = None
) -> Calibrator:
    """A calibrator by name, with or without ``+corrupted``, not yet fitted.

    Some read the graph of a node task, some representations of training rows. Classes it sees no
    rows of stay as they are.
    """
    kind, options = METHODS[VARIANTS.get(name, name)], dict[str, Any]()
    known = {field.name for field in fields(kind)}
    if "missing" in known:
        options["missing"] = "keep"
    if kind.needs_graph:
        if whole is None:
            raise InputError(
                f"a model and a node task on one graph for {name!r}",
                "other splits or predictions alone",
                "Pass the model with its Splits, or a fitted calibrator.",
            )
        options["graph"] = whole.graph
        if "train_rows" in known:
            options["train_rows"] = whole.rows.get("train")
    if kind.needs_features:
        options["train"] = train
    return kind(**options)


@dataclass(eq=False)
class Rescaled(Calibrator):
    r"""The paper's ways to average hypotheses as a calibrator, with K equal ones left.

    ``"mean"`` is :math:`\mu`, ``"paper"`` :math:`\mu(1-\sigma)`, ``"released"`` the rule of the
    released code.
    """

    rule: Rule | Literal["mean"] = "paper"

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        return {}

    def _map(self, p: Prediction) -> Tensor:
        one = p.mean_logits() if self.rule == "mean" else p.rescaled(self.rule)
        return samples_of(one).expand(p.num_samples, -1, -1)

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {}


def fixed(name: str, p: Hypotheses) -> Calibrator:
    """One of `FIXED`, ready for such predictions."""
    if not isinstance(p, Prediction):
        raise InputError(f"predictions about classes for {name!r}", p.kind)
    sizes = p.num_classes, p.num_samples
    if name == "t2":
        state = TemperatureScaling().neutral(*sizes).state()
        return TemperatureScaling.restore({}, state | {"temperature": 2 * state["temperature"]})
    rule: Any = "mean" if name == "mean_logits" else name.removeprefix("rescaled_")
    return Rescaled(rule).neutral(*sizes)
