"""Data of any form: views and splits, files of graphs and molecules, the cache, sets by name."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gduq.data.catalog import load, names
    from gduq.data.describe import compare, plot
    from gduq.data.files import convert, read, save, stream
    from gduq.data.laplacian import add_laplacian, laplacian_encoding
    from gduq.data.packed import Packed
    from gduq.data.splits import Splits
    from gduq.data.view import View

# Imported on first use: names can be listed without torch.
_HOME = {
    "Packed": "packed",
    "Splits": "splits",
    "View": "view",
    "add_laplacian": "laplacian",
    "compare": "describe",
    "convert": "files",
    "laplacian_encoding": "laplacian",
    "load": "catalog",
    "names": "catalog",
    "plot": "describe",
    "read": "files",
    "save": "files",
    "stream": "files",
}

__all__ = ["Packed", "Splits", "View", "add_laplacian", "compare", "convert", "laplacian_encoding",
           "load", "names", "plot", "read", "save", "stream"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gduq.data' has no attribute {name!r}")
    value = getattr(import_module(f"gduq.data.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
