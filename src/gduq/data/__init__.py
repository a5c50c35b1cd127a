"""Data of any form: files of graphs and molecules, datasets by name, encodings, the cache."""

from typing import TYPE_CHECKING

from gduq import lazy_names

if TYPE_CHECKING:
    from gduq.data.catalog import load, names
    from gduq.data.files import read, save, stream
    from gduq.data.laplacian import add_laplacian, laplacian_encoding
    from gduq.graphs import Packed, Splits, View

__all__ = ["Packed", "Splits", "View", "add_laplacian", "laplacian_encoding", "load", "names",
           "read", "save", "stream"]  # fmt: skip

# names can be listed without torch
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "gduq.data.catalog": "load names",
        "gduq.data.files": "read save stream",
        "gduq.data.laplacian": "add_laplacian laplacian_encoding",
        "gduq.graphs": "Packed Splits View",
    },
)
