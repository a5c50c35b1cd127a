"""`gduq export`: a bundle in, a file that runs on its own out."""

import socket

import pytest
import torch
from torch_geometric.data import Batch, Data

import gduq
from gduq.data import save
from tests.cli.cases import network, refused, rings, run


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    net = network()
    gduq.fit(net, rings(25, 1), rings(25, 2), epochs=1, progress=False)
    return gduq.save(net, tmp_path_factory.mktemp("m") / "model")


@pytest.fixture
def like(tmp_path):
    """A lone node comes first; others follow."""
    lone = Data(x=torch.ones(1, 3), edge_index=torch.zeros(2, 0).long(), y=torch.zeros(1).long())
    return save([lone, *rings(3, 3)], tmp_path / "like.safetensors")


def test_the_file_says_what_the_bundle_says(model, like, tmp_path):
    run("export", model, "-o", tmp_path / "model.pt2", "--like", like)
    program = torch.export.load(tmp_path / "model.pt2").module()
    new = rings(6, 4)
    whole = Batch.from_data_list(new)
    said = program(x=whole.x, edge_index=whole.edge_index, sizes=whole.ptr.diff())
    p = gduq.predict(gduq.load(model)[0], new)
    torch.testing.assert_close(said["probs"], p.probs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(said["novelty"], p.novelty)


def test_mistakes_are_one_sentence(model, like, tmp_path):
    (tmp_path / "like.csv").touch()
    for words in (
        ("export", model, "-o", tmp_path / "m.txt", "--like", like),
        ("export", model, "-o", tmp_path / "m.onnx", "--like", "nowhere.csv"),
        ("export", model, "-o", like, "--like", like, "--force"),
        ("export", "nowhere", "-o", tmp_path / "m.onnx", "--like", like),
        ("serve", "nowhere", "--port", 0),
        ("serve", model, "--calibration-data", "nowhere.csv", "--port", 0),
        ("serve", model, "--max-novelty", 2, "--port", 0),
    ):
        refused(*words)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused("serve", model, "--port", taken.getsockname()[1])
