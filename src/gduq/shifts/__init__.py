"""Distribution shift for anybody's data: cuts, domains to cut along, and corruptions."""

from gduq.shifts.corruptions import LEVELS, edge_drop, edge_rewire, feature_mask, feature_noise
from gduq.shifts.cuts import by, covariate, cut, group, no_shift, size, tails

__all__ = ["LEVELS", "by", "covariate", "cut", "edge_drop", "edge_rewire",
           "feature_mask", "feature_noise", "group", "no_shift", "size", "tails"]  # fmt: skip
