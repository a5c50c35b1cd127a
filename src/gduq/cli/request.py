"""Options of commands that answer with a saved model, and what is made of them."""

from __future__ import annotations

import json
import pkgutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from gduq.cli.base import Text, Texts, option
from gduq.errors import InputError
from gduq.serve.server import Limits, Settings

if TYPE_CHECKING:
    from torch import nn

    from gduq.bundle import BundleInfo
    from gduq.calibration import Calibrator
    from gduq.data.outputs import Reject
    from gduq.models.predictor import Predictor
    from gduq.prediction import Prediction
    from gduq.serve.service import Service
    from gduq.tracing.call import Call

__all__ = ["Request", "make_network", "source_of"]

_NOVEL = "Rows above it are unlike training data; 1 for no limit."
_DISAGREE = "Hypotheses disagree above this quantile of known rows; 1: never."


@dataclass(frozen=True)
class Request:
    """The options of commands that answer with a saved model."""

    bundle: Annotated[Path, typer.Argument(help="A bundle, or a run folder of `gduq train`.")]
    calibration_data: Annotated[Path | None, option("Labelled graphs, for thresholds.")] = None
    alpha: Annotated[float, option("Accepted misses of sets and intervals.")] = Settings.alpha
    coverage: Annotated[float, option("Share of known rows to be answered.")] = Settings.coverage
    accuracy: Annotated[float | None, option("Accuracy of answers, not --coverage.")] = None
    per_class: Annotated[bool, option("Sets hold every class that often.", "--per-class")] = False
    max_novelty: Annotated[float, option(_NOVEL)] = Settings.max_novelty
    max_epistemic: Annotated[float, option(_DISAGREE)] = Settings.max_epistemic
    smiles: Annotated[Text, option("Tables: column of SMILES (default: as in training).")] = None
    target: Annotated[Texts, option("Tables: columns of labels; repeat, or 'NR-*'.")] = None
    batch_size: Annotated[int, option("Graphs in memory at a time.", min=1)] = Limits.batch
    device: Annotated[str, option("Where to compute: cpu, cuda, ...")] = "cpu"
    net: Annotated[Text, option("package.module:Name that builds a network of one's own.")] = None
    call: Annotated[Text, option("package.module:name of what the model is called with.")] = None

    # -- the model -----------------------------------------------------------------------------

    @property
    def file(self) -> Path:
        """The bundle, which may be that of a run."""
        return self.bundle / "bundle" if self.bundle.is_dir() else self.bundle

    @cached_property
    def info(self) -> BundleInfo:
        """What the bundle says."""
        from gduq.bundle import describe

        return describe(self.file)

    def notes(self, name: str) -> tuple[str, ...]:
        """What the bundle notes on the training table (smiles, targets, ids), if it makes sense."""
        found = (self.info.preprocessing or {}).get(name)
        texts = [found] if isinstance(found, str) else found
        if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
            return tuple(texts)
        return ()

    def load(self) -> tuple[Predictor, Calibrator | None]:
        """The model on its device, and the calibrator saved with it."""
        from gduq.bundle import load

        network = None if self.net is None else make_network(self.net)
        call = None if self.call is None else cast("Call", find_object(self.call))
        model, saved = load(self.file, network, call)
        try:
            return model.to(self.device), saved
        except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
            got = f"{self.device!r} ({str(error).splitlines()[0]})"
            raise InputError("a device torch can use", got) from None

    def service(self) -> Service:
        """The model with thresholds from labelled rows: a file's, or those kept with it."""
        from gduq.bundle import load_reference
        from gduq.serve.service import Service

        settings = Settings(**{one.name: getattr(self, one.name) for one in fields(Settings)})
        service = Service(*self.load(), self.info.class_names, settings)
        if self.calibration_data is not None:
            known, rejects = self.labelled(service, self.calibration_data)
            if rejects:
                raise InputError(f"sound graphs in {self.calibration_data}", rejects[0])
            return service.refer_to(known)
        kept = load_reference(self.file)
        return service if kept is None else service.refer_to(service.calibrated(kept))

    # -- files of graphs -----------------------------------------------------------------------

    def smiles_column(self, paths: Sequence[Path]) -> str:
        """The column of SMILES in some tables: as it is given, as in training, or as it looks."""
        from gduq.data.columns import find_smiles
        from gduq.data.table import is_table, read_table

        tables = [read_table(path) for path in paths if is_table(path)]
        trained = self.notes("smiles")[:1]
        if self.smiles is None and trained and all(trained[0] in table.names for table in tables):
            return trained[0]
        found = sorted({find_smiles(table, self.smiles).lower() for table in tables})
        if len(found) > 1:
            do = "Name it with --smiles."
            raise InputError("one name for the SMILES of all tables", ", ".join(found), do)
        return found[0] if found else "smiles"

    def target_columns(self, path: Path) -> tuple[str, ...]:
        """The target columns of a labelled table; none where nothing tells."""
        from gduq.data.columns import resolve_columns
        from gduq.data.table import is_table, read_table

        if not is_table(path):
            return ()
        known, columns = self.notes("targets"), read_table(path).names
        there = all(name in columns for name in known)
        return resolve_columns(path, columns, self.target or (known if there else ()))

    def labelled(self, service: Service, path: Path) -> tuple[Prediction, list[Reject]]:
        """Predictions of a file in which every graph has a label; and the rows left out."""
        import torch

        from gduq.data.files import stream
        from gduq.data.outputs import Reject
        from gduq.data.table import is_table
        from gduq.prediction import Prediction

        source = stream(
            path,
            smiles=self.smiles_column([path]),
            targets=self.target_columns(path),
            class_names=service.class_names,
            task=service.kind if is_table(path) else None,  # type: ignore[arg-type]
        )
        items = [item for _, item in source]
        rejects = [item for item in items if isinstance(item, Reject)]
        graphs = [item for item in items if not isinstance(item, Reject)]
        if not graphs:
            raise InputError(f"sound graphs in {path}", f"none; the first: {rejects[:1]}")
        # a file without names holds classes as the training file did
        named = getattr(source.content, "class_names", source.class_names)
        codes = service.target.get("codes") if named else None
        for graph in graphs:
            if graph.get("y") is None:
                do = "Tables: name the column with --target." if is_table(path) else ""
                raise InputError(f"labelled graphs in {path}", "no labels", do)
            if codes is not None:
                graph.y = torch.tensor(codes)[graph.y]  # as it stands in other files
        size = self.batch_size
        parts = [service.answer(graphs[i : i + size]) for i in range(0, len(graphs), size)]
        return Prediction.concatenate(parts), rejects


def find_object(name: str) -> object:
    """What ``package.module:Name`` stands for; modules of the working folder are found too."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return pkgutil.resolve_name(name)
    except Exception as error:  # whatever a user's module does when it is imported
        reason = f"{name} ({type(error).__name__}: {error})"
        raise InputError("package.module:Name of what can be imported", reason) from error


def make_network(name: str) -> nn.Module:
    """The network that ``package.module:Name`` is, or that calling it gives."""
    from torch import nn

    found = find_object(name)
    if callable(found) and not isinstance(found, nn.Module):
        try:
            found = found()
        except TypeError as error:
            do = "Name a function that builds your network."
            raise InputError(f"{name} to be called without arguments", str(error), do) from error
    if not isinstance(found, nn.Module):
        raise InputError(f"a torch.nn.Module from {name}", type(found).__name__)
    return found


def source_of(run: Path) -> Path | None:
    """The file that a run was trained on, which no command overwrites; ``None``: it names none."""
    config = run / "config.json"
    if not config.is_file():  # a pipe would never end
        return None
    try:
        return Path(json.loads(config.read_text(encoding="utf-8"))["data"]["source"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
