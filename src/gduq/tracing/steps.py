"""`Step`: what a head does to each row after its first linear map, as data that JSON can hold."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from gduq.errors import InputError

__all__ = ["Multiply", "Step", "build_tail", "function_step"]

Plain = float | str


class Multiply(nn.Module):
    """Multiplies by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


# Functions of one tensor that treat every entry by itself, by the name all their spellings share
# (F.relu, torch.relu, x.relu()): the module that does the same, and its arguments with defaults.
_FUNCTIONS: Mapping[str, tuple[Callable[..., nn.Module], dict[str, Plain]]] = {
    "relu": (nn.ReLU, {}),
    "relu6": (nn.ReLU6, {}),
    "elu": (nn.ELU, {"alpha": 1.0}),
    "celu": (nn.CELU, {"alpha": 1.0}),
    "selu": (nn.SELU, {}),
    "leaky_relu": (nn.LeakyReLU, {"negative_slope": 0.01}),
    "gelu": (nn.GELU, {"approximate": "none"}),
    "silu": (nn.SiLU, {}),
    "mish": (nn.Mish, {}),
    "softplus": (nn.Softplus, {"beta": 1.0, "threshold": 20.0}),
    "hardswish": (nn.Hardswish, {}),
    "tanh": (nn.Tanh, {}),
    "sigmoid": (nn.Sigmoid, {}),
    "dropout": (nn.Dropout, {"p": 0.5}),
    "scale": (Multiply, {"factor": 1.0}),
}
_TIMES = ("mul", "multiply", "__mul__", "__rmul__", "__imul__")
_OVER = ("div", "divide", "true_divide", "__truediv__", "__itruediv__")


@dataclass(frozen=True)
class Step:
    """A module of the network by its dotted path, or a function by its name and plain arguments.

    Example:
        >>> Step("function", "dropout", (("p", 0.5),)).to_json()
        {'kind': 'function', 'name': 'dropout', 'arguments': {'p': 0.5}}
    """

    kind: Literal["module", "function"]
    name: str
    arguments: tuple[tuple[str, Plain], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The step as plain values."""
        return {"kind": self.kind, "name": self.name, "arguments": dict(self.arguments)}

    @classmethod
    def from_json(cls, value: Any) -> Step:
        """The step that `to_json` wrote; `InputError` for anything else."""
        try:
            kind, name, given = value["kind"], value["name"], dict(value["arguments"])
            known = {"module": {}, "function": _FUNCTIONS.get(name, ("", None))[1]}[kind]
        except (KeyError, TypeError, ValueError):
            known = None
        arguments = None if known is None else _check_arguments(known, given)
        if arguments is None or not isinstance(name, str):
            raise InputError(
                "a step of a head: a module, or a function with arguments", repr(value)
            )
        return cls(kind, name, arguments)


def _check_arguments(known: Mapping[str, Plain], given: Mapping[Any, Any]) -> Any:
    """All arguments of a function in order, or ``None`` where one is unknown or no plain value."""
    found = {**known, **given}
    for name, value in found.items():
        if name not in known or isinstance(known[name], str) != isinstance(value, str):
            return None
        if not isinstance(value, str):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                return None
            if not math.isfinite(value):
                return None
            found[name] = float(value)
    return tuple(found.items())


def function_step(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Step | None:
    """A call of a torch function on one tensor as a step, or ``None`` where it cannot be one.

    ``name`` is without the underscore of an in-place version, ``args`` are those after the tensor.

    Example:
        >>> function_step("elu", (2.0,), {"inplace": False})
        Step(kind='function', name='elu', arguments=(('alpha', 2.0),))
    """
    given = {key: value for key, value in kwargs.items() if key != "inplace"}
    if name in (*_TIMES, *_OVER):
        factors = [*args, *given.values()]
        if len(factors) != 1 or not isinstance(factors[0], (int, float)):
            return None
        if name in _OVER and factors[0] == 0:
            return None
        given = {"factor": 1 / factors[0] if name in _OVER else factors[0]}
        name, args = "scale", ()
    elif name not in _FUNCTIONS or name == "scale":
        return None
    known = _FUNCTIONS[name][1]
    names = [*known, "training"] if name == "dropout" else [*known]
    if not all(isinstance(extra, bool) for extra in args[len(names) :]):  # only "inplace"
        return None
    given = {**dict(zip(names, args, strict=False)), **given}
    if name == "dropout" and given.pop("training", given.pop("train", True)):
        return None  # it drops in evaluation mode too: nn.Dropout would not
    arguments = _check_arguments(known, given)
    return None if arguments is None else Step("function", name, arguments)


def build_tail(net: nn.Module, steps: Sequence[Step]) -> nn.Sequential:
    """What follows the first linear map of a head: copies of modules, and functions as modules."""
    parts: list[nn.Module] = []
    for step in steps:
        if step.kind == "function":
            parts.append(_FUNCTIONS[step.name][0](**dict(step.arguments)))
            parts[-1].training = net.training
            continue
        try:
            parts.append(copy.deepcopy(net.get_submodule(step.name)))
        except AttributeError as error:
            expected = f"a network with a submodule '{step.name}'"
            raise InputError(expected, type(net).__name__) from error
    tail = nn.Sequential(*parts)
    tail.training = net.training
    return tail
