"""What the outputs of a network mean: `Classes`."""

from gduq.targets.base import Target, target_from
from gduq.targets.classes import Classes, class_numbers

__all__ = ["Classes", "Target", "class_numbers", "target_from"]
