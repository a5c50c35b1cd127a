"""The fair comparison: every method on the same networks, calibrated alike, under shift."""

__all__: list[str] = []
