"""What the commands that answer with a saved model are asked for.

All that can be seen to be wrong is told here, before torch is imported, which takes seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gduq.cli.completion import check_calibrator, check_score
from gduq.data.header import (
    SHEETS,
    find_smiles,
    first_fields,
    is_table,
    meant_all,
    read_header,
    unit_of,
)
from gduq.disk import safetensors_metadata
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.runs.folder import RunFolder

__all__ = [
    "Request",
    "Told",
    "bundle_of",
    "check_bundle",
    "check_sources",
    "check_there",
    "files_of",
    "smiles_in",
]


@dataclass(frozen=True)
class Request:
    """The options that make a service; see the help of ``gduq predict``."""

    bundle: Path
    calibration_data: Path | None = None
    calibrator: str | None = None
    alpha: float = 0.1
    coverage: float = 0.9
    accuracy: float | None = None
    ood_score: str | None = None
    per_class: bool = False
    smiles: str | None = None
    target: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    max_novelty: float = 0.99
    max_epistemic: float = 0.99
    batch_size: int = 256
    device: str = "cpu"
    net: str | None = None
    call: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Request:
        """From the options of a command, which are called as the attributes; others are passed
        over."""
        given: dict[str, Any] = {}
        for name in (field.name for field in fields(cls)):
            value = options.get(name)
            if value is not None:
                given[name] = tuple(value) if isinstance(value, list) else value
        return cls(**given)

    def check(self, sources: Sequence[Path] = ()) -> Request:
        """The same, if nothing about bundle, files and columns is wrong that can be seen now."""
        _check_order(self.bundle, sources)
        check_bundle(self.bundle)
        check_sources(sources)
        told = Told.by(self.bundle)
        if self.calibrator is not None:
            check_calibrator(self.calibrator, told.kind)
        if self.ood_score is not None:
            check_score(self.ood_score, told.kind)
        for path in sources:
            if is_table(path):
                meant_all(f"{path} to keep", read_header(path)[0], self.keep)
        smiles_in(sources, self.smiles, told)
        known = () if self.calibration_data is None else (self.calibration_data,)
        return self.check_labelled(known)

    def check_labelled(self, paths: Iterable[Path]) -> Request:
        """The same, if the columns that are needed of labelled files are there."""
        told = Told.by(self.bundle)
        for path in paths:
            check_sources([path])
            smiles_in([path], self.smiles, told)
            told.targets_in(path, self.target)
        return self


@dataclass(frozen=True)
class Told:
    """What a bundle says of the table it was trained on, as far as it makes sense.

    Attributes:
        kind: What its model answers about: ``"classes"``, ``"labels"`` or ``"values"``.
        names: Of labels or values.
        smiles: Column of SMILES.
        targets: Target columns.
    """

    kind: str = "classes"
    names: tuple[str, ...] = ()
    smiles: str | None = None
    targets: tuple[str, ...] = ()

    @classmethod
    def by(cls, bundle: Path) -> Told:
        """Read from a bundle or run; what is damaged is told when it is loaded."""
        file = bundle / "bundle" if bundle.is_dir() else bundle
        try:
            document = json.loads(safetensors_metadata(file)["document"])
            target = document["model"]["target"] or {}
            notes = document["preprocessing"] or {}
            smiles = notes.get("smiles")
            return cls(
                str(target.get("kind", "classes")),
                _texts(target.get("names")) if target.get("kind") != "classes" else (),
                smiles if isinstance(smiles, str) else None,
                _texts(notes.get("targets")),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return cls()

    def targets_in(self, path: Path, wanted: Sequence[str]) -> tuple[str, ...]:
        """The target columns of a labelled file; none where nothing tells."""
        if not is_table(path):
            return ()
        columns, known = read_header(path)[0], self.targets or self.names
        if wanted:
            found = meant_all(path, columns, wanted)
        else:
            short = [unit_of(column)[0] for column in columns]
            there = all(name in columns or short.count(name) == 1 for name in known)
            found = meant_all(path, columns, known) if there else ()
        most = 1 if self.kind == "classes" else len(self.names) or len(found)
        if found and len(found) != most:
            names = f" ({', '.join(known[:12])})" if known else ""
            raise InputError(
                f"{most} target column{'s' * (most != 1)}, as in training{names}",
                f"{len(found)} in {path}: {', '.join(found[:12])}",
                "Name them with --target.",
            )
        return found


def bundle_of(path: Path) -> tuple[Path, RunFolder | None]:
    """The bundle, and the run it belongs to if a run folder is given."""
    if (path / "config.json").is_file():
        from gduq.runs.folder import RunFolder

        return path / "bundle", RunFolder(path)
    return path, None


def check_bundle(path: Path) -> None:
    """Raise unless it is a file or the folder of a run."""
    if not path.is_file() and not (path / "config.json").is_file():
        got = path if path.exists() else f"{path}, which does not exist"
        raise InputError("a bundle, or a run folder of `gduq train`", got)


def _check_order(bundle: Path, sources: Sequence[Path]) -> None:
    """Raise where the graphs come first and the model after them."""
    models = [path for path in sources if _is_model(path)]
    if models and not _is_model(bundle):
        got = f"{bundle}, and {models[0]} after it"
        raise InputError("the model first, then the graphs", got, "Swap the two.")


def _is_model(path: Path) -> bool:
    return "document" in safetensors_metadata(path) or (path / "config.json").is_file()


def check_sources(paths: Iterable[Path]) -> None:
    """Raise for a file of graphs that is not there."""
    for path in paths:
        if not path.exists():
            raise InputError("a folder or file of graphs", f"{path}, which does not exist")
        if path.suffix in SHEETS:
            raise InputError("a .csv or .tsv table", path.name, "Save it as CSV.")


def check_there(paths: Iterable[Path]) -> None:
    """Runs, bundles and tables that are named exist."""
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


def smiles_in(paths: Sequence[Path], given: str | None, told: Told) -> str | None:
    """The column of SMILES in some tables: as it is given, as in training, or as it looks."""
    columns = {path: read_header(path)[0] for path in paths if is_table(path)}
    if given is None and columns and all(told.smiles in names for names in columns.values()):
        return told.smiles
    found = dict[str, Path]()
    for path, names in columns.items():
        called = given is not None or "smiles" in [name.lower() for name in names]
        texts = {name: [""] for name in names} if called else first_fields(path)
        found.setdefault(find_smiles(path, texts, given).lower(), path)
    if len(found) > 1:
        got = ", ".join(f"{name!r} in {path}" for name, path in found.items())
        raise InputError("one name for the SMILES of all tables", got, "Name it with --smiles.")
    return next(iter(found), given)


def _texts(value: Any) -> tuple[str, ...]:
    good = isinstance(value, list) and all(isinstance(text, str) for text in value)
    return tuple(value) if good else ()
