"""`gduq export`: a bundle in, a file that runs on its own out."""

import json
import socket

import pytest
import torch
from torch_geometric.data import Batch, Data

import gduq
from gduq.data import save
from tests.cli.cases import refused, run


def graphs(count, seed):
    generator = torch.Generator().manual_seed(seed)
    ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    return [
        Data(x=torch.randn(4, 3, generator=generator), edge_index=ring, y=i % 2)
        for i in range(count)
    ]


def fitted(path):
    torch.manual_seed(0)
    net = gduq.nn.GNN(3, 4, 2, num_layers=2, conv="gin")
    gduq.fit(net, graphs(25, 1), graphs(25, 2), epochs=1, progress=False)
    return gduq.save(net, path)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return fitted(tmp_path_factory.mktemp("m") / "model")


@pytest.fixture
def like(tmp_path):
    """A lone node comes first; others follow."""
    lone = Data(x=torch.ones(1, 3), edge_index=torch.zeros(2, 0).long(), y=0)
    return save([lone, *graphs(3, 3)], tmp_path / "like.safetensors")


def test_the_file_says_what_the_bundle_says(model, like, tmp_path):
    done = run("export", model, "-o", tmp_path / "model.pt2", "--like", like, "--json")
    assert json.loads(done.output)["bytes"] == (tmp_path / "model.pt2").stat().st_size
    program = torch.export.load(tmp_path / "model.pt2").module()
    new = graphs(6, 4)
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
