"""What tables are made of: settings (data and network), variants (methods) and scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from gduq.nn.gnn_settings import HeadKind
from gduq.runs.config import RunConfig

__all__ = ["CONTROLS", "OWN", "SCALES", "VARIANTS", "PaperTable", "Scale", "ScaleName", "Setting"]

ScaleName = Literal["smoke", "small", "paper"]
# benchmarks of our own, which are no tables of the paper: what they show
OWN = {
    "comparison": "All methods under shift, on the same networks, calibrated alike",
    "molecules": "Molecules: values and classes under scaffold and size shift, beside Chemprop",
}
CONTROLS = ("vanilla", "ensemble", "mcdropout")
_ON_COPIES = "temperature+corrupted"  # what `gduq.fit` ends with


def _paper(at: int | str, **changes: Any) -> dict[str, Any]:
    """Trained as in the paper: an anchor for every row, one draw, no masking, from scratch."""
    own = {"method.kind": "anchored", "method.recipe": "paper", "method.at": at}
    return {**own, **changes}


_GDUQ = {"method.kind": "anchored", "method.recipe": "head"}
_HEAD = 0.1  # share of the epochs that "gduq" leaves out, for its head to cost no more

# What a variant changes in the vanilla run. From "nfa" on as in the paper.
VARIANTS: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "ensemble": {"method.kind": "ensemble", "method.size": 3},
    "mcdropout": {"method.kind": "mcdropout"},
    "gduq": _GDUQ,  # a head on a network that was trained a little shorter than vanilla
    "gduq-pretrained": _GDUQ,  # a head on the vanilla network
    "nfa": _paper("input"),
    "L1": _paper(1),
    "L2": _paper(2),
    "readout": _paper("readout"),
    "pretrained": _paper("readout", **{"method.freeze": True, "method.pretrained_from": "vanilla"}),
    "random1": _paper(1, **{"method.anchors": "gaussian"}),
    "random2": _paper(2, **{"method.anchors": "gaussian"}),
    "batch1": _paper(1, **{"method.anchors": "shuffle"}),
    "batch2": _paper(2, **{"method.anchors": "shuffle"}),
    "readout-random": _paper("readout", **{"method.anchors": "gaussian"}),
    "ensemble-readout": {
        **_paper("readout"),
        "method.kind": "ensemble",
        "method.member": "anchored",
        "method.size": 3,
    },
}


def _of_the_paper(changes: Mapping[str, Any]) -> bool:
    return changes.get("method.recipe") == "paper"


@dataclass(frozen=True)
class Scale:
    """How much of the published schedule is done; ``None`` means all of it."""

    hidden: int | None = None
    graph_epochs: int | None = None
    node_epochs: int | None = None
    limit: int | None = None  # graphs, in all splits together
    seeds: int | None = None
    calibrators: int | None = None  # how many of the table's
    extra_epochs: bool = False  # the paper's 50 more for its anchored models on graph tasks
    weight_decay: float = 0.0  # of every method alike; docs/choices.md
    head: HeadKind = "linear"


SCALES: dict[ScaleName, Scale] = {
    "smoke": Scale(16, 3, 10, 240, 2, 2, head="mlp"),
    "small": Scale(64, 50, 400, 3000, 5, None, weight_decay=1e-3, head="mlp"),
    "paper": Scale(extra_epochs=True),
}


@dataclass(frozen=True)
class Setting:
    """A dataset with the network and schedule the paper has for it.

    ``small`` names the data that stands in at small scale where raw files are hard to come by;
    ``small_size`` is the most graphs (``None``: all) and epochs there, for what takes long, and
    ``small_lr`` and ``small_batch`` the learning rate and batch size, for schedules so short that
    the published ones do not arrive.
    """

    data: str
    conv: str = "gin"
    num_layers: int = 3
    epochs: int = 200
    lr: float = 1e-3
    batch_size: int = 32
    virtual_node: bool = False
    positional: str | None = None
    hidden: int = 300
    small: tuple[str, ...] | None = None
    small_size: tuple[int | None, int] | None = None
    small_lr: float | None = None
    small_batch: int | None = None

    @property
    def dataset(self) -> str:
        """The data's name without the shift."""
        return self.data.rpartition("/")[0]

    @property
    def shift(self) -> str:
        return self.data.rpartition("/")[2]

    @property
    def model(self) -> str:
        """Short name of the network: ``vgin`` has a virtual node, ``+lpe`` encodings."""
        encoded = "+lpe" if self.positional and not self.data.startswith("motif-lpe") else ""
        return f"{'v' if self.virtual_node else ''}{self.conv}{encoded}"

    @property
    def on_nodes(self) -> bool:
        from gduq.data.catalog import find

        return find(self.data).task == "node"

    def at(self, scale: ScaleName) -> tuple[Setting, ...]:
        """The setting, or at small scale one for each dataset that stands in (maybe none)."""
        if scale != "small":  # settings that differ in their small scale only are one
            return (replace(self, small=None, small_size=None, small_lr=None, small_batch=None),)
        if self.small is None:
            return (self,)
        return tuple(replace(self, data=name) for name in self.small)

    def config(
        self, variant: str, seed: int, scale: ScaleName, calibrators: tuple[str, ...] = ()
    ) -> RunConfig:
        """The run of a variant and seed."""
        size = SCALES[scale]
        if scale == "small" and self.small_size is not None:
            size = replace(size, limit=self.small_size[0])
        most = size.node_epochs if self.on_nodes else size.graph_epochs
        if scale == "small" and self.small_size is not None:
            most = self.small_size[1]
        epochs = self.epochs if most is None else min(most, self.epochs)
        plain = RunConfig(
            data={"name": self.data, "limit": None if self.on_nodes else size.limit},
            model={
                "conv": self.conv,
                "hidden_channels": min(size.hidden or self.hidden, self.hidden),
                "num_layers": self.num_layers,
                "virtual_node": self.virtual_node,
                "positional": self.positional,
                "head": size.head,
            },
            method={"calibrate": "none"},  # tables calibrate by themselves
            training={
                "epochs": epochs,
                "lr": (self.small_lr if scale == "small" else None) or self.lr,
                "batch_size": (self.small_batch if scale == "small" else None) or self.batch_size,
                "weight_decay": size.weight_decay,
                "select": "last",  # as the released code has it
            },
            calibrators=calibrators,
            seed=seed,
        )
        extra = 50 if size.extra_epochs and not self.on_nodes else 0
        return plain.with_({**VARIANTS[variant], **_epochs(variant, epochs, extra)})


