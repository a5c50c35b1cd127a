"""A config becomes a run folder: data, training, calibration, scores."""

__all__: list[str] = []
