"""What the outputs of a network mean: `Classes`, `Labels` or `Values`."""

from gduq.targets.base import FirstLook, Target, target_from
from gduq.targets.classes import Classes
from gduq.targets.labels import Labels
from gduq.targets.telling import tell_target
from gduq.targets.values import Values

__all__ = [
    "Classes",
    "FirstLook",
    "Labels",
    "Target",
    "Values",
    "target_from",
    "tell_target",
]
