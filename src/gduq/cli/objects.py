"""Networks by name: ``package.module:Name``."""

from __future__ import annotations

from typing import Any

from gduq.data.objects import find_object
from gduq.errors import InputError

__all__ = ["find_object", "make_network"]


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
