"""The load test of ``make bench``, with fewer requests."""

from __future__ import annotations

import pytest

pytest.importorskip("uvicorn", reason="needs gduq[serve]")
pytest.importorskip("rdkit")


@pytest.mark.slow
def test_under_load_answers_stay_right_and_memory_flat():
    import serving  # of reproduction/benchmarks

    found = {what.partition(": ")[2]: value for what, value, _ in serving.rows(320)}
    assert found["largest difference to predict"] < 1e-4
    assert found["errors"] == 0
    assert found["memory at the end / at the start"] < 1.1