def _epochs(variant: str, epochs: int, extra: int) -> dict[str, int]:
    """The epochs of a variant, where they are not those of vanilla."""
    if variant == "gduq":
        return {"training.epochs": max(1, epochs - max(1, round(_HEAD * epochs)))}
    if not extra or not _of_the_paper(VARIANTS[variant]):
        return {}
    return {"method.epochs" if variant == "pretrained" else "training.epochs": epochs + extra}


@dataclass(frozen=True)
class PaperTable:
    """One table or figure of the paper.

    Args:
        title: What it shows.
        row: Its row in the list of evidence (METHOD); ``None`` for a table of our own.
        labels: Labels of the paper's tables and figures.
        settings: Data and networks.
        smoke: Those of smoke scale, on generated data.
        variants: Methods next to the controls, which are always there.
        large: Those of them that small scale leaves out, for the time they take.
        quick: Data and convolution with which small scale has them all the same.
        calibrators: Post-hoc methods for vanilla and anchored models, next to the controls.
        metrics: What is measured.
        splits: Where.
        seeds: How many the paper has.
        printed: Files of `gduq_reproduction.printed`.
        producer: For a table that is not trained and evaluated: the module of this package that
            makes it, with ``cells``, ``make`` and ``title``, and ``draw`` where there are figures.
        note: What to know when reading it.
    """

    title: str
    row: int | None
    labels: tuple[str, ...]
    settings: tuple[Setting, ...]
    smoke: tuple[Setting, ...]
    variants: tuple[str, ...] = ()
    large: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    calibrators: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy", "ece", "ece100", "nll", "brier", "aurc")
    splits: tuple[str, ...] = ("id_test", "ood_test")
    seeds: int = 3
    printed: tuple[str, ...] = ()
    producer: str | None = None
    note: str = ""

    def settings_at(self, scale: ScaleName) -> tuple[Setting, ...]:
        """Data and networks of a scale."""
        if scale == "smoke":
            return self.smoke
        return tuple(dict.fromkeys(s for setting in self.settings for s in setting.at(scale)))

    def seeds_at(self, scale: ScaleName) -> int:
        return min(self.seeds, SCALES[scale].seeds or self.seeds)

    def calibrators_of(self, variant: str, scale: ScaleName) -> tuple[str, ...]:
        """Calibrators of a variant; ``"none"`` is not named."""
        if variant in ("ensemble", "mcdropout"):
            return ()
        own = self.calibrators[: SCALES[scale].calibrators]
        if variant == "vanilla":
            return ("t2", "temperature", _ON_COPIES, *own)
        if _of_the_paper(VARIANTS[variant]):  # with its averages of logits
            return ("mean_logits", "rescaled_paper", "rescaled_released", "temperature", *own)
        return ("temperature", _ON_COPIES, *own)

    def configs(
        self, scale: ScaleName, seeds: int
    ) -> Iterator[tuple[Setting, str, int, RunConfig]]:
        """Every run of the table: setting, variant, seed, config."""
        for setting in self.settings_at(scale):
            quick = scale != "small" or f"{setting.data} {setting.conv}" in self.quick
            for variant in dict.fromkeys((*CONTROLS, *self.variants)):
                if variant in self.large and not quick:
                    continue
                names = self.calibrators_of(variant, scale)
                for seed in range(seeds):
                    yield setting, variant, seed, setting.config(variant, seed, scale, names)
