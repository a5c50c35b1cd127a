"""For every test and doctest: caches go to a temporary folder, nothing is left behind; one thread,
as tiny graphs only wait for more."""

from __future__ import annotations

import os
import tempfile

_cache = tempfile.TemporaryDirectory(prefix="gduq-tests-")
os.environ["GDUQ_CACHE"] = _cache.name
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
