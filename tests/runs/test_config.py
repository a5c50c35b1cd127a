"""Configs: checked, readable, and found again by their hash."""

from __future__ import annotations

import pytest

from gduq.errors import InputError
from gduq.runs.config import RunConfig
from gduq.runs.run import requirements

DATA = {"name": "cbas/color/concept"}
TOML = """
seed = 3
calibrators = ["temperature", "vector"]

[data]
name = "motif/basis/covariate"
limit = 100

[model]
conv = "gin"
hidden_channels = 32

[method]
kind = "anchored"
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
    assert RunConfig(data=DATA).hash == "5db442933ae3b581"


def test_what_matters_changes_the_hash():
    config, kind = RunConfig(data=DATA), {"method.kind": "anchored"}
    mattering = [{"seed": 1}, {"data.seed": 1}, {"data.limit": 10}, {"model.dropout": 0.1}, kind]
    mattering += [{"training.lr": 0.1}, {"method.kind": "mcdropout"}, {"method.calibrate": "none"}]
    assert len({config.with_(change).hash for change in [{}, *mattering]}) == 9
    rest = [{"calibrators": ("spline",)}, {"resamples": 10}, {"method.size": 5}]
    recipe = [{"method.at": "input"}, {"method.draws": 4}, {"method.mask": 0.2}]
    recipe += [{"method.recipe": "paper"}, {"method.num_anchors": 3}]
    assert {config.with_(change).hash for change in rest + recipe} == {config.hash}
    anchored = config.with_(kind)
    assert {anchored.with_(change).hash for change in rest} == {anchored.hash}
    assert len({anchored.with_(change).hash for change in [{}, *recipe]}) == 6


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
        ({"data": DATA, "method": {"mask": 1.5}}, ""),
        ({"data": DATA, "method": {"pretrained_from": "/nowhere"}}, ""),
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
    config = RunConfig(data=DATA, seed=2, calibrators=("spline",))
    assert requirements(config) == []
    scratch = {"method": {"kind": "anchored", "recipe": "paper"}}
    assert requirements(config.with_(scratch)) == []
    members = requirements(config.with_({"method.kind": "ensemble"}))
    assert [m.seed for m in members] == [2, 3, 4]  # the first is the vanilla run
    assert {m.method.kind for m in members} == {"vanilla"}
    frozen = {**scratch["method"], "freeze": True, "pretrained_from": "vanilla"}
    kinds = [{"kind": k} for k in ("mcdropout", "anchored", "heads", "laplace", "choose")]
    for method in (*kinds, {"kind": "anchored", "draws": 4}, {"kind": "anchored", "at": 1}, frozen):
        (plain,) = requirements(config.with_({"method": method}))
        assert plain.hash == config.hash  # one plain network for all of them
        assert plain.calibrators == ()


def test_a_place_without_a_recipe_means_thawed():
    config = RunConfig(data=DATA, method={"kind": "anchored", "at": 1})
    assert config.method.recipe_name == "thawed"
    assert config.hash == config.with_({"method.recipe": "thawed"}).hash
    assert config.with_({"method.at": "head"}).method.recipe_name == "head"
    assert config.with_({"method.recipe": "paper"}).hash != config.hash
