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

    def extra_repr(self) -> str:
        return f"{self.factor:g}"


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
        if not isinstance(value, Mapping) or set(value) != {"kind", "name", "arguments"}:
            raise InputError("a step with kind, name and arguments", repr(value))
        kind, name, given = value["kind"], value["name"], value["arguments"]
        named = isinstance(name, str) and (kind == "module" or name in _FUNCTIONS)
        if kind not in ("module", "function") or not named:
            raise InputError(f"a module, or a function out of {', '.join(_FUNCTIONS)}", repr(value))
        known = _FUNCTIONS[name][1] if kind == "function" else {}
        arguments = _fitting(known, given) if isinstance(given, Mapping) else None
        if arguments is None:
            raise InputError(f"arguments of '{name}' out of {list(known)}", repr(given))
        return cls(kind, name, arguments)


def _fitting(known: Mapping[str, Plain], given: Mapping[Any, Any]) -> Any:
    """All arguments of a function in order, or ``None`` where one is unknown or no plain value."""
    found = {**known, **given}
    for name, value in found.items():
        if name not in known or isinstance(known[name], str) != isinstance(value, str):
            return None
        if not isinstance(value, str):
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not math.isfinite(value):
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
    if name in (*_TIMES, *_OVER):
        return _scale_step(name in _OVER, [*args, *kwargs.values()])
    if name not in _FUNCTIONS or name == "scale":
        return None
    known = _FUNCTIONS[name][1]
    names = [*known, "training"] if name == "dropout" else [*known]
    if not all(isinstance(extra, bool) for extra in args[len(names) :]):  # only "inplace"
        return None
    given = dict(zip(names, args, strict=False))
    given |= {key: value for key, value in kwargs.items() if key != "inplace"}
    if name == "dropout" and given.pop("training", given.pop("train", True)):
        return None  # it drops in evaluation mode too: nn.Dropout would not
    arguments = _fitting(known, given)
    return None if arguments is None else Step("function", name, arguments)


def _scale_step(over: bool, given: list[Any]) -> Step | None:
    if len(given) != 1 or (over and given[0] == 0):
        return None
    factor = 1 / given[0] if over and isinstance(given[0], (int, float)) else given[0]
    arguments = _fitting({"factor": 1.0}, {"factor": factor})
    return None if arguments is None else Step("function", "scale", arguments)


def build_tail(net: nn.Module, steps: Sequence[Step]) -> nn.Sequential:
    """What follows the first linear map of a head: copies of modules, and functions as modules."""
    tail = nn.Sequential(*[_built(net, step) for step in steps])
    tail.training = net.training
    return tail


def _built(net: nn.Module, step: Step) -> nn.Module:
    if step.kind == "function":
        made = _FUNCTIONS[step.name][0](**dict(step.arguments))
        made.training = net.training
        return made
    try:
        return copy.deepcopy(net.get_submodule(step.name))
    except AttributeError as error:
        raise InputError(f"a network with a submodule '{step.name}'", type(net).__name__) from error
