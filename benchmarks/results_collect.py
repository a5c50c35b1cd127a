"""From what `gduq bench` left on disk to the content of `results/summary.json`."""

from __future__ import annotations

import datetime
import math
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from gduq.errors import InputError
from gduq.evaluation.fixed_maps import FIXED
from gduq.paper.bench import results_path
from gduq.paper.bench_result import BenchResult, record, verdicts
from gduq.paper.specs import ScaleName, Setting, Table
from gduq.paper.tables import TABLES
from gduq.runs.config import RunConfig
from gduq.runs.folder import FINISHED, RunFolder
from gduq.runs.method import RECIPE_FIELDS
from gduq.runs.run import requirements
from gduq.runs.training import fit_options
from results_bars import CHOSEN
from results_cells import BASE, GDUQ, ID, KEYS, ON_COPIES, OOD, PRETRAINED, rounded
from results_choice import chosen_calibrator

Values = list[float | None]
Key = dict[str, str]
_MEASURES = ("accuracy", "ece", "ece100", "nll", "brier", "aurc")
_CALIBRATED = ("vanilla", "gduq")  # whose best calibrator is chosen
_SCHEDULE = ("lr", "batch_size", "weight_decay", "select", "patience", "class_weights")
_TWO_PARTS = (GDUQ.variant, PRETRAINED.variant)  # may put an anchored head on a plain network
_SMOKE = "Smoke scale:"


def collect(roots: Sequence[Path], scales: Sequence[str]) -> dict[str, Any]:
    """Everything but the bars.

    Args:
        roots: Folders given to ``gduq bench --root``.
        scales: Which to take; of a table that was made at several, the first of these.
    """
    unknown = [scale for scale in scales if scale not in get_args(ScaleName)]
    if unknown:
        raise InputError(f"scales from {', '.join(get_args(ScaleName))}", repr(unknown[0]))
    found = {name: _found(name, roots, scales) for name in TABLES}
    made = {name: one for name, one in found.items() if one is not None}
    if not made:
        where = ", ".join(map(str, roots))
        raise InputError(
            f"tables of scale {' or '.join(scales)}", f"none in {where}", "Run `gduq bench` first."
        )
    records: list[dict[str, Any]] = []
    known: set[tuple[Any, ...]] = set()
    for name, one in made.items():
        print(f"collecting {name} ...", file=sys.stderr, flush=True)
        size = len(one.result.records)
        extra = [*_new(one.extra(), map(_key, one.result.records))]
        judged = verdicts([*one.result.records, *extra])
        records += [*judged[:size], *_new(judged[size:], known)]
        known |= {_key(r) for r in judged}
    schedules = [one.schedule(setting) for one in made.values() for setting in one.settings]
    return {
        "about": _about([run for one in made.values() for run in one.runs]),
        "schedule": _once(schedules),
        "choices": [c for one in made.values() for c in one.choices()],
        "tables": [_described(name, found[name], scales[-1]) for name in sorted(found, key=_row)],
        "tests": [_tested(r) for r in records if r["verdict"] in ("better", "worse")],
        "records": [{k: rounded(r[k]) for k in KEYS} for r in records],
    }


def _row(name: str) -> float:
    """The place of a table: rows of the paper first."""
    row = TABLES[name].row
    return math.inf if row is None else row


