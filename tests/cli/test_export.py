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


def test_what_a_calibrator_says_is_in_the_file(model, like, tmp_path):
    net, _ = gduq.load(model)
    both, new = tmp_path / "calibrated", graphs(6, 4)
    fitted = gduq.calibration.VectorScaling().fit(gduq.predict(net, graphs(25, 2)))
    gduq.save(net, both, fitted)
    run("export", both, "-o", tmp_path / "model.pt2", "--like", like)
    program, whole = torch.export.load(tmp_path / "model.pt2").module(), Batch.from_data_list(new)
    said = program(x=whole.x, edge_index=whole.edge_index, sizes=whole.ptr.diff())
    p = gduq.predict(net, new)
    torch.testing.assert_close(said["probs"], fitted(p).probs, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(said["probs"], p.probs, atol=1e-3)


def test_a_calibrator_that_reads_the_graph_is_not_lost_in_silence(model, like, tmp_path):
    net, both = gduq.load(model)[0], tmp_path / "calibrated"
    gduq.save(net, both, gduq.calibration.CaGCN(graphs(1, 2)[0]).neutral(2, 1))
    words = ("export", both, "-o", tmp_path / "model.pt2", "--like", like)
    refused(*words)
    assert not (tmp_path / "model.pt2").exists()
