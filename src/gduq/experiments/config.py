"""`RunConfig`: everything that decides a run, checked, and found again by its hash."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from gduq.errors import InputError
from gduq.experiments.method import MethodConfig, Part
from gduq.nn.settings import Conv, HeadKind, Positional, Readout

__all__ = ["DataConfig", "MethodConfig", "ModelConfig", "RunConfig", "TrainingConfig"]

_VERSION = 2  # part of the hash: raise it when the same config no longer means the same run


class DataConfig(Part):
    """What to learn from: arguments of `gduq.data.load`."""

    name: str
    seed: int = Field(0, ge=0)
    limit: int | None = Field(None, ge=1)

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        from gduq.data.catalog import find

        find(name)
        return name


class ModelConfig(Part):
    """The backbone: arguments of `gduq.nn.GNN`; widths of input and output come from the data."""

    conv: Conv = "gin"
    hidden_channels: int = Field(300, ge=1)
    num_layers: int = Field(3, ge=1)
    head: HeadKind = "linear"
    readout: Readout = "mean"
    virtual_node: bool = False
    dropout: float = Field(0.5, ge=0, lt=1)
    positional: Positional | None = None
    positional_channels: int = Field(4, ge=1)


class TrainingConfig(Part):
    """Arguments of `gduq.fit`, for the network."""

    epochs: int = Field(100, ge=1)
    lr: float = Field(1e-3, gt=0)
    batch_size: int = Field(32, ge=1)
    weight_decay: float = Field(0.0, ge=0)
    milestones: tuple[int, ...] = ()
    gamma: float = Field(0.1, gt=0, le=1)
    select: Literal["best", "last"] = "best"
    patience: int | None = Field(None, ge=1)
    class_weights: Literal["balanced"] | tuple[float, ...] | None = None


class RunConfig(Part):
    """One run: data, backbone, method, training, calibrators, seed.

    ``calibrators`` and ``resamples`` are not part of the hash: more of them need no training.

    Example:
        >>> config = RunConfig(data={"name": "cbas/color/concept"}, model={"conv": "gcn"}, seed=1)
        >>> config.training.epochs, len(config.hash)
        (100, 16)
        >>> RunConfig(data={"name": "cbas/color/concept"}, training={"epoch": 5})
        Traceback (most recent call last):
        ...
        gduq.errors.InputError: expected a known key in a config, got 'training.epoch'. Near: ...
    """

    data: DataConfig
    model: ModelConfig = ModelConfig()
    method: MethodConfig = MethodConfig()
    training: TrainingConfig = TrainingConfig()
    calibrators: tuple[str, ...] = ("temperature",)
    resamples: int = Field(200, ge=2)
    seed: int = Field(0, ge=0)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _explained(error) from None

    @field_validator("calibrators")
    @classmethod
    def _methods(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        from gduq.experiments.scores import check_calibrators

        return check_calibrators(names)

    # -- in ------------------------------------------------------------------------------------

    @classmethod
    def from_toml(cls, path: str | Path, changes: Mapping[str, Any] | None = None) -> RunConfig:
        """Read a TOML file.

        Args:
            path: The file.
            changes: Values that replace those of the file, by dotted key: ``"training.epochs"``.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError("a TOML file with a config", f"{path} ({error})") from None
        return cls(**_merged(_toml(text, path), changes or {}))

    def with_(self, changes: Mapping[str, Any]) -> RunConfig:
        """A copy with some values changed, by dotted key.

        Example:
            >>> config = RunConfig(data={"name": "cbas/color/concept"})
            >>> config.with_({"training.epochs": 7, "seed": 2}).training.epochs
            7
        """
        values = self.model_dump()
        if "method.pretrained_from" in changes:  # what another bundle holds is yet to be seen
            values["method"].pop("pretrained_digest")
        return RunConfig(**_merged(values, changes))

    # -- out -----------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """What decides the trained model and its predictions."""
        return {
            "version": _VERSION,
            "data": self.data.model_dump(mode="json"),
            "model": self.model.model_dump(mode="json"),
            "method": self.method.identity(),
            "training": self.training.model_dump(mode="json"),
            "seed": self.seed,
        }

    @property
    def hash(self) -> str:
        """16 hexadecimal digits of SHA-256 over `identity`; the name of the run's folder."""
        text = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """A short name for people."""
        method = self.method
        kind = f"ensemble of {method.size}" if method.kind == "ensemble" else method.kind
        if method.is_anchored:
            kind += " anchored" if method.kind == "ensemble" else ""
            kind += f" ({method.recipe_name})"
            kind += "" if method.at is None else f" at {method.at}"
        own = f", on {method.pretrained_from}" if method.pretrained_digest else ""
        return f"{self.data.name} {self.model.conv} {kind}{own}, seed {self.seed}"

    def to_toml(self) -> str:
        """As `from_toml` reads it; what is ``None`` is left out."""
        values = self.model_dump(mode="json", exclude_none=True)
        lines = [f"{k} = {json.dumps(v)}" for k, v in values.items() if not isinstance(v, dict)]
        for part, content in values.items():
            if isinstance(content, dict):
                lines += ["", f"[{part}]", *(f"{k} = {json.dumps(v)}" for k, v in content.items())]
        return "\n".join(lines) + "\n"


def _toml(text: str, path: str | Path) -> dict[str, Any]:
    try:
        import tomllib  # type: ignore[import-not-found, unused-ignore]
    except ImportError:  # Python 3.10
        try:
            import tomli as tomllib  # type: ignore[import-not-found, no-redef, unused-ignore]
        except ImportError:
            raise InputError(
                "tomli, to read TOML with Python 3.10", "none", "pip install tomli."
            ) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError("valid TOML", f"{path}: {error}") from None


def _merged(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values with some replaced, by dotted key; the given ones are left as they are."""
    merged = {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}
    for key, value in changes.items():
        part, _, name = key.partition(".")
        if not name:
            merged[part] = value
        elif isinstance(merged.setdefault(part, {}), dict):
            merged[part][name] = value
        else:
            raise InputError(f"a table [{part}] in the config", repr(merged[part]))
    return merged


_PARTS: dict[str, type[BaseModel]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "method": MethodConfig,
    "training": TrainingConfig,
}


def _explained(error: ValidationError) -> InputError:
    """The first thing that is wrong, in the library's words."""
    first = error.errors()[0]
    where = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        return _unknown_key(where)
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, InputError):
        return inner
    key = ".".join(where[:2])
    if first["type"] == "missing":
        return InputError(f"a value for {key!r} in a config", "none")
    return InputError(f"a fitting value for {key!r}: {first['msg']}", repr(first["input"]))


def _unknown_key(where: list[str]) -> InputError:
    part = _PARTS.get(where[0]) if len(where) > 1 else RunConfig
    known = list((part or RunConfig).model_fields)
    near = difflib.get_close_matches(where[-1], known, n=2, cutoff=0.5)
    everywhere = [f"{p}.{where[-1]}" for p, c in _PARTS.items() if where[-1] in c.model_fields]
    names = near or everywhere or known
    return InputError(
        "a known key in a config", repr(".".join(where)), f"Near: {', '.join(names)}."
    )
