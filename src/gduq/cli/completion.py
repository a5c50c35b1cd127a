"""What the shell offers after TAB; nothing heavy is imported to answer it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = ["TABLES", "among", "datasets"]

# The names of gduq.paper.tables.TABLES, which takes torch to import, and the benchmark of
# molecules; a test compares them.
TABLES = (
    "node-shift",
    "node-layerwise",
    "size-shift",
    "graph-shift",
    "anchor-source",
    "ood-detection",
    "error-prediction",
    "rotation",
    "feature-noise",
    "pretrained",
    "runtime",
    "parameters",
    "anchor-gaussians",
    "ntk-spectrum",
    "molecules",
)


def among(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Offer those of some names that begin as the word does.

    Example:
        >>> among(["local", "ray"])("l")
        ['local']
    """
    known = tuple(names)

    def complete(incomplete: str) -> list[str]:
        return [name for name in known if name.startswith(incomplete)]

    return complete


def datasets(incomplete: str) -> list[str]:
    """Names of datasets.

    Example:
        >>> datasets("cbas")
        ['cbas/color/covariate', 'cbas/color/concept', 'cbas/color/no_shift']
    """
    from gduq.data.catalog import names

    return among(names())(incomplete)
