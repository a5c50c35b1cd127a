"""`RunConfig`: everything that decides a run, checked, and found again by its hash."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError, field_validator

from gduq.errors import InputError, did_you_mean
from gduq.runs.config_parts import MOST_SEED, DataConfig, ModelConfig, Part, TrainingConfig
from gduq.runs.method import MethodConfig
from gduq.runs.source import check_stored

__all__ = ["RunConfig"]

_VERSION = 2  # part of the hash: raise it when the same config no longer means the same run


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
        gduq.errors.InputError: expected a known key in a config, got 'training.epoch'. Did ...
    """

    data: DataConfig
    model: ModelConfig = ModelConfig()
    method: MethodConfig = MethodConfig()
    training: TrainingConfig = TrainingConfig()
    calibrators: tuple[str, ...] = ("temperature",)
    resamples: int = Field(200, ge=2, le=100_000)
    seed: int = Field(0, ge=0, le=MOST_SEED)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**_with_own_defaults(values))
        except ValidationError as error:
            raise _explained(error) from None

    @field_validator("calibrators")
    @classmethod
    def _methods(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if set(names) <= {"temperature"}:  # the usual one, checked without torch
            return tuple(dict.fromkeys(names))
        from gduq.evaluation.named_calibrators import check_name

        kept = [name for name in dict.fromkeys(names) if name != "none"]
        for name in kept:
            check_name(name)
        return tuple(kept)

    # -- in ------------------------------------------------------------------------------------

    @classmethod
    def from_toml(
        cls, path: str | Path, changes: Mapping[str, Any] | None = None, trust_source: bool = False
    ) -> RunConfig:
        """Read a TOML file.

        Args:
            path: The file.
            changes: Values that replace those of the file, by dotted key: ``"training.epochs"``.
            trust_source: Whether a source ``package.module:Name`` may be imported: it is code.
        """
        if Path(path).exists() and not Path(path).is_file():
            raise InputError("a TOML file with a config", f"{path}, which is no regular file")
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError("a TOML file with a config", f"{path} ({error})") from None
        return cls.from_values(_toml(text, path), changes or {}, trust_source)

    @classmethod
    def from_run(
        cls,
        folder: str | Path,
        changes: Mapping[str, Any] | None = None,
        trust_source: bool = False,
    ) -> RunConfig:
        """The config of a run folder, with arguments as `from_toml` has them."""
        path = Path(folder) / "config.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError("a run folder with its config.json", f"{path} ({error})") from None
        if not isinstance(values, dict):
            raise InputError("a run folder with its config.json", f"{path}, which is no config")
        return cls.from_values(values, changes or {}, trust_source, Path(folder))

    @classmethod
    def from_values(
        cls,
        values: Mapping[str, Any],
        changes: Mapping[str, Any],
        trust_source: bool = False,
        folder: Path | None = None,
    ) -> RunConfig:
        """From nested values of a file or folder, some of them replaced by dotted key."""
        data = values.get("data")
        if isinstance(data, Mapping) and "data.source" not in changes:
            check_stored(data.get("source"), trust_source, folder)
        return cls(**_merged(dict(values), changes))

    def with_(self, changes: Mapping[str, Any]) -> RunConfig:
        """A copy with some values changed, by dotted key.

        Example:
            >>> config = RunConfig(data={"name": "cbas/color/concept"})
            >>> config.with_({"training.epochs": 7, "seed": 2}).training.epochs
            7
        """
        values = self.model_dump()
        if "data.source" in changes:  # what another source holds is yet to be seen
            values["data"] = {"seed": self.data.seed, "limit": self.data.limit}
        if "method.pretrained_from" in changes:  # what another bundle holds is yet to be seen
            values["method"].pop("pretrained_digest")
        return RunConfig(**_merged(values, changes))

    # -- out -----------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """What decides the trained model and its predictions."""
        return {
            "version": _VERSION,
            "data": self.data.identity(),
            "model": self.model.model_dump(mode="json"),
            "method": self.method.identity(),
            "training": self.training.model_dump(mode="json"),
            "seed": self.seed,
        }

    @property
    def hash(self) -> str:
        """16 hexadecimal digits of SHA-256 over `identity`."""
        text = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def folder_name(self) -> str:
        """The name of the run's folder: the hash, of own data with words before it."""
        if self.data.source is None:
            return self.hash
        stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(self.data.name).stem).strip("-")[:40]
        kind = self.method.recipe_name if self.method.kind == "anchored" else self.method.kind
        seed = f"-seed{self.seed}" if self.seed else ""
        return f"{stem or 'data'}-{kind}{seed}-{self.hash[:8]}"

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
        if self.model.conv == "auto":
            return f"{self.data.name} {_SAID.get(kind, kind)}{own}, seed {self.seed}"
        return f"{self.data.name} {self.model.conv} {kind}{own}, seed {self.seed}"

    def to_toml(self) -> str:
        """As `from_toml` reads it; what is ``None`` is left out, no patience is 0."""
        values = self.model_dump(mode="json", exclude_none=True)
        values["training"].setdefault("patience", 0)  # left out, own data would have some
        lines = [f"{k} = {json.dumps(v)}" for k, v in values.items() if not isinstance(v, dict)]
        for part, content in values.items():
            if isinstance(content, dict):
                lines += ["", f"[{part}]", *(f"{k} = {json.dumps(v)}" for k, v in content.items())]
        return "\n".join(lines) + "\n"


_SAID = {"vanilla": "plain network", "choose": "the chosen mixture", "mcdropout": "MC dropout"}

# For data of one's own: a network with a head, trained until validation rows say stop.
_OWN_DEFAULTS: dict[str, dict[str, Any]] = {
    "model": {"conv": "auto", "hidden_channels": 96, "head": "mlp", "dropout": 0.0},
    "method": {"kind": "choose"},
    "training": {"epochs": 100, "patience": 15},
}


def _with_own_defaults(values: dict[str, Any]) -> dict[str, Any]:
    data = values.get("data")
    if not isinstance(data, Mapping) or data.get("source") is None:
        return values
    found: dict[str, Any] = {"calibrators": (), **values}  # `gduq.fit` has calibrated it already
    for part, defaults in _OWN_DEFAULTS.items():
        given = values.get(part, {})
        found[part] = {**defaults, **given} if isinstance(given, Mapping) else given
    model, method = found["model"], found["method"]
    drops = isinstance(method, Mapping) and method.get("kind") == "mcdropout"
    if drops and isinstance(model, dict) and "dropout" not in values.get("model", {}):
        model["dropout"] = 0.1  # without any there is nothing to leave on
    return found


def _toml(text: str, path: str | Path) -> dict[str, Any]:
    try:
        import tomllib  # type: ignore[import-not-found, unused-ignore]
    except ImportError:  # Python 3.10
        import tomli as tomllib  # type: ignore[import-not-found, no-redef, unused-ignore]
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of any length, lists of any depth
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
    return InputError(f"a fitting value for {key!r}: {first['msg']}", f"{first['input']!r:.80}")


def _unknown_key(where: list[str]) -> InputError:
    part = _PARTS.get(where[0]) if len(where) > 1 else RunConfig
    known = list((part or RunConfig).model_fields)
    elsewhere = [f"{p}.{where[-1]}" for p, c in _PARTS.items() if where[-1] in c.model_fields]
    there = " and ".join(map(repr, elsewhere))
    do = f"There is {there}." if elsewhere else did_you_mean(where[-1], known)
    return InputError("a known key in a config", repr(".".join(where)), do)
