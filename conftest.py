"""For every test and doctest: caches go to a temporary folder, nothing is left behind."""

from __future__ import annotations

import os
import tempfile

_cache = tempfile.TemporaryDirectory(prefix="gduq-tests-")
os.environ["GDUQ_CACHE"] = _cache.name
