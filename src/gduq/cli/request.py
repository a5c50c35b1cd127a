"""What the commands that answer with a saved model are asked for: options, bundles, files.

All that can be seen to be wrong is info here, before torch is imported, which takes seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from gduq._io import read_metadata
from gduq.data.columns import find_smiles, resolve_columns, unit_of
from gduq.data.table import SHEETS, check_columns, is_table, read_table
from gduq.errors import InputError
from gduq.serve.settings import Limits, Settings

__all__ = [
    "Call",
    "Network",
    "Request",
    "SmilesColumn",
    "TrainingInfo",
    "bundle_file",
    "check_sources",
    "check_there",
    "files_of",
    "smiles_in",
    "source_of",
    "trust_runs",
]

Network = Annotated[
    str | None,
    typer.Option(
        "--net",
        help="package.module:Name of a function that builds the network, for a bundle of a network "
        "that is not gduq's own.",
    ),
]
Call = Annotated[
    str | None,
    typer.Option(help="package.module:name of the function the model is called with, if any."),
]
SmilesColumn = Annotated[
    str | None,
    typer.Option("--smiles", help="Tables: the column of SMILES (default: as in training)."),
]


def _option(text: str, **more: Any) -> Any:
    return typer.Option(help=text, **more)


@dataclass(frozen=True)
class Request:
    """The options of commands that answer with a saved model."""

    bundle: Annotated[Path, typer.Argument(help="A bundle, or a run folder of `gduq train`.")]
    calibration_data: Annotated[
        Path | None, _option("Labelled graphs like those of training; sets the thresholds.")
    ] = None
    calibrator: Annotated[
        str | None, _option("Fit this calibrator first, on one half of the calibration data.")
    ] = None
    alpha: Annotated[float, _option("Accepted misses of conformal sets and intervals.")] = (
        Settings.alpha
    )
    coverage: Annotated[
        float, _option("Share of rows like the calibration data to be answered.")
    ] = Settings.coverage
    accuracy: Annotated[
        float | None, _option("Accuracy of the answers, instead of --coverage.")
    ] = None
    per_class: Annotated[
        bool,
        typer.Option(
            "--per-class", help="Conformal sets hold every class, or yes and no, that often."
        ),
    ] = False
    max_novelty: Annotated[
        float, _option("Rows above it are unlike training data; 1 for no limit.")
    ] = Settings.max_novelty
    max_epistemic: Annotated[
        float, _option("Hypotheses disagree above this quantile of the calibration data; 1: never.")
    ] = Settings.max_epistemic
    ood_score: Annotated[
        str | None, _option("A score of gduq.ood, mahalanobis or knn (default: novelty).")
    ] = None
    smiles: SmilesColumn = None
    target: Annotated[
        list[str] | None,
        _option("Tables: columns of labels (default: as in training); repeat, or 'NR-*'."),
    ] = None
    batch_size: Annotated[
        int, _option("Graphs in memory, and in one pass of the model, at a time.", min=1)
    ] = Limits.batch
    device: Annotated[str, _option("Where to compute: cpu, cuda, ...")] = "cpu"
    net: Network = None
    call: Call = None

    @property
    def settings(self) -> Settings:
        """How to decide."""
        try:
            return Settings(**{one.name: getattr(self, one.name) for one in fields(Settings)})
        except InputError as error:
            wanted = error.expected.replace("_", "-")
            raise InputError(f"--{wanted}", error.got) from None

    def check(self, sources: Sequence[Path] = (), keep: Sequence[str] = ()) -> None:
        """Raise for all about settings, bundle, files and columns that can be seen to be wrong."""
        _ = self.settings
        models = [path for path in sources if _is_model(path)]
        if models and not _is_model(self.bundle):
            got = f"{self.bundle}, and {models[0]} after it"
            raise InputError("the model first, then the graphs", got, "Swap the two.")
        no_run = not self.bundle.is_file() and not (self.bundle / "config.json").is_file()
        if no_run or is_table(self.bundle):
            got = f"{self.bundle}{'' if self.bundle.exists() else ', which does not exist'}"
            raise InputError("a bundle, or a run folder of `gduq train`", got)
        check_sources(sources)
        check_columns(sources, keep)
        smiles_in(sources, self.smiles, TrainingInfo.from_bundle(self.bundle))
        if self.calibration_data is not None:
            self.check_labelled([self.calibration_data])

    def check_labelled(self, paths: Iterable[Path]) -> None:
        """Raise where the columns that are needed of labelled files are not there."""
        info = TrainingInfo.from_bundle(self.bundle)
        for path in paths:
            check_sources([path])
            smiles_in([path], self.smiles, info)
            info.targets_in(path, self.target or ())


# -- bundles -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingInfo:
    """What a bundle says of the table it was trained on, as far as it makes sense.

    Attributes:
        names: Of labels or values.
        smiles: Column of SMILES.
        targets: Target columns.
        ids: Columns that name a row.
    """

    names: tuple[str, ...] = ()
    smiles: str | None = None
    targets: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    @classmethod
    def from_bundle(cls, bundle: Path) -> TrainingInfo:
        """Read from a bundle or run; what is damaged is info when it is loaded."""
        try:
            document = json.loads(read_metadata(bundle_file(bundle))["document"])
            target = document["model"]["target"] or {}
            notes = document["preprocessing"] or {}
            smiles = notes.get("smiles")
            return cls(
                () if "num_classes" in target else _texts(target.get("names")),
                smiles if isinstance(smiles, str) else None,
                _texts(notes.get("targets")),
                _texts(notes.get("ids")),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return cls()

    def targets_in(self, path: Path, wanted: Sequence[str]) -> tuple[str, ...]:
        """The target columns of a labelled file; none where nothing tells."""
        if not is_table(path):
            return ()
        columns, known = read_table(path).names, self.targets or self.names
        if not wanted:
            short = [unit_of(column)[0] for column in columns]
            there = all(name in columns or short.count(name) == 1 for name in known)
            wanted = known if there else ()
        found = resolve_columns(path, columns, wanted)
        most = len(known) or len(found)
        if found and len(found) != most:
            names = f" ({', '.join(known[:12])})" if known else ""
            raise InputError(
                f"{most} target column{'s' * (most != 1)}, as in training{names}",
                f"{len(found)} in {path}: {', '.join(found[:12])}",
                "Name them with --target.",
            )
        return found


def _texts(value: Any) -> tuple[str, ...]:
    good = isinstance(value, list) and all(isinstance(text, str) for text in value)
    return tuple(value) if good else ()


def bundle_file(path: Path) -> Path:
    """The bundle, which may be that of a run."""
    return path / "bundle" if path.is_dir() else path


def _is_model(path: Path) -> bool:
    return "document" in read_metadata(path) or (path / "config.json").is_file()


# -- files ---------------------------------------------------------------------------------------


def check_sources(paths: Iterable[Path]) -> None:
    """Raise for a file of graphs that is not there."""
    for path in paths:
        if not path.exists():
            raise InputError("a folder or file of graphs", f"{path}, which does not exist")
        if path.suffix in SHEETS:
            raise InputError("a .csv or .tsv table", path.name, "Save it as CSV.")


def source_of(run: Path) -> Path | None:
    """The file that a run was trained on; ``None`` where the run names none."""
    config = run / "config.json"
    if not config.is_file():  # a pipe would never end
        return None
    try:
        data = json.loads(config.read_text(encoding="utf-8"))["data"]
        return None if data.get("source") is None else Path(str(data["source"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def trust_runs(runs: Iterable[Path], trusted: bool) -> None:
    """Raise where a run names data that would have to be imported, and is not trusted."""
    from gduq.runs.config import RunConfig

    for run in runs:
        if (run / "config.json").is_file():
            RunConfig.read(run, trust_source=trusted)


def check_there(paths: Iterable[Path]) -> None:
    """Raise for a run, bundle or table that is not there."""
    for path in paths:
        if not path.exists():
            raise InputError("the folder of a run, or a file", f"{path}, which does not exist")


def files_of(data: Sequence[str]) -> dict[str, Path]:
    """Labelled files by split, of texts such as ``FILE`` and ``split=FILE``; none for the name of a
    dataset."""
    found: dict[str, Path] = {}
    for text in data:
        split, equals, name = text.partition("=")
        path = Path(text if Path(text).exists() or not equals else name)
        if not path.exists():
            if path.suffix in (".csv", ".tsv", ".safetensors"):
                check_there([path])
            if len(data) == 1 and not equals:
                return {}  # loading it explains what is wrong with a name that is none
            raise InputError("files of labelled graphs, or one dataset's name", repr(text))
        split = split if equals and path == Path(name) else path.stem
        if split in found:
            raise InputError("a split of its own for every file", text, "Use --data split=FILE.")
        found[split] = path
    return found


def smiles_in(paths: Sequence[Path], given: str | None, info: TrainingInfo) -> str | None:
    """The column of SMILES in some tables: as it is given, as in training, or as it looks."""
    tables = {path: read_table(path) for path in paths if is_table(path)}
    if given is None and tables and all(info.smiles in table.names for table in tables.values()):
        return info.smiles
    found = dict[str, Path]()
    for path, table in tables.items():
        found.setdefault(find_smiles(table, given).lower(), path)
    if len(found) > 1:
        got = ", ".join(f"{name!r} in {path}" for name, path in found.items())
        raise InputError("one name for the SMILES of all tables", got, "Name it with --smiles.")
    return next(iter(found), given)
