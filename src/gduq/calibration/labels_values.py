"""Calibration of values, by a factor on their deviations, and of labels, one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gduq.calibration.base import CalibrationSet, Calibrator, samples_of
from gduq.errors import InputError, warn_user
from gduq.prediction import LabelPrediction, ValuePrediction, Values

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DeviationScaling", "PerLabel"]


@dataclass(eq=False)
class DeviationScaling(Calibrator):
    r"""One factor per value on all deviations; the mean of the mixture :math:`\bar\mu` stays.

    .. math:: \mu'_k = \bar\mu + s (\mu_k - \bar\mu), \qquad \sigma'_k = s\,\sigma_k, \qquad
        s = \arg\min_s \mathrm{NLL}

    The NLL is that of the mixture, with one more row whose error is as large as said: a few exact
    answers would else say s = 0.

    Example:
        >>> p = ValuePrediction(torch.zeros(1, 3, 2), target=torch.tensor([2.0, -2.0, 3.0]))
        >>> DeviationScaling().fit(p)(p).std  # the root of (1 + 4 + 4 + 9) / 4
        tensor([2.1213, 2.1213, 2.1213])
    """

    kind = "values"

    @property
    def value(self) -> Tensor:
        """The factors ``[T]``."""
        return self.state()["scale"]

    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        count, unit = data.samples.size(2) // 2, _standard(1)
        target = data.target.double().view(-1, count)
        columns = ((data.samples[..., [t, t + count]], target[:, t : t + 1]) for t in range(count))
        scales = [unit.best_temperature(data.split(*one), data.weights) for one in columns]
        return {"scale": torch.tensor(scales, dtype=torch.float64)}

    def _map(self, p: ValuePrediction) -> Tensor:
        weights = None if p.weights is None else p.weights.cpu()
        return _standard(p.num_values).scaled(samples_of(p), self._state["scale"], weights)

    def _neutral(self, num_values: int) -> dict[str, Tensor]:
        return {"scale": torch.ones(num_values, dtype=torch.float64)}


def _standard(count: int) -> Values:
    return Values(shift=(0.0,) * count, scale=(1.0,) * count)


@dataclass(eq=False)
class PerLabel(Calibrator):
    """A calibrator for classes, fitted for every label by itself, on the rows that know it.

    A label whose known rows are all "yes" or all "no" stays as it is, which a warning says. Where a
    label's "yes" comes too often or too rarely, ``"vector"`` can move it.

    Args:
        method: A name of `gduq.calibration.METHODS` for classes that does not need the graph.

    Example:
        >>> z = torch.tensor([[4.0, -1.0]] * 4)  # sure of the first, right three times of four
        >>> nan = float("nan")
        >>> p = LabelPrediction(z, torch.tensor([[1, 0], [1, 1], [1, nan], [0, 0]]))
        >>> PerLabel().fit(p)(p).probs[0].round(decimals=2)
        tensor([0.7500, 0.3300])
    """

    kind = "labels"

    method: str = "temperature"

    def __post_init__(self) -> None:
        from gduq.calibration import methods_for

        methods = methods_for("classes")
        usable = [name for name, cls in methods.items() if not cls.needs_graph]
        if self.method not in usable:
            raise InputError(f"a method from {', '.join(usable)}", repr(self.method))

    @classmethod
    def restore(cls, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Self:
        calibrator = super().restore(config, state)
        for t in torch.nonzero(state["mapped"]).flatten().tolist():
            if calibrator.column(t) is None:  # raises for a part that is missing
                raise InputError(f"a saved {cls.__name__}", f"one without label {t}")
        return calibrator

    def column(self, t: int) -> Calibrator | None:
        """The fitted calibrator of label ``t``; ``None`` where the label stays as it is."""
        self._check_fitted()
        start = f"{t}."
        own = {k.removeprefix(start): v for k, v in self._state.items() if k.startswith(start)}
        return self._class().restore({}, own) if own else None

    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        p, state = data.parts[0], dict[str, Tensor]()
        mapped = torch.zeros(p.num_labels, dtype=torch.bool)
        for t in range(p.num_labels):
            column = p.column(t)
            if len(column.require_target().unique()) < 2:
                continue
            copies = [copy.column(t) for copy in data.copies if bool(copy.known[:, t].any())]
            fitted = self._class()().fit(column, corrupted=copies)
            state |= {f"{t}.{name}": value for name, value in fitted.state().items()}
            mapped[t] = True
        if kept := torch.nonzero(~mapped).flatten().tolist():
            names = [str((p.names or range(p.num_labels))[t]) for t in kept]
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            warn_user(
                f"{', '.join(names[:5])}{more} of {p.num_labels} labels stay as they are: to "
                'calibrate a label takes rows of "yes" and of "no"'
            )
        return {"mapped": mapped} | state

    def _map(self, p: LabelPrediction) -> Tensor:
        every, after = replace(p, target=None), samples_of(p).clone()
        for t in range(p.num_labels):
            calibrator = self.column(t)
            if calibrator is not None:
                pair = samples_of(calibrator(every.column(t)))
                after[..., t] = pair[..., 1] - pair[..., 0]
        return after

    def _neutral(self, num_labels: int) -> dict[str, Tensor]:
        return {"mapped": torch.zeros(num_labels, dtype=torch.bool)}

    def _class(self) -> type[Calibrator]:
        from gduq.calibration import METHODS

        return METHODS[self.method]
