"""What tables are made of: settings (data and network), variants (methods) and scales."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from gduq.experiments.config import RunConfig

__all__ = ["CONTROLS", "SCALES", "VARIANTS", "Scale", "ScaleName", "Setting", "Table"]

ScaleName = Literal["smoke", "small", "paper"]
CONTROLS = ("vanilla", "ensemble", "mcdropout")

VARIANTS: dict[str, dict[str, Any]] = {
    "vanilla": {"kind": "vanilla"},
    "ensemble": {"kind": "ensemble", "size": 3},
    "mcdropout": {"kind": "mcdropout"},
    "nfa": {"kind": "anchored", "at": "input"},
    "L1": {"kind": "anchored", "at": 1},
    "L2": {"kind": "anchored", "at": 2},
    "readout": {"kind": "anchored", "at": "readout"},
    "pretrained": {
        "kind": "anchored",
        "at": "readout",
        "freeze": True,
        "pretrained_from": "vanilla",
    },
    "random1": {"kind": "anchored", "at": 1, "anchors": "gaussian"},
    "random2": {"kind": "anchored", "at": 2, "anchors": "gaussian"},
    "batch1": {"kind": "anchored", "at": 1, "anchors": "shuffle"},
    "batch2": {"kind": "anchored", "at": 2, "anchors": "shuffle"},
    "readout-random": {"kind": "anchored", "at": "readout", "anchors": "gaussian"},
    "ensemble-readout": {"kind": "ensemble", "member": "anchored", "at": "readout", "size": 3},
}


@dataclass(frozen=True)
class Scale:
    """How much of the published schedule is done; ``None`` means all of it."""

    hidden: int | None = None
    graph_epochs: int | None = None
    node_epochs: int | None = None
    limit: int | None = None  # graphs, in all splits together
    seeds: int | None = None
    calibrators: int | None = None  # how many of the table's
    extra_epochs: bool = False  # the paper's 50 more for anchored models on graph tasks


SCALES: dict[ScaleName, Scale] = {
    "smoke": Scale(16, 3, 10, 240, 2, 2),
    "small": Scale(64, 25, 200, 3000, 3, None),
    "paper": Scale(extra_epochs=True),
}


@dataclass(frozen=True)
class Setting:
    """A dataset with the network and schedule the paper has for it.

    ``small`` names the data that stands in at small scale where raw files are hard to come by;
    ``small_size`` is the most graphs and epochs there, for networks that take long.
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
    small: str | None = None
    small_size: tuple[int, int] | None = None

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

    def at(self, scale: ScaleName) -> Setting:
        """The setting with the data of a scale."""
        return replace(self, data=self.small) if scale == "small" and self.small else self

    def config(
        self, variant: str, seed: int, scale: ScaleName, calibrators: tuple[str, ...] = ()
    ) -> RunConfig:
        """The run of a variant and seed."""
        size = SCALES[scale]
        if scale == "small" and self.small_size is not None:
            size = replace(size, limit=self.small_size[0], graph_epochs=self.small_size[1])
        most = size.node_epochs if self.on_nodes else size.graph_epochs
        epochs = self.epochs if most is None else min(most, self.epochs)
        anchored = VARIANTS[variant]["kind"] == "anchored" or variant == "ensemble-readout"
        if size.extra_epochs and anchored and not self.on_nodes:
            epochs += 50
        return RunConfig(
            data={"name": self.data, "limit": None if self.on_nodes else size.limit},
            model={
                "conv": self.conv,
                "hidden_channels": min(size.hidden or self.hidden, self.hidden),
                "num_layers": self.num_layers,
                "virtual_node": self.virtual_node,
                "positional": self.positional,
            },
            method=VARIANTS[variant],
            training={
                "epochs": epochs,
                "lr": self.lr,
                "batch_size": self.batch_size,
                "select": "last",  # as the released code has it
            },
            calibrators=calibrators,
            seed=seed,
        )


@dataclass(frozen=True)
class Table:
    """One table or figure of the paper.

    Args:
        title: What it shows.
        row: Its row in the list of evidence (METHOD).
        labels: Labels of the paper's tables and figures.
        settings: Data and networks.
        smoke: Those of smoke scale, on generated data.
        variants: Methods next to the controls, which are always there.
        calibrators: Post-hoc methods for vanilla and anchored models, next to the controls.
        metrics: What is measured.
        splits: Where.
        seeds: How many the paper has.
        printed: Files of `gduq.experiments.paper`.
        producer: For a table that is not trained and evaluated: who makes it.
        note: What to know when reading it.
    """

    title: str
    row: int
    labels: tuple[str, ...]
    settings: tuple[Setting, ...]
    smoke: tuple[Setting, ...]
    variants: tuple[str, ...] = ()
    calibrators: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy", "ece", "ece100")
    splits: tuple[str, ...] = ("ood_test",)
    seeds: int = 3
    printed: tuple[str, ...] = ()
    producer: str | None = None
    note: str = ""

    def settings_at(self, scale: ScaleName) -> tuple[Setting, ...]:
        """Data and networks of a scale."""
        if scale == "smoke":
            return self.smoke
        return tuple(dict.fromkeys(setting.at(scale) for setting in self.settings))

    def seeds_at(self, scale: ScaleName) -> int:
        return min(self.seeds, SCALES[scale].seeds or self.seeds)

    def calibrators_of(self, variant: str, scale: ScaleName) -> tuple[str, ...]:
        """Calibrators of a variant; ``"none"`` is not named."""
        if variant in ("ensemble", "mcdropout"):
            return ()
        own = self.calibrators[: SCALES[scale].calibrators]
        if variant == "vanilla":
            return ("t2", "temperature", *own)
        return ("rescaled_paper", "rescaled_released", "temperature", *own)

    def configs(
        self, scale: ScaleName, seeds: int
    ) -> Iterator[tuple[Setting, str, int, RunConfig]]:
        """Every run of the table: setting, variant, seed, config."""
        for setting in self.settings_at(scale):
            for variant in dict.fromkeys((*CONTROLS, *self.variants)):
                names = self.calibrators_of(variant, scale)
                for seed in range(seeds):
                    yield setting, variant, seed, setting.config(variant, seed, scale, names)
