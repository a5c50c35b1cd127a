"""The load test of ``make bench``, with fewer requests."""

from __future__ import annotations

import pytest

pytest.importorskip("uvicorn", reason="needs gduq[serve]")
pytest.importorskip("rdkit")


@pytest.mark.slow
def test_under_load_answers_stay_right_and_memory_flat():
    import serving  # of reproduction/benchmarks

    found = list(serving.rows(640))
    assert len(found) == 8
    for row in found:
        assert row["met"] or "throughput" in row["row"], row  # which needs a quiet machine
