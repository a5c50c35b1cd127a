"""`infer_target`: whether ``y`` holds classes, labels or values. The only place that decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch  # noqa: F401  (for the examples)
from torch import Tensor

from gduq.errors import InputError, warn_user
from gduq.prediction.classes import Classes, ClassWeights, Labels
from gduq.prediction.target import Target, TargetSample
from gduq.prediction.values import Values

__all__ = ["KINDS", "infer_target", "resolve_target"]

KINDS = ("classes", "labels", "values")
_MAX_CLASSES = 20  # different whole numbers up to which they are classes
_WHOLE = 2.0**53  # up to which floats hold every whole number


def infer_target(
    y: Tensor, outputs: int | None = None, task: str | None = None, name: str = "y"
) -> Target:
    """What ``y`` is. A table, a file of graphs, a list and a config all ask here.

    * Several columns of 0, 1 and NaN are `Labels`; any other several columns are `Values`.
    * One column with fractions is `Values`.
    * One column of whole numbers, integers or not, is `Classes` up to 20 different ones, else
      `Values`. The outputs of a network say more, where there is one: several are `Classes`; a
      single one is the logit of two different numbers, and of more a value.

    NaN is unknown and does not count here; classes and values refuse it later. The classes are the
    different numbers in ascending order, as in scikit-learn, and class numbers where all are below
    the number of outputs. Where y can be read in several ways, a warning says what it was taken as;
    one-hot rows and columns of -1 and 1 are refused.

    Args:
        y: The truth of all rows ``[n]`` or ``[n, T]``.
        outputs: Of the network, where there is one.
        task: ``"classes"``, ``"labels"`` or ``"values"``, where the user said so.
        name: What the user calls ``y``.

    Example:
        >>> infer_target(torch.tensor([0.5, 1.5])).kind
        'values'
        >>> infer_target(torch.tensor([1.0, -1.0])).names
        ('-1', '1')
    """
    if task is not None and task not in KINDS:
        raise InputError(f"target from {', '.join(KINDS)}, or a gduq.prediction.Target", repr(task))
    known = y[~y.isnan()] if y.is_floating_point() else y
    numbers = known.unique()
    kind = task or _kind(y, numbers, outputs, name)
    if kind != "classes":
        return Labels() if kind == "labels" else Values()
    target = Classes(max(2, len(numbers))) if outputs is None else Classes.of_outputs(outputs)
    inside = bool(((numbers >= 0) & (numbers < target.num_classes)).all())
    if inside or len(numbers) != target.num_classes or not _integral(numbers):
        return target  # whose `check` says what does not fit
    return replace(target, codes=tuple(int(number) for number in numbers.tolist()))


def resolve_target(
    sample: TargetSample,
    given: Target | str | None = None,
    class_weights: ClassWeights = None,
    class_names: Sequence[str] | None = None,
) -> Target:
    """The target of a model: what was given (all of it, or its kind), the rest inferred from the
    training rows. ``class_weights`` and ``class_names`` are as in `gduq.fit`."""
    outputs = sample.outputs.size(1)
    target = given if isinstance(given, Target) else infer_target(sample.y, outputs, given)
    if target.kind != "classes" and class_weights is not None:
        raise InputError("class_weights for classes", f"{target.kind} as the target")
    if class_names is not None:
        target = replace(target, names=class_names)  # type: ignore[call-arg]
    return target.fit(sample, class_weights) if isinstance(target, Classes) else target.fit(sample)


def _kind(y: Tensor, numbers: Tensor, outputs: int | None, name: str) -> str:
    """The kind of target that ``y`` with these different numbers is."""
    if y.dim() > 1 and y.size(1) > 1:
        if numbers.tolist() in ([-1, 1], [-1, 0, 1]):
            got = f"{name} of {', '.join(f'{value:g}' for value in numbers.tolist())}"
            do = 'Code them so, or pass target="values" (--task values).'
            raise InputError("labels 0 and 1 with NaN where unknown", got, do)
        if bool(((numbers != 0) & (numbers != 1)).any()):
            return "values"
        if y.size(0) > 1 and bool((y.sum(dim=1) == 1).all()):  # NaN is no 1
            got = f"{name} of shape {list(y.shape)} with exactly one 1 per row (one-hot)"
            do = "Pass y.argmax(dim=1) if these are classes, or target='labels' (--task labels)."
            raise InputError("classes as numbers, or labels of which several may be yes", got, do)
        return "labels"
    if not _integral(numbers):
        return "values"
    most, count = {None: _MAX_CLASSES, 1: 2}.get(outputs), len(numbers)
    kind = "classes" if most is None or count <= most else "values"
    if count == 0 or numbers.tolist() == [-1, 1]:
        return kind
    low, high = int(numbers[0]), int(numbers[-1])
    held = f"{name} holds {count} different whole numbers from {low} to {high}, taken as"
    if kind == "values" and low >= 0:
        do = 'pass target="classes" (--task classes), with an output for each, if they are classes'
        warn_user(f"{held} values (regression): {do}")
    elif kind == "classes" and outputs is None and (low < 0 or 2 * count < high + 1):
        do = 'pass target="values" (--task values) if they are amounts'
        warn_user(f"{held} names of {count} classes: {do}")
    return kind


def _integral(numbers: Tensor) -> bool:
    if not numbers.is_floating_point():
        return True
    return bool(((numbers == numbers.round()) & (numbers.abs() <= _WHOLE)).all())
