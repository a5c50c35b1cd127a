"""`save`, `load`, `export`: a trained model in one file, or in one that runs without gduq."""

from gduq.bundle.exporting import export
from gduq.bundle.save_load import BundleInfo, describe, load, load_reference, save

__all__ = ["BundleInfo", "describe", "export", "load", "load_reference", "save"]
