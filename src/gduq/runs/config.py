"""`RunConfig`: everything that decides a run, checked, and found again by its hash."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from gduq.data.table import infer_columns
from gduq.errors import InputError, did_you_mean
from gduq.nn.gnn_settings import Conv, HeadKind, Positional, Readout

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["DataConfig", "MethodConfig", "ModelConfig", "RunConfig", "TrainingConfig"]

_VERSION = 3  # part of the hash: raise it when the same config no longer means the same run
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
        source: Of own data: a table of molecules (.csv, .tsv) or a .safetensors file of graphs; it
            is known by the digest of its content.
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


class ModelConfig(Part):
    """The backbone: arguments of `gduq.nn.GNN`; widths of input and output come from the data.

    ``conv`` may also be ``"bond"`` for `gduq.nn.BondGNN`, or ``"auto"``, which is that for
    molecules and ``"gin"`` for other graphs. ``"laplacian"`` encodings are the data's ``pe``.
    """

    conv: Conv | Literal["auto", "bond"] = "auto"
    hidden_channels: int = Field(96, ge=1, le=16_384)
    num_layers: int = Field(3, ge=1, le=256)
    head: HeadKind = "mlp"
    readout: Readout = "mean"
    virtual_node: bool = False
    dropout: Share = 0.0
    positional: Positional | None = None
    positional_channels: int = Field(4, ge=1, le=1024)


class TrainingConfig(Part):
    """Arguments of `gduq.fit`, for the network; ``patience`` 0 never stops early."""

    epochs: Epochs = 100
    lr: float = Field(1e-3, gt=0)
    batch_size: int = Field(32, ge=1, le=2**20)
    weight_decay: float = Field(0.0, ge=0)
    milestones: tuple[int, ...] = ()
    gamma: float = Field(0.1, gt=0, le=1)
    patience: int = Field(15, ge=0)
    class_weights: Literal["balanced"] | tuple[float, ...] | None = None


_TITLES = {"choose": "the chosen mixture", "plain": "plain network"}
RECIPES = ("head", "thawed", "paper")
RECIPE_FIELDS = ("at", "anchors", "scope", "num_anchors", "init", "freeze", "draws", "mask")


class MethodConfig(Part):
    """Where the uncertainty comes from.

    =================== ======================================================================
    ``choose``          `gduq.choose` within a ``budget``
    ``plain``           the network, calibrated
    ``head``, ``thawed`` `gduq.anchor` with this recipe; the fields from ``at`` to ``mask`` change
    or ``paper``        single choices of it
    ``heads``           `gduq.HeadEnsemble` on the plain network
    ``laplace``         `gduq.LastLayerLaplace` on it
    ``ensemble``        ``size`` plain networks with seeds ``seed``, ``seed + 1``, ...
                        (ensembles of neighbouring seeds share members)
    =================== ======================================================================

    All but ``plain``, ``paper`` and ``ensemble`` stand on the network of the plain run with the
    same config, which is trained first if need be.

    ``epochs`` are those on top of the trained network. Without them a head stops when validation
    rows say so, ``"thawed"`` takes a quarter of the network's epochs. ``calibrate`` is as in
    `gduq.fit`, with ``"none"`` for no calibration; what is chosen is always calibrated.
    """

    kind: Literal["choose", "plain", "head", "thawed", "paper", "heads", "laplace", "ensemble"] = (
        "choose"
    )
    at: int | str | None = None
    anchors: Literal["gaussian", "shuffle"] | None = None
    scope: Literal["row", "graph"] | None = None
    num_anchors: int | None = Field(None, ge=1, le=100_000)
    init: Literal["random", "identity"] | None = None
    freeze: bool | None = None
    draws: int | None = Field(None, ge=1, le=10_000)
    mask: Share | tuple[Share, ...] | None = None
    calibrate: Literal["shifted", "clean", "none"] | None = None
    epochs: Epochs | None = None
    size: int = Field(3, ge=1, le=1000)
    budget: float = Field(1.2, ge=1, le=100)

    @model_validator(mode="after")
    def _check_use(self) -> MethodConfig:
        unused = () if self.kind in RECIPES else RECIPE_FIELDS
        unused = ("calibrate", *unused) if self.kind == "choose" else unused
        for name in unused:
            if getattr(self, name) is not None:
                raise InputError(f"a method that has {name}, such as head", repr(self.kind))
        return self

    @property
    def on_network(self) -> bool:
        """Whether the model is made from the network of the plain run."""
        return self.kind not in ("plain", "paper", "ensemble")


def _check_calibrators(names: tuple[str, ...]) -> tuple[str, ...]:
    if names:  # torch is imported then, which takes seconds
        from gduq.calibration import parse_name

        for name in names:
            parse_name(name)
    return tuple(dict.fromkeys(names))


class RunConfig(Part):
    """One run: data, backbone, method, training, calibrators, seed.

    ``calibrators``, beside that of `gduq.fit`, and ``resamples`` are not part of the hash: more of
    them need no training.

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
    calibrators: Annotated[tuple[str, ...], AfterValidator(_check_calibrators)] = ()
    resamples: int = Field(200, ge=2, le=100_000)
    seed: Seed = 0

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _explained(error) from None

    @classmethod
    def read(cls, path: str | Path, changes: Mapping[str, Any] | None = None) -> RunConfig:
        """Read a TOML file, or the config of a run folder.

        Args:
            path: The file or folder.
            changes: Values that replace those there, by dotted key: ``"training.epochs"``.
        """
        folder = Path(path) if Path(path).is_dir() else None
        file = Path(path) if folder is None else folder / "config.json"
        what = "a TOML file with a config" if folder is None else "a run folder with config.json"
        try:
            if not file.is_file():  # a pipe would never end
                raise OSError("no regular file")
            text = file.read_text(encoding="utf-8")
            values = tomllib.loads(text) if folder is None else json.loads(text)
            if not isinstance(values, dict):
                raise ValueError("no config")
        except (OSError, ValueError, RecursionError) as error:  # ValueError: not valid, or no text
            raise InputError(what, f"{file} ({error})") from None
        return cls.from_values(values, changes or {})

    @classmethod
    def from_values(cls, values: Mapping[str, Any], changes: Mapping[str, Any]) -> RunConfig:
        """From nested values of a file or folder, some of them replaced by dotted key."""
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
        """A copy with some values changed, by dotted key, such as ``"training.epochs"``."""
        return RunConfig.from_values(self.model_dump(), changes)

    @property
    def hash(self) -> str:
        """16 hexadecimal digits of SHA-256 over what decides the model and its predictions."""
        # own data is known by its content, wherever it lies
        elsewhere = {"source", "ids"} | ({"name"} if self.data.source else set())
        measured = {"calibrators", "resamples"}
        kept = self.model_dump(
            mode="json", exclude=dict.fromkeys(measured, True) | {"data": elsewhere}
        )
        text = json.dumps([_VERSION, kept], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def folder_name(self) -> str:
        """The name of the run's folder: data, method and the start of the hash."""
        name = self.data.name.removesuffix(Path(self.data.name).suffix)
        data = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40]
        seed = f"-seed{self.seed}" if self.seed else ""
        return f"{data or 'data'}-{self.method.kind}{seed}-{self.hash[:8]}"

    @property
    def title(self) -> str:
        """A short name for people."""
        method, conv = self.method, self.model.conv
        kind = _TITLES.get(method.kind, method.kind)
        if method.kind in RECIPES:
            kind = f"anchored ({kind})"
        place = "" if method.at is None else f" at {method.at}"
        network = "" if conv == "auto" else f" {conv}"
        return f"{self.data.name}{network} {kind}{place}, seed {self.seed}"


def _explained(error: ValidationError) -> InputError:
    """The first thing that is wrong, in the library's words."""
    first = error.errors()[0]
    key, inner = ".".join(map(str, first["loc"][:2])), first.get("ctx", {}).get("error")
    if isinstance(inner, InputError):
        return inner
    if first["type"] != "extra_forbidden":
        return InputError(f"a fitting value for {key!r}: {first['msg']}", f"{first['input']!r:.80}")
    known = dict[str, str]()
    for part in (DataConfig, ModelConfig, MethodConfig, TrainingConfig):
        name = part.__name__.removesuffix("Config").lower()
        known |= {field: f"{name}.{field}" for field in part.model_fields}
    known |= {field: field for field in RunConfig.model_fields}
    return InputError("a known key in a config", repr(key), did_you_mean(first["loc"][-1], known))
