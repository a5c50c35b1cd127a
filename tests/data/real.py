"""Real raw files: only where ``GDUQ_DATA`` names a folder that holds them."""

import os
from pathlib import Path

import pytest


def real(relative: str) -> Path:
    """A raw file or folder, or a skip that says why."""
    folder = os.environ.get("GDUQ_DATA")
    if not folder:
        pytest.skip("GDUQ_DATA is not set: no raw files")
    path = Path(folder) / relative
    if not path.exists():
        pytest.skip(f"GDUQ_DATA holds no {relative}")
    return path
