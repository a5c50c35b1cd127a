"""Python objects by name: ``package.module:Name``."""

from __future__ import annotations

import importlib
import importlib.util
import operator
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

from gduq.errors import InputError

__all__ = ["check_outside", "find_object"]


def find_object(name: str) -> Any:
    """What ``package.module:Name`` stands for; modules of the working folder are found too.

    Example:
        >>> find_object("math:pi")
        3.141592653589793
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InputError("package.module:Name", repr(name))
    _look_here()
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # whatever a user's module does when it is imported
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"a module {module!r} that can be imported", reason) from error
    try:
        return operator.attrgetter(attribute)(found)
    except AttributeError as error:
        raise InputError(f"{attribute!r} in the module {module}", "none of that name") from error


def check_outside(name: str, folder: Path) -> None:
    """Raise where the module of ``package.module:Name``, or a package of it, lies in a folder.

    A package is imported only when it was seen to lie outside.
    """
    _look_here()
    inside = folder.resolve()
    for module in accumulate(name.partition(":")[0].split("."), "{}.{}".format):
        try:
            found = importlib.util.find_spec(module)
        except Exception:  # whatever a package does when it is imported: `find_object` tells
            return
        if found is None:
            return
        for file in filter(None, [found.origin, *(found.submodule_search_locations or ())]):
            if Path(file).resolve().is_relative_to(inside):
                raise InputError("a module outside of the run folder", f"{module} in {folder}")


def _look_here() -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
