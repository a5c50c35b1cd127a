"""Datasets and the shifts they come with."""

from gduq.data.view import Splits, View

__all__ = ["Splits", "View"]
