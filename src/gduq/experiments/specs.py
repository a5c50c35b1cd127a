"""What tables are made of: settings (data and network), variants (methods) and scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from gduq.experiments.config import RunConfig
from gduq.nn.settings import HeadKind

__all__ = ["CONTROLS", "SCALES", "VARIANTS", "Scale", "ScaleName", "Setting", "Table"]

ScaleName = Literal["smoke", "small", "paper"]
CONTROLS = ("vanilla", "ensemble", "mcdropout")
_ON_COPIES = "anchor_aware+corrupted"  # of one hypothesis: temperature scaling on spoilt copies too
_ONE_DRAW = {"training.draws": 1, "training.mask": 0.0}


def _anchored(at: int | str, **changes: Any) -> dict[str, Any]:
    start = {"method.init": "random", "method.temper": False}
    published = {"method.scope": "row", "method.head": None, **start, **_ONE_DRAW}
    return {"method.kind": "anchored", "method.at": at, **published, **changes}


_FROZEN = {"method.freeze": True, "method.pretrained_from": "vanilla"}
# The settings that docs/choices.md has the evidence for: an anchored head on a plain network.
_GDUQ = _anchored(
    "readout",
    **{
        "method.head": "mlp",
        "method.init": "identity",
        "method.temper": True,
        "training.draws": 10,
        "training.mask": 0.2,
        **_FROZEN,
    },
)


def _anywhere(at: int | str) -> dict[str, Any]:
    """One setting for all places, to compare them by; before the readout, draws cost."""
    ours = {"method.temper": False, "method.scope": "graph", "method.freeze": at != "input"}
    return {**_GDUQ, "method.at": at, **ours, "training.draws": 4, "training.mask": 0.1}


_HEAD = 0.1  # the head's share of the epochs
_PLACES: dict[str, int | str] = {f"gduq-{at}": at for at in ("input", 1, 2, "readout")}
# Their epochs are divided between a plain network and its head.
_DIVIDED = ("gduq", "gduq-unlabelled", "auto", *_PLACES)

# What a variant changes in the vanilla run. From "nfa" on trained as in the paper: an anchor for
# every row, one draw, no masking; the head is that of the vanilla network.
VARIANTS: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "ensemble": {"method.kind": "ensemble", "method.size": 3},
    "mcdropout": {"method.kind": "mcdropout"},
    "gduq": _GDUQ,  # as many epochs as vanilla: first the plain network's, then the head's
    # the same without a look at validation labels (for select="last" makes none either)
    "gduq-unlabelled": {**_GDUQ, "method.temper": "distance"},
    "gduq-pretrained": _GDUQ,  # the head's come on top of a finished vanilla network
    "auto": _anywhere("auto"),
    **{name: _anywhere(at) for name, at in _PLACES.items()},
    "nfa": _anchored("input"),
    "L1": _anchored(1),
    "L2": _anchored(2),
    "readout": _anchored("readout"),
    "pretrained": _anchored("readout", **_FROZEN),
    "random1": _anchored(1, **{"method.anchors": "gaussian"}),
    "random2": _anchored(2, **{"method.anchors": "gaussian"}),
    "batch1": _anchored(1, **{"method.anchors": "shuffle"}),
    "batch2": _anchored(2, **{"method.anchors": "shuffle"}),
    "readout-random": _anchored("readout", **{"method.anchors": "gaussian"}),
    "ensemble-readout": {
        **_anchored("readout"),
        "method.kind": "ensemble",
        "method.member": "anchored",
        "method.size": 3,
    },
}


def _of_the_paper(changes: Mapping[str, Any]) -> bool:
    return "method.at" in changes and changes["method.head"] is None


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
    head: HeadKind = "linear"  # of every network but G-ΔUQ's, which always has two layers


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
        changes = VARIANTS[variant]
        if size.extra_epochs and _of_the_paper(changes) and not self.on_nodes:
            epochs += 50
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
        return plain.with_({**changes, **self._parts(variant, epochs)})

    def _parts(self, variant: str, epochs: int) -> dict[str, Any]:
        """How a variant divides the epochs between a plain network and an anchored head."""
        head = max(1, round(_HEAD * epochs))
        if variant in _DIVIDED:  # its network has the head's kind from the start
            own = {"model.head": "mlp", "method.plain_epochs": max(1, epochs - head)}
        elif variant == "gduq-pretrained":
            own = {"method.plain_epochs": epochs}
        else:
            return {}
        return {**own, "training.epochs": head}


@dataclass(frozen=True)
class Table:
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
        printed: Files of `gduq.experiments.paper`.
        producer: For a table that is not trained and evaluated: who makes it.
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
        if variant in ("ensemble", "mcdropout", "gduq-unlabelled"):
            return ()
        own = self.calibrators[: SCALES[scale].calibrators]
        if variant == "vanilla":
            return ("t2", "temperature", _ON_COPIES, *own)
        if _of_the_paper(VARIANTS[variant]):  # with its rescaling
            return ("rescaled_paper", "rescaled_released", "temperature", *own)
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
