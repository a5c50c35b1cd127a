"""What the outputs of a network mean: `Classes`, `Labels` or `Values`."""

from gduq.targets.base import FirstLook, Target, target_from
from gduq.targets.classes import Classes
from gduq.targets.inference import infer_target, resolve_target
from gduq.targets.labels import Labels
from gduq.targets.values import Values

__all__ = [
    "Classes",
    "FirstLook",
    "Labels",
    "Target",
    "Values",
    "infer_target",
    "resolve_target",
    "target_from",
]
