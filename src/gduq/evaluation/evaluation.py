"""`Evaluation`: one table of everything measured, as DataFrame and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gduq._io import to_json, write_text
from gduq.errors import InputError, first_flaw
from gduq.metrics.resampling import Interval

if TYPE_CHECKING:
    import pandas as pd

    from gduq.prediction import Prediction

__all__ = ["COLUMNS", "Evaluation", "EvaluationSettings"]

_NUMBERS = ("value", "low", "high")


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: str
    split: str
    calibrator: str
    variant: str
    measure: str
    value: float | None  # null: not a number
    low: float | None
    high: float | None
    rows: int | None
    against: str


COLUMNS = tuple(_Row.model_fields)


class EvaluationSettings(BaseModel):
    """What an evaluation was made with; see `gduq.evaluate`."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    about: str = "classes"
    fit_on: str = "id_val"
    negatives: str = "id_test"
    ood: list[str] = []
    alpha: float = Field(0.1, gt=0, lt=1)
    bins: int = Field(15, ge=1, le=100_000)
    abstain: dict[Literal["coverage", "accuracy"], float] = {"coverage": 0.8, "accuracy": 0.9}
    resamples: int = Field(1000, ge=1)
    level: float = Field(0.95, gt=0, lt=1)
    seed: int = 0
    skipped: dict[str, str] = {}


class _Document(BaseModel):
    settings: EvaluationSettings
    table: list[_Row]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How far to trust a model, in one table.

    Args:
        table: One row per number: ``kind`` (metrics, ood, error prediction, conformal, abstention,
            subgroups), ``split``, ``calibrator`` (or "none"), ``variant`` (the score, method or
            group; of several labels or values their name comes first), ``measure``, ``value``,
            ``low``, ``high``, ``rows``, ``against`` (the split it was compared with or fitted on).
        settings: What it was made with.
        predictions: The uncalibrated predictions by split; not written to files.
        calibrators: The fitted calibrators by name; not written to files.
    """

    table: pd.DataFrame
    settings: Mapping[str, Any] = field(default_factory=dict)
    predictions: Mapping[str, Prediction] = field(default_factory=dict, repr=False)
    calibrators: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def value(
        self, split: str, measure: str, calibrator: str = "none", variant: str = ""
    ) -> Interval:
        """One number with its interval."""
        table = self.table
        wanted = {"split": split, "measure": measure, "calibrator": calibrator, "variant": variant}
        for column, name in wanted.items():
            known, table = sorted(table[column].unique()), table[table[column] == name]
            if table.empty:
                raise InputError(f"a {column} from {', '.join(known)}", repr(name))
        return Interval(*(float(table.iloc[0][name]) for name in _NUMBERS))

    def to_json(self, path: str | Path | None = None) -> str:
        """Settings and table as JSON, NaN as null; also written to ``path`` if given."""
        records = self.table.to_dict(orient="records")
        text = to_json({"settings": dict(self.settings), "table": records}) + "\n"
        if path is not None:
            write_text(Path(path), text)
        return text

    @classmethod
    def from_json(cls, source: str | Path) -> Evaluation:
        """Read what `to_json` gave: a path, or the text itself."""
        import pandas as pd

        path = None if str(source).lstrip().startswith("{") else Path(source)
        try:
            content = json.loads(str(source) if path is None else path.read_text("utf-8"))
            _Document.model_validate(content, strict=True)
        except ValidationError as error:
            raise InputError("JSON of an Evaluation", first_flaw(error)) from None
        except (ValueError, RecursionError, IsADirectoryError) as error:
            raise InputError("JSON of an Evaluation", f"something else ({error})") from None
        table = pd.DataFrame(content["table"], columns=list(COLUMNS))
        table = table.astype(dict.fromkeys(_NUMBERS, float))
        return cls(table, content["settings"])
