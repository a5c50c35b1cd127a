"""Distribution shift for anybody's data: cuts, domains to cut along, and corruptions."""

from gduq.shifts.corruptions import LEVELS, edge_drop, edge_rewire, feature_mask, feature_noise
from gduq.shifts.cuts import concept, covariate, no_shift, tails
from gduq.shifts.domains import by, degree, feature, size, target, time
from gduq.shifts.groups import class_out, group, scaffold

__all__ = ["LEVELS", "by", "class_out", "concept", "covariate", "degree", "edge_drop",
           "edge_rewire", "feature", "feature_mask", "feature_noise", "group", "no_shift",
           "scaffold", "size", "tails", "target", "time"]  # fmt: skip
