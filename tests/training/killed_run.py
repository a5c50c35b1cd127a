"""Training runs that are killed with SIGKILL and resumed, run as a script by test_checkpoint.

A process that has imported everything forks a child for every attempt: killing is real, and cheap.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch_geometric.loader import DataLoader

import gduq
import gduq.training.fitting
import gduq.training.loop
from gduq.nn import GNN
from tests.training.cases import graphs

EPOCHS = 4
gduq.training.loop._RARELY = 0  # a checkpoint after every epoch, however short


def network(seed: int) -> GNN:
    torch.manual_seed(seed)
    return GNN(4, 6, 3, num_layers=2, head="mlp").double()


def anchored(seed: int, at: int | str, **options: Any) -> nn.Module:
    recipe = gduq.Recipe.thawed(at=at, num_anchors=4, init="random", **options)
    return gduq.anchor(network(seed), recipe=recipe)


# name -> (model of a seed, training data): dropout, BatchNorm, random anchors and loaders
CASES: dict[str, tuple[Callable[[int], nn.Module], Callable[[], Any]]] = {
    "readout": (lambda s: anchored(s, "readout"), lambda: graphs(12)),
    "input": (lambda s: anchored(s, "input"), lambda: graphs(12)),
    "hidden": (lambda s: anchored(s, 1, anchors="gaussian"), lambda: graphs(12)),
    "frozen": (lambda s: anchored(s, 1, freeze=True), lambda: graphs(12)),
    "loader": (network, lambda: DataLoader(graphs(12), batch_size=5, shuffle=True)),
}


def train(case: str, resume: Path | None, seed: int = 0) -> nn.Module:
    make, data = CASES[case]
    model = make(seed)
    gduq.training.fit(
        model,
        data(),
        graphs(24, seed=7),
        epochs=EPOCHS,
        lr=0.02,
        batch_size=5,
        milestones=[2],
        resume=resume,
        progress=False,
    )
    return model


def attempt(work: Callable[[], None]) -> bool:
    """Do it in a child; whether it came to its end."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    if os.WEXITSTATUS(status):
        raise RuntimeError("a training run failed")
    return True


def killed_at(owner: Any, name: str, count: int, before: bool) -> None:
    """Let the process kill itself at the count-th call of a function."""
    function, calls = getattr(owner, name), [0]

    def deadly(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if before and calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        found = function(*args, **options)
        if calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(owner, name, deadly)


def check(case: str, folder: Path, points: list[tuple[Any, str, int, bool]]) -> int:
    """Kill a run at each of the points, resume it, compare; how many kills there were."""
    whole, kills = folder / "whole.safetensors", 0

    def finish(resume: Path | None, result: Path) -> None:
        # another initialisation, unless nothing was written: the checkpoint's weights count
        seed = int(resume is not None and (resume / "checkpoint.pt").exists())
        save_file(dict(train(case, resume, seed).state_dict()), result)

    def die_at(point: tuple[Any, str, int, bool], resume: Path) -> None:
        killed_at(*point)
        train(case, resume)

    attempt(partial(finish, None, whole))
    for number, point in enumerate(points):
        resume, result = folder / str(number), folder / f"{number}.safetensors"
        kills += not attempt(partial(die_at, point, resume))
        attempt(partial(finish, resume, result))
        a, b = load_file(whole), load_file(result)
        if a.keys() != b.keys() or not all(torch.equal(a[k], b[k]) for k in a):
            raise RuntimeError(f"{case}: killed at {point[1:]}, resumed to other weights")
    return kills


def main() -> None:
    random.seed(int(sys.argv[1]))
    torch.set_num_threads(1)
    learner = gduq.training.fitting.GraphLearner
    for case in sys.argv[2:]:
        places = [
            (learner, "losses", random.randint(1, 3 * EPOCHS - 1), random.random() < 0.5),
            (learner, "validate", random.randint(1, EPOCHS), True),
            (gduq.training.fitting, "finish_model", 1, True),
            (os, "fsync", random.randint(1, EPOCHS + 1), True),
            (os, "replace", random.randint(1, EPOCHS + 1), random.random() < 0.5),
        ]
        with tempfile.TemporaryDirectory() as folder:
            kills = check(case, Path(folder), places)
            if kills != len(places):
                raise RuntimeError(f"{case}: only {kills} of {len(places)} runs were killed")
        sys.stdout.write(f"{case} ")


if __name__ == "__main__":
    main()
