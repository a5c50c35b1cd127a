"""`save` and `load`: a trained model in one folder, the same in any process, never pickle."""

from gduq.bundle.save_load import BundleInfo, describe, load, save

__all__ = ["BundleInfo", "describe", "load", "save"]
