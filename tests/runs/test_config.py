"""Configs: checked, readable, and found again by their hash."""

from __future__ import annotations

import pytest

from gduq.errors import InputError
from gduq.runs.config import RunConfig
from gduq.runs.run import requirements

DATA = {"name": "cbas/color/concept"}
TOML = """
seed = 3
[data]
name = "motif/basis/covariate"
limit = 100
[method]
kind = "thawed"
at = 1
[training]
epochs = 7
milestones = [3, 5]
"""


def test_read(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    config = RunConfig.read(path)
    assert (config.seed, config.data.limit, config.method.at) == (3, 100, 1)
    assert config.training.milestones == (3, 5)
    changed = RunConfig.read(path, {"training.epochs": 9, "seed": 1, "method.at": "readout"})
    assert (changed.training.epochs, changed.seed, changed.method.at) == (9, 1, "readout")


def test_the_hash_is_stable():
    """If this fails, every run on disk of every user is repeated: raise _VERSION on purpose."""
    assert RunConfig(data=DATA).hash == "55541b8023cf924c"


def test_what_matters_changes_the_hash():
    config = RunConfig(data=DATA, method={"kind": "head"})
    mattering = [{"seed": 1}, {"data.seed": 1}, {"data.limit": 10}, {"model.dropout": 0.1},
                 {"training.lr": 0.1}, {"method.kind": "paper"}, {"method.calibrate": "none"},
                 {"method.at": "input"}, {"method.draws": 4}, {"method.mask": 0.2}]  # fmt: skip
    assert len({config.with_(change).hash for change in [{}, *mattering]}) == 11
    rest = [{"calibrators": ("spline",)}, {"resamples": 10}]
    assert {config.with_(change).hash for change in rest} == {config.hash}


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ({"data": DATA, "training": {"epoch": 5}}, "training.epochs"),
        ({"data": DATA, "trainig": {}}, "training"),
        ({"data": DATA, "epochs": 5}, "training.epochs"),
        ({"data": DATA, "training": {"draws": 4}}, "method.draws"),
        ({"data": {"name": "cbas/colour/concept"}}, "cbas/color/concept"),
        ({"data": DATA, "calibrators": ["temprature"]}, "temperature"),
        ({"data": DATA, "training": {"epochs": 0}}, ""),
        ({"data": DATA, "training": {"lr": "fast"}}, ""),
        ({"data": DATA, "method": {"kind": "bayes"}}, ""),
        ({"data": DATA, "method": {"kind": "head", "mask": 1.5}}, ""),
        ({"data": DATA, "method": {"kind": "plain", "at": "head"}}, ""),
        ({"data": DATA, "method": {"calibrate": "clean"}}, ""),
        ({"data": {}}, ""),
        ({}, ""),
        ({"data": 3}, ""),
    ],
)
def test_mistakes_are_explained(values, advice):
    with pytest.raises(InputError) as found:
        RunConfig(**values)
    assert advice in found.value.do


@pytest.mark.parametrize("content", [None, b"seed = = 3", b"\xff\xfe", b"data = 3"])
def test_bad_files(tmp_path, content):
    path = tmp_path / "bad.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError):
        RunConfig.read(path, {"data.name": "cbas/color/concept"})


def test_requirements():
    plain = RunConfig(data=DATA, seed=2, method={"kind": "plain"})
    assert requirements(plain) == []
    assert requirements(plain.with_({"method.kind": "paper"})) == []
    members = requirements(plain.with_({"method.kind": "ensemble"}))
    assert [m.seed for m in members] == [2, 3, 4]
    assert members[0].hash == plain.hash
    for method in ("choose", "head", "thawed", "heads", "laplace"):
        config = plain.with_({"method": {"kind": method}, "calibrators": ("spline",)})
        assert requirements(config) == [plain]  # one network for all of them
