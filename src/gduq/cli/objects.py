"""Objects by name: ``package.module:Name``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from gduq.errors import InputError

__all__ = ["find_object", "make_network"]


def find_object(name: str) -> Any:
    """What ``package.module:Name`` stands for; modules of the working folder are found too.

    Example:
        >>> find_object("math:pi")
        3.141592653589793
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InputError("package.module:Name", repr(name))
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # whatever a user's module does when it is imported
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"a module {module!r} that can be imported", reason) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError(f"{attribute!r} in the module {module}", "none of that name")
        found = getattr(found, part)
    return found


def make_network(name: str) -> Any:
    """The network that ``package.module:Name`` is, or that calling it gives."""
    from torch import nn

    found = find_object(name)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise InputError(f"a network, or a function that makes one, as {name}", repr(found))
        try:
            found = found()
        except TypeError as error:
            raise InputError(
                f"{name} to be called without arguments",
                str(error),
                "Name a function that builds your network.",
            ) from error
    if not isinstance(found, nn.Module):
        raise InputError(f"a torch.nn.Module from {name}", type(found).__name__)
    return found
