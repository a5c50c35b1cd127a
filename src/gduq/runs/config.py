"""`RunConfig`: everything that decides a run, checked, and found again by its hash."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from gduq.data.source import check_stored, infer_columns, is_object
from gduq.errors import InputError, did_you_mean
from gduq.nn.gnn_settings import Conv, HeadKind, Positional, Readout

__all__ = ["DataConfig", "MethodConfig", "ModelConfig", "RunConfig", "TrainingConfig"]

_VERSION = 2  # part of the hash: raise it when the same config no longer means the same run
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]  # what every source of randomness takes
Epochs = Annotated[int, Field(ge=1, le=10_000_000)]  # more is a slip of the pen
Share = Annotated[float, Field(ge=0, lt=1)]


class Part(BaseModel):
    """A part of a config: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(Part):
    """What to learn from; what is left out is inferred from the source.

    Args:
        name: Of a dataset, as `gduq.data.load` takes it; of own data, what it is called.
        source: Of own data: a table of molecules (.csv, .tsv), a .safetensors file of graphs, or
            ``package.module:Name`` of a PyG dataset; it is known by the digest of its content.
        targets: Columns to learn, with ``units``, one per target.
        units: See ``targets``.
        smiles: Column of SMILES.
        ids: Columns that name a row; answers of `gduq predict` keep them.
        task: ``"classes"``, ``"labels"`` or ``"values"``, where the columns do not tell.
        by: What the shifted test differs in: ``"scaffold"``, ``"size"``, ``"group=COLUMN"``,
            ``"time=COLUMN"`` or ``"random"`` for no shift.
        digest: Of the source's content.
        seed: Of all that is random in the data and its cut.
        limit: Rows in all splits together.
    """

    name: str = ""
    source: str | None = None
    targets: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    smiles: str | None = None
    ids: tuple[str, ...] = ()
    task: Literal["classes", "labels", "values"] | None = None
    by: str | None = None
    digest: str | None = None
    seed: Seed = 0
    limit: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _infer(self) -> DataConfig:
        if self.source is not None:
            self.__dict__.update(infer_columns(self.model_dump()))
            return self
        given = self.model_dump(exclude={"name", "seed", "limit"}, exclude_defaults=True)
        if given:
            raise InputError(f"data.source with data.{next(iter(given))}", f"data {self.name!r}")
        if not self.name:
            raise InputError("a value for 'data.name' or 'data.source' in a config", "neither")
        from gduq.data.catalog import find

        find(self.name)
        return self

    @property
    def is_object(self) -> bool:
        """Whether the source is a Python object and not a file."""
        return self.source is not None and is_object(self.source)


class ModelConfig(Part):
    """The backbone: arguments of `gduq.nn.GNN`; widths of input and output come from the data.

    ``conv`` may also be ``"bond"`` for `gduq.nn.BondGNN`, or ``"auto"``, which is that for
    molecules and ``"gin"`` for other graphs.
    """

    conv: Conv | Literal["auto", "bond"] = "gin"
    hidden_channels: int = Field(300, ge=1, le=16_384)
    num_layers: int = Field(3, ge=1, le=256)
    head: HeadKind = "linear"
    readout: Readout = "mean"
    virtual_node: bool = False
    dropout: Share = 0.5
    positional: Positional | None = None
    positional_channels: int = Field(4, ge=1, le=1024)


class TrainingConfig(Part):
    """Arguments of `gduq.fit`, for the network; ``patience`` 0 never stops early, as ``None``."""

    epochs: Epochs = 100
    lr: float = Field(1e-3, gt=0)
    batch_size: int = Field(32, ge=1, le=2**20)
    weight_decay: float = Field(0.0, ge=0)
    milestones: tuple[int, ...] = ()
    gamma: float = Field(0.1, gt=0, le=1)
    patience: int | None = Field(None, ge=1)
    class_weights: Literal["balanced"] | tuple[float, ...] | None = None

    @field_validator("patience", mode="before")
    @classmethod
    def _never(cls, patience: object) -> object:
        return None if type(patience) is int and patience == 0 else patience  # TOML has no null


