"""What the shell offers after TAB; nothing heavy is imported to answer it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gduq.errors import InputError, did_you_mean

__all__ = ["CALIBRATORS", "FIXED", "TABLES", "among", "check_calibrator", "datasets"]

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

# Those of gduq.calibration.METHODS, and of gduq.evaluation.fixed_maps; a test compares them too.
CALIBRATORS = (
    "temperature",
    "ensemble_temperature",
    "vector",
    "matrix",
    "dirichlet",
    "isotonic",
    "histogram",
    "spline",
    "order_invariant",
    "density",
    "anchor_aware",
    "cagcn",
    "gats",
    "deviation",
    "isotonic_levels",
    "per_label",
    "per_label_isotonic",
)
FIXED = ("t2", "mean_logits", "rescaled_paper", "rescaled_released")
_CLASSES = ("scaling", "calibration", "binning", "temperature", "label", "isotonic")  # end so


def check_calibrator(name: str) -> None:
    """Raise for a name that no calibrator can have; names of classes are looked up later."""
    given = name.partition("+")[0].lower()
    if given not in (*CALIBRATORS, *FIXED) and not given.endswith(_CLASSES):
        raise InputError("a calibrator", repr(name), did_you_mean(name, CALIBRATORS))


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
