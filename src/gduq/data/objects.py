"""Python objects by name: ``package.module:Name``."""

from __future__ import annotations

import importlib
import operator
import sys
from pathlib import Path
from typing import Any

from gduq.errors import InputError

__all__ = ["find_object"]


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
    try:
        return operator.attrgetter(attribute)(found)
    except AttributeError as error:
        raise InputError(f"{attribute!r} in the module {module}", "none of that name") from error
