"""Our side of the benchmark: the network for molecules, and every method on top of it."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from gduq.anchoring import Recipe, anchor
from gduq.baselines import Ensemble, LastLayerLaplace, MCDropout
from gduq.bundle import load, save
from gduq.data.splits import Splits
from gduq.data.view import View
from gduq.nn.bond_gnn import BondGNN
from gduq.prediction import predict
from gduq.prediction.predictor import Predictor
from gduq.shifts.copies import changes_of
from gduq.training import choose, fit
from gduq_reproduction.molecules.answers import COPY, SPLITS, StoredAnswers
from gduq_reproduction.molecules.plan import MEMBERS, MoleculeJob

__all__ = ["copies_by_name", "one_thread", "run"]

BATCH = 64  # Chemprop's
LR, FALLS, GAMMA = 3e-3, (0.6, 0.84), 0.3  # the learning rate falls after these shares of epochs
THAWED = 4  # training goes on for this part of the epochs
_SEVERITIES = (3, 5)


def run(job: MoleculeJob) -> None:
    """All of our methods on one split; what is there already is not made again."""
    work = _Work(job, job.splits())
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # hypotheses that agree show in the table
        for method, make in _MAKERS.items():
            if method in job.methods and not job.file(method).is_file():
                make(work).save(job.file(method))


@dataclass
class _Work:
    """A split, and what methods share: the trained plain network."""

    job: MoleculeJob
    splits: Splits

    @property
    def val(self) -> View:
        assert self.splits.id_val is not None
        return self.splits.id_val

    def plain(self) -> tuple[nn.Module, float]:
        """The trained network and the seconds it took; trained once, kept on disk."""
        path = self.job.folder / "network.safetensors"
        if not path.is_file() or not self.job.file("vanilla").is_file():
            fresh, seconds = self.trained(self.job.seed * 100)
            self.answers(fresh, seconds).save(self.job.file("vanilla"))
            save(fresh, path)
        model, _ = load(path)
        net: nn.Module = model.get_submodule("net")
        return net, StoredAnswers.load(self.job.file("vanilla")).seconds

    def trained(self, seed: int) -> tuple[nn.Module, float]:
        """A network with weights of its own, trained as its docstring advises."""
        torch.manual_seed(seed)
        net, epochs = BondGNN(out_channels=1 if self.job.is_values else 2), self.job.epochs
        falls = [round(share * epochs) for share in FALLS]
        schedule = {"epochs": epochs, "lr": LR, "milestones": falls, "gamma": GAMMA}
        return net, self.fitted(net, batch_size=BATCH, seed=seed, **schedule)

    def fitted(self, model: nn.Module, **options: object) -> float:
        """Train; seconds of processor time."""
        start = time.process_time()
        chosen = {"seed": self.job.seed, "calibrate": None, "progress": False, **options}
        fit(model, self.splits.train, self.val, **chosen)  # type: ignore[arg-type]
        return time.process_time() - start

    def answers(self, model: nn.Module, seconds: float, **notes: object) -> StoredAnswers:
        """What a model says of all rows, before calibration."""
        views = {name: getattr(self.splits, name) for name in SPLITS}
        views |= copies_by_name(self.val, self.job.seed)
        found = {name: predict(model, view, novelty=False) for name, view in views.items()}
        return StoredAnswers(found, seconds, notes)


def copies_by_name(view: View, seed: int) -> dict[str, View]:
    """The shifted copies of `gduq.shifts.copies.shifted_copies`, by name."""
    pairs = [(change, severity) for change in changes_of(view) for severity in _SEVERITIES]
    return {
        f"{COPY}{change.__name__}{severity}": change(view, severity, seed + i)
        for i, (change, severity) in enumerate(pairs)
    }


# -- methods ---------------------------------------------------------------------------------------


def _vanilla(work: _Work) -> StoredAnswers:
    work.plain()
    return StoredAnswers.load(work.job.file("vanilla"))


def _gduq(work: _Work) -> StoredAnswers:
    """An anchored head on the plain network."""
    net, seconds = work.plain()
    model = anchor(net, seed=work.job.seed, like=work.splits.train.graphs[0])
    return work.answers(model, seconds + work.fitted(model))


def _thawed(work: _Work) -> StoredAnswers:
    """Training goes on with anchors at the last layer."""
    net, seconds = work.plain()
    like = work.splits.train.graphs[0]
    model = anchor(net, recipe=Recipe.thawed(), seed=work.job.seed, like=like)
    epochs = max(1, work.job.epochs // THAWED)
    return work.answers(model, seconds + work.fitted(model, epochs=epochs, batch_size=BATCH))


def _choose(work: _Work) -> StoredAnswers:
    """The mixture that validation rows choose: a head and the nearest rows (of values: Laplace) are
    candidates."""
    net, seconds = work.plain()
    start = time.process_time()
    model = choose(net, work.splits.train, work.val, seed=work.job.seed, progress=False)
    seconds += time.process_time() - start
    assert model.leaderboard is not None
    weights = dict(zip(model.leaderboard["candidate"], model.leaderboard["weight"], strict=True))
    model.set_temperature(1.0, None)
    return work.answers(model, seconds, weights={k: float(v) for k, v in weights.items()})


def _laplace(work: _Work) -> StoredAnswers:
    net, seconds = work.plain()
    model = LastLayerLaplace(net, seed=work.job.seed)
    return work.answers(model, seconds + work.fitted(model))


def _ensemble(work: _Work) -> StoredAnswers:
    net, seconds = work.plain()
    more = [work.trained(work.job.seed * 100 + i) for i in range(1, MEMBERS)]
    model: Predictor = Ensemble([net, *(member for member, _ in more)])
    spent = work.fitted(model, epochs=0)
    return work.answers(model, seconds + spent + sum(each for _, each in more))


def _mcdropout(work: _Work) -> StoredAnswers:
    net, seconds = work.plain()
    model = MCDropout(net, seed=work.job.seed)
    return work.answers(model, seconds + work.fitted(model, epochs=0))


_MAKERS: dict[str, Callable[[_Work], StoredAnswers]] = {
    "vanilla": _vanilla,
    "gduq": _gduq,
    "gduq-thawed": _thawed,
    "gduq-choose": _choose,
    "laplace": _laplace,
    "mcdropout": _mcdropout,
    "ensemble": _ensemble,
}


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Times are of one thread, as the peer's are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
