"""Attacks on the commands, each of which once gave a traceback, a hang or a silent mistake."""

from __future__ import annotations

import os

import pytest

from gduq.cli.base import print_rows
from gduq.data import save
from gduq.data.outputs import printable
from tests.cli.cases import bundle, refused, rings
from tests.cli.hostile import nested, run_folder
from tests.tampering import joined, split_up

# -- configs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "seed = 18446744073709551616",
        "seed = " + "9" * 5000,
        f"seed = {nested(5000)}",
        "[model]\nhidden_channels = 1000000000",
        "[model]\nnum_layers = 1000000000",
        "[training]\nepochs = 1000000000000000000000000000000",
        "[method]\nkind = 'ensemble'\nsize = 1000000",
        "[data]\nname = '\\u001B[31mred'",
    ],
)
def test_configs_out_of_all_bounds(tmp_path, text):
    path = tmp_path / "run.toml"
    data = "" if "[data]" in text else '\n[data]\nname = "cbas/color/concept"\n'
    path.write_text(f"{text}{data}")
    message = refused("train", path, "--root", tmp_path)
    assert "\x1b" not in message


@pytest.mark.parametrize("value", ["1" + "0" * 5000, nested(5000), "nan", "1e999", "\x1b"])
def test_options_out_of_all_bounds(tmp_path, value):
    data = ("cbas/color/concept", "--root", tmp_path)
    refused("train", *data, "--set", f"training.epochs={value}")


# -- files of graphs -----------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "safetensors"])
def test_pipes_and_devices_are_no_graphs(tmp_path, ending):
    model, out = bundle(tmp_path / "model"), tmp_path / "out.csv"
    pipe, link = tmp_path / f"pipe.{ending}", tmp_path / f"zero.{ending}"
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    for path in (pipe, link, model):
        refused("predict", model, path, "-o", out)


def test_a_header_of_one_endless_field(tmp_path):
    table = tmp_path / "wide.csv"
    table.write_text("s" * 200_000 + "\nCCO\n")
    refused("predict", bundle(tmp_path / "model"), table, "-o", tmp_path / "out.csv")


def reworded(raw: bytes, **words: str) -> bytes:
    """A graph file with other words in its header, sealed anew as anybody can."""
    header, body = split_up(raw)
    header["__metadata__"] |= words
    return joined(header, body)


def test_a_graph_file_with_text_that_is_no_utf8_is_refused(tmp_path):
    graphs = rings(3)
    for graph in graphs:
        graph.smiles = "CCO"
    path = save(graphs, tmp_path / "graphs.safetensors")
    raw = path.read_bytes()
    spoilt = raw.replace(b'"CCO", "CCO"', b'"CCO", "\xff\xfe\xfd"')
    assert spoilt != raw
    path.write_bytes(reworded(spoilt))
    refused("predict", bundle(tmp_path / "model"), path, "-o", tmp_path / "out.csv")


# -- bundles -------------------------------------------------------------------------------------


def test_bundles_that_are_nothing_but_depth(tmp_path):
    model = bundle(tmp_path / "model")
    model.write_bytes(reworded(model.read_bytes(), document=nested(100_000)))
    graphs = save(rings(3), tmp_path / "graphs.safetensors")
    refused("predict", model, graphs, "-o", tmp_path / "out.csv")


def test_names_do_not_steer_the_terminal(tmp_path, capsys):
    evil = "\x1b]0;owned\x07\x1b[2J\u202eabc\ud800"
    print_rows([{"class": evil}, {"class": "[red]x[/red]", "b": None}])
    shown = capsys.readouterr().out
    assert not set("\x1b\x07\u202e\ud800") & set(shown)
    assert "[red]x[/red]" in shown
    message = refused("predict", tmp_path / evil[:-1].replace("/", ""), tmp_path, "-o", "x.csv")
    assert "\x1b" not in message
    assert printable(evil).isprintable()
    assert printable("Ünï cödé 分子 ✓") == "Ünï cödé 分子 ✓"


# -- run folders ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run_folder(tmp_path_factory.mktemp("runs") / "run")


@pytest.mark.parametrize("name", ["config.json", "info.json", "metrics.json"])
def test_damaged_run_folders(folder, tmp_path, name):
    path = folder / name
    before = path.read_bytes()
    try:
        path.write_text(nested(100_000))
        refused("report", folder, "-o", tmp_path / "report.html")
        path.unlink()
        os.mkfifo(path)
        if name != "metrics.json":  # made anew where there is none
            refused("report", folder, "-o", tmp_path / "report.html")
    finally:
        path.unlink()
        path.write_bytes(before)
    assert not (tmp_path / "report.html").exists()
