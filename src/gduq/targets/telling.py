"""What kind of target ``y`` and the outputs of a network speak of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch  # noqa: F401  (for the examples)
from torch import Tensor

from gduq.errors import InputError, warn_user
from gduq.targets.base import FirstLook, Target
from gduq.targets.classes import Classes, ClassWeights
from gduq.targets.labels import Labels
from gduq.targets.values import Values

__all__ = ["KINDS", "tell_target"]

KINDS = ("classes", "labels", "values")


def tell_target(
    look: FirstLook,
    given: Target | str | None = None,
    class_weights: ClassWeights = None,
    class_names: Sequence[str] | None = None,
) -> Target:
    """The target of a model, as far as it was not given told from the training rows.

    * Several columns of 0, 1 and NaN are `Labels`; any other several columns are `Values`.
    * One column with fractions is `Values`.
    * One column of whole numbers is `Classes`, unless the network has a single output and there
      are others than 0 and 1: then they are `Values`, and a warning says so.

    Args:
        look: The training rows, and what the network says of some of them.
        given: A target, or its kind: ``"classes"``, ``"labels"`` or ``"values"``.
        class_weights, class_names: As in `gduq.fit`; names are of classes, labels or values.

    Example:
        >>> y = torch.tensor([0.5, 1.5])
        >>> tell_target(FirstLook(y, torch.zeros(2, 1), y)).kind
        'values'
        >>> y = torch.tensor([0, 2, 1])
        >>> tell_target(FirstLook(y, torch.zeros(3, 3), y)).kind
        'classes'
    """
    if isinstance(given, str) and given not in KINDS:
        raise InputError(f"target from {', '.join(KINDS)}, or a gduq.targets object", repr(given))
    outputs = look.outputs.size(1)
    kind = given.kind if isinstance(given, Target) else given or _kind(look.y, outputs)
    if kind != "classes" and class_weights is not None:
        raise InputError("class_weights for classes", f"{kind} as the target")
    target: Target
    if isinstance(given, Target):
        target = given
    elif kind == "classes":
        target = Classes.of_outputs(outputs)
    else:
        target = Labels() if kind == "labels" else Values()
    if class_names is not None:
        target = replace(target, names=class_names)  # type: ignore[call-arg]
    return target.told(look, class_weights) if isinstance(target, Classes) else target.told(look)


def _kind(y: Tensor, outputs: int) -> str:
    """The kind of target that the numbers in ``y`` are, for a network with so many outputs."""
    if y.is_floating_point() and bool(y.isinf().any()):
        return "values"  # which says what is wrong with it
    known = y[~y.isnan()] if y.is_floating_point() else y
    gaps, numbers = known.numel() < y.numel(), known.unique()
    if len(numbers) < 4 and numbers.tolist() in (
        [-1, 1],
        [-1, 0, 1],
    ):  # several readings are possible
        raise InputError(
            "classes from 0 up, or labels 0 and 1 with NaN where unknown",
            f"y of {', '.join(f'{value:g}' for value in numbers.tolist())}",
            'Number the classes from 0, code unknown labels as NaN, or pass target="values".',
        )
    binary = bool(((numbers == 0) | (numbers == 1)).all())
    if y.dim() == 2 and y.size(1) > 1:
        one_hot = not gaps and binary and outputs == y.size(1) and y.size(0) > 1
        if one_hot and bool((y.sum(dim=1) == 1).all()):
            raise InputError(
                "classes as numbers, or labels of which several may be yes",
                f"y of shape {list(y.shape)} with exactly one 1 per row (one-hot)",
                'Pass y.argmax(dim=1) if these are classes, or target="labels" if they are labels.',
            )
        return "labels" if binary else "values"
    if y.is_floating_point() and bool((numbers != numbers.round()).any()):
        return "values"
    if gaps and binary and outputs == 1:
        return "labels"
    if outputs == 1 and not binary:
        warn_user(
            f"y holds whole numbers up to {int(known.max())} and the network has one output: taken "
            'as values (regression); pass target="classes" and a network with one output per '
            "class if they are classes"
        )
        return "values"
    return "classes"