def _key(r: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(r[k] for k in KEYS[1:8])


def _new(
    records: Iterable[dict[str, Any]], known: Iterable[tuple[Any, ...]]
) -> list[dict[str, Any]]:
    known = set(known)
    return [r for r in records if _key(r) not in known]


def _once(schedules: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One a cell: of the first table with G-ΔUQ, or of the first; with the variants of all."""
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in schedules:
        cells.setdefault((one["dataset"], one["shift"], one["model"]), []).append(one)
    return [_merged(tables) for tables in cells.values()]


def _merged(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = next((one for one in tables if one["gduq"]), tables[0])
    alike = [one for one in tables if one["scale"] == first["scale"]]
    parts = {key: {v: d for one in alike for v, d in one[key].items()}
             for key in ("below", "unequal")}  # fmt: skip
    return {**first, **parts}


def _tested(r: Mapping[str, Any]) -> dict[str, Any]:
    key = {k: r[k] for k in KEYS[:8]}
    return {**key, "versus": r["versus"], "verdict": r["verdict"], "p": rounded(r["p_value"], 3)}


def _found(name: str, roots: Sequence[Path], scales: Sequence[str]) -> Made | None:
    for scale in scales:
        for root in roots:
            path = results_path(root, name, scale)
            if path.is_file():
                made = Made(name, TABLES[name], root, BenchResult.from_json(path))
                made.check()
                return made
    return None


@dataclass
class Made:
    """A table on disk, with the runs it was made of."""

    name: str
    table: Table
    root: Path
    result: BenchResult

    @property
    def command(self) -> str:
        return str(self.result.records[0]["command"]) if self.result.records else ""

    @property
    def seeds(self) -> int:
        return max((len(r["values"]) for r in self.result.records), default=0)

    @property
    def trained(self) -> bool:
        return self.table.producer is None

    def check(self) -> None:
        """Raise if the table was made of other runs than its settings ask for now."""
        configs = {c.hash: c.title for found in self.cells.values() for c in found}
        gone = [t for h, t in configs.items() if h not in self.result.runs and not self._base(h)]
        other = [title for title in gone if title not in self.result.failures]
        if other:
            raise InputError(
                f"the table {self.name!r} made with the settings of now",
                f"one without a run of {other[0]!r}",
                f"Run `{self.command} --root {self.root}` again.",
            )

    def _base(self, hash_: str) -> bool:
        """Whether a run belongs to the table only as the start of another."""
        own = [c for (_, variant), c in self.cells.items() if variant == BASE.variant]
        return any(hash_ == config.hash for configs in own for config in configs)

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        scale: Any = self.result.scale
        return self.table.settings_at(scale) if self.trained else ()

    @cached_property
    def cells(self) -> dict[tuple[Setting, str], list[RunConfig]]:
        """The configs of a setting and variant, one a seed."""
        found: dict[tuple[Setting, str], list[RunConfig]] = {}
        scale: Any = self.result.scale
        if self.trained:
            for setting, variant, _, config in self.table.configs(scale, self.seeds):
                found.setdefault((setting, variant), []).append(config)
        for (setting, variant), configs in list(found.items()):
            if variant == BASE.variant.split()[0]:
                base = [requirements(config)[0] for config in configs]
                if base[0].hash != found[setting, "vanilla"][0].hash:
                    found[setting, BASE.variant] = base
        return found

    @cached_property
    def runs(self) -> list[RunFolder]:
        """Every finished run once, members of ensembles too."""
        configs = [config for found in self.cells.values() for config in found]
        configs += [needed for config in configs for needed in requirements(config)]
        hashes = dict.fromkeys(config.hash for config in configs)
        return [RunFolder(self.root / h) for h in hashes if (self.root / h / FINISHED).is_file()]

    @cached_property
    def _folders(self) -> dict[str, RunFolder]:
        return {folder.path.name: folder for folder in self.runs}

    @cached_property
    def _scores(self) -> dict[str, dict[str, Any]]:
        return {name: folder.scores for name, folder in self._folders.items()}

    @cached_property
    def _infos(self) -> dict[str, dict[str, Any]]:
        return {name: folder.info for name, folder in self._folders.items()}

    # -- numbers that the table itself does not have ---------------------------------------------

    def extra(self) -> Iterator[dict[str, Any]]:
        """Records of the other split and measures, of costs, and of chosen calibrators."""
        for (setting, variant), configs in self.cells.items():
            hashes = [config.hash for config in configs]
            where = {"dataset": setting.dataset, "shift": setting.shift, "model": setting.model}
            for key, values in (*self._costs(variant, hashes),
                                *self._numbers(variant, hashes)):  # fmt: skip
                yield record(
                    self.name,
                    {**where, "variant": variant, **key},
                    values,
                    scale=self.result.scale,
                    command=self.command,
                    printed=self.table.printed,
                )

    def _numbers(self, variant: str, hashes: Sequence[str]) -> Iterator[tuple[Key, Values]]:
        names = ["none", *(["t2", "temperature"] if variant == "vanilla" else [])]
        names += [ON_COPIES, CHOSEN] if variant in _CALIBRATED else []
        for calibrator in names:
            own = [self._chosen(variant, h) if calibrator == CHOSEN else calibrator for h in hashes]
            for split in (ID, OOD):
                for metric in _MEASURES:
                    pairs = zip(hashes, own, strict=True)
                    values: Values = [
                        self._scores.get(h, {}).get(name, {}).get(split, {}).get(metric)
                        for h, name in pairs
                    ]
                    yield {"calibrator": calibrator, "split": split, "metric": metric}, values

    def _costs(self, variant: str, hashes: Sequence[str]) -> Iterator[tuple[Key, Values]]:
        for kind in ("train", "predict"):
            values: Values = [self._seconds(variant, h, kind) for h in hashes]
            yield {"calibrator": "none", "split": "", "metric": f"{kind}_seconds"}, values

    def _seconds(self, variant: str, hash_: str, kind: str) -> float | None:
        """Who trains a plain network first pays for it; those of pretrained ones were there."""
        seconds = self._infos.get(hash_, {}).get("seconds", {})
        found: float | None = seconds.get(kind)
        if found is not None and kind == "train" and "pretrained" not in variant:
            found += seconds.get("plain", 0.0)
        return found

    def _chosen(self, variant: str, hash_: str) -> str:
        if hash_ not in self._folders:
            return ""
        scale: Any = self.result.scale
        fitted = [n for n in self.table.calibrators_of(variant, scale) if n not in FIXED]
        return chosen_calibrator(self._folders[hash_], ("none", *fitted))

    def choices(self) -> Iterator[dict[str, Any]]:
        """How often which calibrator was chosen."""
        for (setting, variant), configs in self.cells.items():
            if variant not in _CALIBRATED:
                continue
            names = [self._chosen(variant, c.hash) for c in configs]
            where = {"dataset": setting.dataset, "shift": setting.shift, "model": setting.model}
            counts = {name: names.count(name) for name in dict.fromkeys(filter(None, names))}
            yield {"table": self.name, **where, "variant": variant, "chosen": counts}

    # -- how it was made ------------------------------------------------------------------------

    def schedule(self, setting: Setting) -> dict[str, Any]:
        """Data and training of a setting, and what is not the same for all its variants."""
        configs = {v: found[0] for (s, v), found in self.cells.items() if s == setting}
        plain = configs["vanilla"]
        folder = self._folders.get(plain.hash)
        own = configs.get("gduq")
        return {
            "table": self.name,
            "dataset": setting.dataset,
            "shift": setting.shift,
            "model": setting.model,
            "task": "node" if setting.on_nodes else "graph",
            "scale": self.result.scale,
            "seeds": self.seeds,
            "epochs": plain.training.epochs,
            "hidden": plain.model.hidden_channels,
            "layers": plain.model.num_layers,
            "lr": plain.training.lr,
            "weight_decay": plain.training.weight_decay,
            "batch_size": plain.training.batch_size,
            "select": plain.training.select,
            "limit": plain.data.limit,
            "rows": {} if folder is None else folder.info["rows"],
            "gduq": {} if own is None else _own(own),
            "below": {v: _before(configs[v]) for v in _TWO_PARTS if v in configs},
            "unequal": {v: d for v, config in configs.items() if (d := _differs(config, plain))},
        }  # fmt: skip


def _own(config: RunConfig) -> dict[str, Any]:
    """What makes the anchored model of a run."""
    kept = ("recipe", *RECIPE_FIELDS)
    return {k: v for k, v in config.method.model_dump().items() if k in kept and v is not None}


def _before(config: RunConfig) -> int:
    """Epochs of the plain network that a run stands on; 0 for a run from scratch."""
    before = requirements(config) if config.method.kind == "anchored" else []
    return before[0].training.epochs if before else 0


def _own_epochs(config: RunConfig, plain: RunConfig) -> int | str | None:
    """In words what is not vanilla's number of epochs, the plain network's included."""
    before, whole = _before(config), plain.training.epochs
    if not before:
        return None if config.training.epochs == whole else config.training.epochs
    extra = fit_options(config)["epochs"]
    head = "a head" if extra is None else f"{extra} epochs"
    return f"{head} on top of {before} of a plain network"


def _differs(config: RunConfig, plain: RunConfig) -> dict[str, Any]:
    """Training and backbone as far as they are not vanilla's."""
    ours, theirs = config.training.model_dump(), plain.training.model_dump()
    epochs = _own_epochs(config, plain)
    found = {} if epochs is None else {"epochs": epochs}
    found |= {k: ours[k] for k in _SCHEDULE if ours[k] != theirs[k]}
    net, other = config.model.model_dump(), plain.model.model_dump()
    return {**found, **{k: v for k, v in net.items() if v != other[k]}}


def _described(name: str, made: Made | None, scale: str) -> dict[str, Any]:
    """A table that was made, or that one could make."""
    table, wished = TABLES[name], scale if made is None else made.result.scale
    size: Any = wished
    settings = [] if table.producer else table.settings_at(size)
    return {
        "name": name,
        "row": table.row,
        "title": table.title,
        "labels": list(table.labels),
        "made": made is not None,
        "scale": wished,
        "command": made.command if made else f"gduq bench {name} --scale {scale}",
        "settings": [[s.dataset, s.shift, s.model] for s in settings],
        "note": table.note if wished == "smoke" else table.note.partition(_SMOKE)[0].strip(),
        "failures": [] if made is None else list(made.result.failures),
        "figures": [] if made is None else list(made.result.figures),
        "hours": _hours([] if made is None else made.runs),
    }


def _hours(runs: Iterable[RunFolder]) -> float:
    """Of training; ensembles and MC dropout are made of other runs."""
    trained = [run for run in runs if run.config.method.kind not in ("ensemble", "mcdropout")]
    hours: float = rounded(sum(run.info["seconds"]["train"] for run in trained) / 3600, 3)
    return hours


def _about(runs: Sequence[RunFolder]) -> dict[str, Any]:
    unique = {run.path.name: run for run in runs}
    infos = [run.info for run in unique.values()]
    versions = [info["versions"] for info in infos]
    names = dict.fromkeys(name for found in versions for name in found)
    return {
        "date": datetime.date.today().isoformat(),
        "versions": {n: ", ".join(sorted({v[n] for v in versions if n in v})) for n in names},
        "machine": ", ".join(sorted({info["machine"] for info in infos})),
        "cpu": _cpu(),
        "runs": len(unique),
        "hours": _hours(unique.values()),
    }


def _cpu() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.machine()
