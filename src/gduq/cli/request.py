"""What ``gduq predict`` is asked for, and the bundle it means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gduq.runs.folder import RunFolder

__all__ = ["Request", "bundle_of"]


@dataclass(frozen=True)
class Request:
    """The options of ``gduq predict`` that make a service; see its help."""

    bundle: Path
    calibration_data: Path | None = None
    calibrator: str | None = None
    alpha: float = 0.1
    coverage: float = 0.9
    accuracy: float | None = None
    score: str | None = None
    smiles: str | None = None
    target: str | tuple[str, ...] | None = None
    keep: tuple[str, ...] = ()
    max_novelty: float = 0.99
    max_epistemic: float = 0.99
    batch_size: int = 256
    device: str = "cpu"
    net: str | None = None
    call: str | None = None


def bundle_of(path: Path) -> tuple[Path, RunFolder | None]:
    """The bundle, and the run it belongs to if a run folder is given."""
    if (path / "config.json").is_file():
        return path / "bundle", RunFolder(path)
    return path, None
