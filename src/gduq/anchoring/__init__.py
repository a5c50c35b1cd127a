"""Anchoring: the pair ``[h - c || c]`` at one point of any network."""

from gduq.anchoring.anchored import Anchored, anchor
from gduq.anchoring.cuts import cut_points
from gduq.anchoring.recipe import Recipe

__all__ = ["Anchored", "Recipe", "anchor", "cut_points"]
