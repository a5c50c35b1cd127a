"""Data of any form: files of graphs and molecules, datasets by name, encodings, the cache."""

from typing import TYPE_CHECKING

from gduq import lazy_names

if TYPE_CHECKING:
    from gduq.data.catalog import load, names
    from gduq.data.files import read, save, stream
    from gduq.data.generated import add_laplacian
    from gduq.graphs import Packed, Splits, View

__all__ = ["Packed", "Splits", "View", "add_laplacian", "load", "names", "read", "save", "stream"]

# names can be listed without torch
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "gduq.data.catalog": "load names",
        "gduq.data.files": "read save stream",
        "gduq.data.generated": "add_laplacian",
        "gduq.graphs": "Packed Splits View",
    },
)