RECIPE_FIELDS = ("at", "anchors", "scope", "num_anchors", "init", "freeze", "draws", "mask")


class MethodConfig(Part):
    """Where the uncertainty comes from.

    ============== ===========================================================================
    ``vanilla``    the plain network
    ``anchored``   `gduq.anchor` with a ``recipe``; the fields from ``at`` to ``mask`` change
                   single choices of it
    ``heads``      `gduq.HeadEnsemble` on the plain network
    ``laplace``    `gduq.LastLayerLaplace` on it
    ``choose``     `gduq.choose` within a ``budget``
    ``mcdropout``  the plain network with dropout left on for ``passes`` passes
    ``ensemble``   ``size`` plain networks with seeds ``seed``, ``seed + 1``, ...
                   (ensembles of neighbouring seeds share members)
    ============== ===========================================================================

    All but ``vanilla``, ``ensemble`` and the recipe ``"paper"`` (unless ``pretrained_from`` is
    ``"vanilla"``) stand on the network of the vanilla run with the same config, which is trained
    first if need be.

    ``epochs`` are those on top of the trained network. Without them a head stops when validation
    rows say so, ``"thawed"`` takes a quarter of the network's epochs, ``"paper"`` as many.
    ``calibrate`` is as in `gduq.fit`, with ``"none"`` for no calibration.
    """

    kind: Literal["vanilla", "anchored", "ensemble", "mcdropout", "laplace", "heads", "choose"] = (
        "vanilla"
    )
    recipe: Literal["head", "thawed", "paper"] | None = None
    at: int | str | None = None
    anchors: Literal["gaussian", "shuffle"] | None = None
    scope: Literal["row", "graph"] | None = None
    num_anchors: int | None = Field(None, ge=1, le=100_000)
    init: Literal["random", "identity"] | None = None
    freeze: bool | None = None
    draws: int | None = Field(None, ge=1, le=10_000)
    mask: Share | tuple[Share, ...] | None = None
    calibrate: Literal["shifted", "clean", "none"] | None = None
    pretrained_from: Literal["vanilla"] | None = None
    epochs: Epochs | None = None
    size: int = Field(3, ge=1, le=1000)
    passes: int = Field(10, ge=1, le=10_000)
    budget: float = Field(1.2, ge=1, le=100)

    @property
    def recipe_name(self) -> str:
        """The recipe, which without a name follows from the place, as in `gduq.anchor`."""
        return self.recipe or ("head" if self.at in (None, "head") else "thawed")

    @property
    def on_network(self) -> bool:
        """Whether the model is made from the network of the vanilla run."""
        if self.kind == "anchored":
            return self.recipe_name != "paper" or self.pretrained_from is not None
        return self.kind not in ("vanilla", "ensemble")

    def identity(self) -> dict[str, Any]:
        """The fields that matter for this kind."""
        own: dict[str, tuple[str, ...]] = {"anchored": RECIPE_FIELDS, "ensemble": ("size",)}
        own |= {"mcdropout": ("passes",), "choose": ("budget",)}
        kept = ("kind", "calibrate", *own.get(self.kind, ()))
        found = {name: getattr(self, name) for name in kept}
        if self.kind == "anchored":
            found["recipe"] = self.recipe_name
        if self.on_network:
            found |= {"start": "vanilla", "epochs": self.epochs}
        return found


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
    seed: Seed = 0

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**_with_own_defaults(values))
        except ValidationError as error:
            raise _explained(error) from None

    @field_validator("calibrators")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        named = tuple(dict.fromkeys(name for name in names if name != "none"))
        if named:  # torch is imported then, which takes seconds
            from gduq.calibration import parse_name

            for name in named:
                parse_name(name)
        return named

    @classmethod
    def read(
        cls, path: str | Path, changes: Mapping[str, Any] | None = None, trust_source: bool = False
    ) -> RunConfig:
        """Read a TOML file, or the config of a run folder.

        Args:
            path: The file or folder.
            changes: Values that replace those there, by dotted key: ``"training.epochs"``.
            trust_source: Whether a source ``package.module:Name`` may be imported: it is code.
        """
        folder = Path(path) if Path(path).is_dir() else None
        file = Path(path) if folder is None else folder / "config.json"
        what = "a TOML file with a config" if folder is None else "a run folder with config.json"
        try:
            if not file.is_file():  # a pipe would never end
                raise OSError("no regular file")
            text = file.read_text(encoding="utf-8")
            values = _parse_toml(text) if folder is None else json.loads(text)
            if not isinstance(values, dict):
                raise ValueError("no config")
        except (OSError, ValueError, RecursionError) as error:  # ValueError: not valid, or no text
            raise InputError(what, f"{file} ({error})") from None
        return cls.from_values(values, changes or {}, trust_source, folder)

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
        merged = {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}
        for key, value in changes.items():
            part, _, name = key.partition(".")
            if not name:
                merged[part] = value
            elif isinstance(merged.setdefault(part, {}), dict):
                merged[part][name] = value
            else:
                raise InputError(f"a table [{part}] in the config", repr(merged[part]))
        return cls(**merged)

    def with_(self, changes: Mapping[str, Any]) -> RunConfig:
        """A copy with some values changed, by dotted key.

        Example:
            >>> config = RunConfig(data={"name": "cbas/color/concept"})
            >>> config.with_({"training.epochs": 7, "seed": 2}).training.epochs
            7
        """
        values = self.model_dump()
        if "data.source" in changes:  # what another source holds is yet to be read
            values["data"] = {"seed": self.data.seed, "limit": self.data.limit}
        return RunConfig.from_values(values, changes)

    def identity(self) -> dict[str, Any]:
        """What decides the trained model and its predictions."""
        own = {"targets", "units", "smiles", "task", "by", "digest"}
        rows = {"seed", "limit", *(own if self.data.source else {"name"})}
        return {
            "version": _VERSION,
            "data": self.data.model_dump(mode="json", include=rows),
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
        if method.kind == "anchored":
            kind += f" ({method.recipe_name})"
            kind += "" if method.at is None else f" at {method.at}"
        network = "" if self.model.conv == "auto" else f" {self.model.conv}"
        if self.model.conv == "auto":
            kind = _TITLES.get(kind, kind)
        return f"{self.data.name}{network} {kind}, seed {self.seed}"


_TITLES = {"vanilla": "plain network", "choose": "the chosen mixture", "mcdropout": "MC dropout"}

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


def _parse_toml(text: str) -> dict[str, Any]:
    try:
        import tomllib  # type: ignore[import-not-found, unused-ignore]
    except ImportError:  # Python 3.10
        import tomli as tomllib  # type: ignore[import-not-found, no-redef, unused-ignore]
    return tomllib.loads(text)  # type: ignore[no-any-return, unused-ignore]


def _explained(error: ValidationError) -> InputError:
    """The first thing that is wrong, in the library's words."""
    first = error.errors()[0]
    key, inner = ".".join(map(str, first["loc"][:2])), first.get("ctx", {}).get("error")
    if isinstance(inner, InputError):
        return inner
    if first["type"] == "missing":
        return InputError(f"a value for {key!r} in a config", "none")
    if first["type"] != "extra_forbidden":
        return InputError(f"a fitting value for {key!r}: {first['msg']}", f"{first['input']!r:.80}")
    known = dict[str, str]()
    for part in (DataConfig, ModelConfig, MethodConfig, TrainingConfig):
        name = part.__name__.removesuffix("Config").lower()
        known |= {field: f"{name}.{field}" for field in part.model_fields}
    known |= {field: field for field in RunConfig.model_fields}
    do = did_you_mean(first["loc"][-1], known)
    return InputError("a known key in a config", repr(key), do)
