"""Parts of a `RunConfig`: what to learn from, the backbone, its training."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gduq.errors import InputError
from gduq.nn.gnn_settings import Conv, HeadKind, Positional, Readout
from gduq.runs.source import is_object, told_of_source

__all__ = ["DataConfig", "ModelConfig", "Part", "TrainingConfig"]

MOST_SEED = 2**63 - 1  # what every source of randomness takes
MOST_EPOCHS = 10_000_000  # more is a slip of the pen


class Part(BaseModel):
    """A part of a config: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(Part):
    """What to learn from: a dataset by ``name``, as `gduq.data.load` takes it, or one's own data.

    Own data has a ``source``: a table of molecules (.csv, .tsv), a TU folder, a .safetensors file
    of graphs, or ``package.module:Name`` of a PyG dataset. What is left out of the other keys is
    told from the table. A source is known by the digest of its content, wherever it lies.

    Args:
        name: Of a dataset; of own data, what it is called.
        source: Where own data is.
        targets: Columns to learn.
        units: One per target.
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
    seed: int = Field(0, ge=0, le=MOST_SEED)
    limit: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _told(self) -> DataConfig:
        if self.source is not None:
            self.__dict__.update(told_of_source(self.model_dump()))
            return self
        own = [key for key in ("targets", "units", "smiles", "ids", "task", "by", "digest")
               if getattr(self, key)]  # fmt: skip
        if own:
            raise InputError(f"data.source with data.{own[0]}", f"the dataset {self.name!r}")
        if not self.name:
            raise InputError("a value for 'data.name' or 'data.source' in a config", "neither")
        from gduq.data.catalog import find

        find(self.name)
        return self

    @property
    def is_object(self) -> bool:
        """Whether the source is a Python object and not a file."""
        return self.source is not None and is_object(self.source)

    def identity(self) -> dict[str, Any]:
        """What decides the rows."""
        own = ("targets", "units", "smiles", "task", "by", "digest") if self.source else ("name",)
        return self.model_dump(mode="json", include={*own, "seed", "limit"})


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
    dropout: float = Field(0.5, ge=0, lt=1)
    positional: Positional | None = None
    positional_channels: int = Field(4, ge=1, le=1024)


class TrainingConfig(Part):
    """Arguments of `gduq.fit`, for the network; ``patience`` 0 never stops early, as ``None``."""

    epochs: int = Field(100, ge=1, le=MOST_EPOCHS)
    lr: float = Field(1e-3, gt=0)
    batch_size: int = Field(32, ge=1, le=2**20)
    weight_decay: float = Field(0.0, ge=0)
    milestones: tuple[int, ...] = ()
    gamma: float = Field(0.1, gt=0, le=1)
    select: Literal["best", "last"] = "best"
    patience: int | None = Field(None, ge=1)
    class_weights: Literal["balanced"] | tuple[float, ...] | None = None

    @field_validator("patience", mode="before")
    @classmethod
    def _never(cls, patience: Any) -> Any:
        return None if type(patience) is int and patience == 0 else patience  # TOML has no null
