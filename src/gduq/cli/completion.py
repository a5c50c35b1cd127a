"""What the shell offers after TAB, and names that exist; nothing heavy is imported for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gduq.errors import InputError, did_you_mean

__all__ = [
    "ALL_CALIBRATORS",
    "CALIBRATORS",
    "FIXED",
    "OF_FEATURES",
    "SCORES",
    "among",
    "check_calibrator",
    "check_score",
    "datasets",
]

# By what a model answers about: gduq.calibration.methods_for and gduq.novelty.scores_for, which a
# test compares too, and what may be asked of classes besides.
CALIBRATORS = {
    "classes": ("temperature", "ensemble_temperature", "vector", "matrix", "dirichlet", "isotonic",
                "histogram", "spline", "order_invariant", "density", "anchor_aware", "cagcn",
                "gats"),
    "values": ("deviation", "isotonic_levels"),
    "labels": ("per_label", "per_label_isotonic"),
}  # fmt: skip
ALL_CALIBRATORS = tuple(name for names in CALIBRATORS.values() for name in names)
FIXED = ("t2", "mean_logits", "rescaled_paper", "rescaled_released")
OF_FEATURES = ("mahalanobis", "knn")
SCORES = {
    "classes": ("novelty", "msp", "entropy", "energy", "epistemic", "spread"),
    "values": ("novelty", "std", "epistemic"),
    "labels": ("novelty", "entropy", "epistemic"),
}
_CLASSES = ("scaling", "calibration", "binning", "temperature", "label", "isotonic")  # end so


def check_calibrator(name: str, kind: str) -> None:
    """Raise for a name that no calibrator for a kind of answers can have; names of Python classes
    are looked up later."""
    given, fitting = name.partition("+")[0].lower(), CALIBRATORS.get(kind, ())
    known = (*ALL_CALIBRATORS, *FIXED)
    usable = (*fitting, *FIXED) if kind == "classes" else fitting
    if given in known and given not in usable:
        raise InputError(f"a calibrator for {kind} from {', '.join(fitting)}", repr(name))
    if given not in known and not given.endswith(_CLASSES):
        raise InputError("a calibrator", repr(name), did_you_mean(name, fitting))


def check_score(name: str, kind: str) -> None:
    """Raise for an OOD score that a kind of answers does not have."""
    names = (*SCORES.get(kind, ()), *OF_FEATURES)
    if name not in names:
        raise InputError(f"an OOD score for {kind} from {', '.join(names)}", repr(name))


def among(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Offer those of some names that begin as the word does.

    Example:
        >>> among(["local", "ray"])("l")
        ['local']
    """
    known = tuple(names)
    return lambda incomplete: [name for name in known if name.startswith(incomplete)]


def datasets(incomplete: str) -> list[str]:
    """Names of datasets that begin so."""
    from gduq.data.catalog import names

    return among(names())(incomplete)
