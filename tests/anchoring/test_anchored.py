"""The wrapper: what must always hold (DESIGN.md §6), for every backbone and every cut."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
import torch_geometric
from torch import Tensor
from torch_geometric.data import Batch, Data

import gduq
from gduq import InputError, NotFittedError
from gduq.anchoring.anchors import Anchors, GaussianAnchors, ShuffledAnchors
from gduq.data import View
from gduq.nn import GNN
from gduq.nn.gnn_settings import ChainPoint
from gduq.tracing.call import evaluating
from naive import NaiveGNN
from tests.nn.test_gnn import CONVS, full_graph, make_graph, make_net

POINTS: tuple[ChainPoint, ...] = ("input", 1, 2, "readout")
CASES = [(conv, at) for conv in CONVS for at in POINTS]
WITH = ("gin", "graph")  # a virtual node and encodings
DEEPER = [case for case in CASES if case[1] != "input"]  # something comes before and can be frozen


GRAPH = make_graph(6, 0)


def anchored(
    net: GNN, at: ChainPoint, k: int = 4, source: Anchors | None = None, **options: object
) -> gduq.Anchored:
    model = gduq.anchor(net, at, num_anchors=k, **({"init": "random"} | options)).double().eval()
    model.source = source or model.source
    graphs = [make_graph(6, seed) for seed in range(20, 26)]
    for g in graphs:
        g.pe, g.edge_attr = torch.zeros(6, 4).double(), torch.zeros(g.num_edges, 2)
    return model.fit_anchors(graphs)


def pair_logits(model: gduq.Anchored, graph: Data, c: Tensor) -> Tensor:
    """One anchor the plain way: concatenate, multiply, go on with the rest of the network."""

    def read(h: Tensor, _: slice) -> Tensor:
        pair = torch.cat([h - c, c.expand_as(h)], dim=-1)
        return model.point.mix((pair @ model.linear.weight.T)[None], graph) + model.linear.bias

    return model.point.run(graph, read, 1)[0]


def represent(model: gduq.Anchored, graph: Data) -> Tensor:
    """All rows at the point, in evaluation mode."""
    with torch.no_grad(), evaluating(model):
        return model.point.prefix(graph)


@pytest.mark.parametrize(("conv", "at"), CASES)
@pytest.mark.parametrize("task", ["node", "graph"])
def test_fast_path_is_the_concatenation(conv: str, at: ChainPoint, task: str) -> None:
    more = {"virtual_node": True, "positional": "laplacian"} if (conv, task) == WITH else {}
    model, graph = anchored(make_net(conv, task=task, **more), at), full_graph()
    expected = torch.stack([pair_logits(model, graph, c) for c in model.bank])
    torch.testing.assert_close(model.sample(graph), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("conv", ["gcn", "gin"])
@pytest.mark.parametrize("at", POINTS)
@pytest.mark.parametrize("task", ["node", "graph"])
def test_fast_path_is_pyg_with_widened_layers(conv: str, at: ChainPoint, task: str) -> None:
    model, graph = anchored(make_net(conv, task=task), at), full_graph()
    expected = NaiveGNN(model).eval().sample(graph, model.bank)
    torch.testing.assert_close(model.sample(graph), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize("task", ["node", "graph"])
def test_a_frozen_head_is_the_concatenation(task: str, head: str) -> None:
    """A head of two layers reads the pair; beside a single one stands a branch that does."""
    net, graph = make_net("gin", task=task, head=head), full_graph()
    model = anchored(net, "head", init="identity")
    branch = model.point.tail.out
    assert (branch is None) == (head == "mlp")
    learns = {name for name, p in model.named_parameters() if p.requires_grad}
    beside = {"point.tail.out.weight", "point.tail.out.bias"} if head == "linear" else set()
    assert learns == {"linear.weight", "linear.bias"} | beside
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=_generator(p.numel())) * p.requires_grad)
    h = represent(model, graph)
    for c, sample in zip(model.bank, model.sample(graph), strict=True):
        pair = torch.cat([h - c, c.expand_as(h)], dim=-1)
        z = pair @ model.linear.weight.T + model.linear.bias
        out = model.point.tail.rest(z) if branch is None else net(graph) + branch(z.relu())
        torch.testing.assert_close(sample, out, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("conv", "at"), [*CASES, ("gin", "head"), ("gcn", "head")])
def test_relabelled_nodes_give_the_same_answers(conv: str, at: ChainPoint) -> None:
    for task in ("node", "graph"):
        model, graph = anchored(make_net(conv, task=task), at, freeze=at == "head"), GRAPH
        order = torch.randperm(6, generator=_generator(5))
        place = torch.empty(6, dtype=torch.int64)
        place[order] = torch.arange(6)
        moved = Data(x=graph.x[order], edge_index=place[graph.edge_index])
        expected = model.sample(Data(x=graph.x, edge_index=graph.edge_index))
        expected = expected[:, order] if task == "node" else expected
        torch.testing.assert_close(model.sample(moved), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("conv", "at"), CASES)
def test_sample_ignores_batch_mates_and_order(conv: str, at: ChainPoint) -> None:
    model = anchored(make_net(conv), at)
    graphs = [make_graph(n, n) for n in (1, 5, 9)]
    together = model.sample(Batch.from_data_list(graphs))
    apart = torch.cat([model.sample(g) for g in graphs], dim=1)
    backwards = model.sample(Batch.from_data_list(graphs[::-1])).flip(1)
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(together, backwards, rtol=1e-9, atol=1e-10)


def test_chunks_of_the_bank_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, graph = anchored(make_net("gin"), 1, k=7), full_graph()
    whole = model.sample(graph)
    monkeypatch.setattr("gduq.anchoring.cuts._CHUNK", 1)
    torch.testing.assert_close(model.sample(graph), whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("conv", "at"), CASES)
@pytest.mark.parametrize("scope", ["row", "graph"])
def test_training_pass_trains_every_parameter_and_no_anchor(
    conv: str, at: ChainPoint, scope: str
) -> None:
    model = anchored(make_net(conv), at, scope=scope).train()
    graph = full_graph()
    logits, masked = model.training_pass(graph, draws=3, mask=0.3)
    assert logits.shape == (3, 3, 3)
    assert masked.shape == (3, 3)
    logits.square().sum().backward()
    missing = [n for n, p in model.named_parameters() if p.grad is None]
    assert missing == []
    assert not any(b.requires_grad for b in model.buffers())


class Watched(ShuffledAnchors):
    """Remembers what it handed out."""

    def draw(self, rows: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
        self.last = super().draw(rows, count, generator)
        return self.last


@pytest.mark.parametrize("at", POINTS)
def test_training_uses_the_drawn_anchors(at: ChainPoint) -> None:
    """The training forward equals the concatenation with exactly the anchors that were drawn."""
    model = anchored(make_net("gin"), at, source=Watched()).train()
    graph = full_graph()
    reference = copy.deepcopy(model)
    logits = model(graph)
    anchors = model.source.last
    assert not anchors.requires_grad
    expected = pair_logits(reference, graph, anchors)
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-10)


def test_scope_graph_gives_all_nodes_of_a_graph_one_anchor() -> None:
    model = anchored(make_net("gin"), 1, source=Watched(), scope="graph").train()
    graph, reference = full_graph(), copy.deepcopy(model)
    logits = model(graph)
    assert model.source.last.shape == (3, 8)  # one per graph
    expected = pair_logits(reference, graph, model.source.last[graph.batch])
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-10)


def test_draws_pass_together_through_batchnorm() -> None:
    """Two draws of a node task with one anchor per copy: BatchNorm sees the mixture of both."""
    net = make_net("gcn", task="node")
    model = anchored(net, "input", source=Watched(), scope="graph").train()
    graph = make_graph(9, 3)
    logits, _ = model.training_pass(graph, draws=2)
    assert logits.shape == (2, 9, 3)
    twice = Batch.from_data_list([graph, graph])
    again = anchored(net, "input").train()
    expected = pair_logits(again, twice, model.source.last[twice.batch])
    torch.testing.assert_close(logits.flatten(0, 1), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("scope", ["row", "graph"])
@pytest.mark.parametrize("task", ["node", "graph"])
@pytest.mark.parametrize("at", POINTS)
def test_masked_rows_lose_their_anchor_half(at: ChainPoint, task: str, scope: str) -> None:
    model = anchored(make_net("gin", task=task), at, source=Watched(), scope=scope).train()
    graph, reference = full_graph(), copy.deepcopy(model)
    torch.manual_seed(1)
    logits, masked = model.training_pass(graph, mask=0.5)
    rows = graph.num_nodes if task == "node" else 3
    assert masked.shape == (1, rows)
    assert 0 < int(masked.sum()) < rows

    def read(h: Tensor, _: slice) -> Tensor:
        c = model.source.last
        c = c if c.size(0) == h.size(0) else c[graph.batch]
        gone = masked[0] if masked.size(1) == h.size(0) else masked[0][graph.batch]
        if task == "graph" and at != "readout":
            gone = masked[0][graph.batch]
        pair = torch.cat([h - c, c * ~gone.unsqueeze(1)], dim=-1)
        z = reference.point.mix((pair @ reference.linear.weight.T).unsqueeze(0), graph)
        return z + reference.linear.bias

    expected = reference.point.run(graph, read, 1)
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-10)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# -- the bank ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["head", 1, "input"])
def test_after_fit_bank_and_reference_are_training_rows(at: ChainPoint) -> None:
    """Features of all other nodes are poisoned: nothing of them may be in the model."""
    graph = make_graph(80, 1)
    graph.y = torch.arange(80) % 3
    graph.edge_index = torch.zeros(2, 0, dtype=torch.int64)  # every node knows itself only
    train, val = torch.arange(80) < 40, torch.arange(80) >= 60
    banks = []
    for poison in (0.0, 50.0):
        changed = graph.clone()
        changed.x[~train] += poison
        options = {} if at == "head" else {"epochs": 1}
        model = gduq.anchor(make_net("gcn", task="node"), at, num_anchors=4, seed=2)
        gduq.fit(model, View(changed, train), View(changed, val), progress=False, **options)
        h = represent(model, changed)[train]
        if at != "input":  # a Gaussian there
            assert torch.cdist(model.bank, h).min(dim=1).values.max() < 1e-6
        banks.append(model.bank)
        known = model.features(View(changed, train).graphs[0])
        distance = torch.cdist(F.normalize(model.novelty.reference.double()), F.normalize(known))
        assert distance.min(dim=1).values.max() < 1e-4
    if at != 1:  # there BatchNorm has seen all nodes
        torch.testing.assert_close(banks[0], banks[1])


def test_predicting_before_a_bank_exists() -> None:
    """Without a bank the model can only be what it started as, if that was the network."""
    net, graph = make_net("gin"), full_graph()
    with pytest.raises(NotFittedError, match=r"bank.*model.fit_anchors"):
        gduq.anchor(net, 1, init="random").double().eval()(graph)
    for at in (None, "head", *POINTS):
        model = gduq.anchor(net, at).double().eval()
        torch.testing.assert_close(model.sample(graph)[0], net(graph), rtol=1e-9, atol=1e-10)


def test_a_state_brings_its_bank_whatever_its_size_and_precision() -> None:
    graph, model = full_graph(), anchored(make_net("gin"), 1, k=7)
    other = gduq.anchor(make_net("gin").float(), 1, num_anchors=4, init="random").eval()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(
        other.sample(graph).double(), model.sample(graph), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("at", POINTS)
def test_one_anchor_identical_anchors_and_permuted_banks(at: ChainPoint) -> None:
    model, graph = anchored(make_net("gin"), at), full_graph()
    mean = gduq.predict(model, graph).logits
    model.bank = model.bank.flip(0)
    torch.testing.assert_close(gduq.predict(model, graph).logits, mean)
    torch.testing.assert_close(model(graph), mean)
    model.bank = model.bank[:1].expand(10, -1).clone()
    equal = gduq.predict(model, graph)  # a product of matrices may round its rows differently
    torch.testing.assert_close(equal.spread, torch.zeros(3, 3).double(), rtol=0, atol=1e-14)
    torch.testing.assert_close(equal.epistemic, torch.zeros(3).double(), rtol=0, atol=1e-14)
    assert equal.epistemic.min() >= 0
    model.bank = model.bank[:1].clone()
    assert torch.equal(gduq.predict(model, graph).spread, torch.zeros(3, 3).double())
    assert torch.equal(gduq.predict(model, graph).epistemic, torch.zeros(3).double())


# -- living with the model ---------------------------------------------------------------------


@pytest.mark.parametrize(("conv", "at"), DEEPER)
def test_freeze_trains_the_suffix_only(conv: str, at: ChainPoint) -> None:
    model = anchored(make_net(conv, virtual_node=conv == "gin"), at, freeze=True)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    graph = full_graph()
    h = represent(model, graph)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model.train()
    for _ in range(2):
        model(graph).square().sum().backward()
        optimizer.step()
    assert not torch.equal(model.linear.weight, before["linear.weight"])
    assert torch.equal(represent(model, graph), h)
    frozen = {n for m in model.point.before for n, _ in m.named_parameters()}
    assert frozen


def test_nothing_to_freeze_at_the_input() -> None:
    with pytest.raises(InputError):
        gduq.anchor(make_net("gin"), at="input", freeze=True)
    with pytest.raises(InputError):
        gduq.anchor(torch_geometric.nn.GCN(4, 8, 2).double(), "input", freeze=True, like=GRAPH)


def test_neighbor_loader_shaped_batches() -> None:
    """Seed nodes first and a stored batch_size: only the seeds are answered for."""
    model = anchored(make_net("gcn", task="node"), 1)
    graph = make_graph(9, 4)
    graph.y = torch.arange(9) % 3
    whole = model.sample(graph)
    graph["batch_size"] = 4
    assert torch.equal(model.sample(graph), whole[:, :4])
    prediction = gduq.predict(model, [graph])
    assert torch.equal(prediction.target, torch.arange(4) % 3)
    several = gduq.predict(model, [graph, graph])  # a list of such batches stays apart
    torch.testing.assert_close(several.samples, torch.cat([whole[:, :4]] * 2, dim=1))


def test_a_masked_graph_is_no_source_of_anchors() -> None:
    graph = make_graph(9, 4)
    graph.y, graph.train_mask = torch.arange(9) % 3, torch.arange(9) < 5
    model = gduq.anchor(make_net("gcn", task="node"), at=1, num_anchors=3).double()
    with pytest.raises(InputError):
        model.fit_anchors(graph)
    assert model.fit_anchors(View(graph, graph.train_mask)).bank.shape == (3, 8)


# -- recipes and mistakes ----------------------------------------------------------------------


def test_what_a_name_stands_for() -> None:
    net, node = make_net("gin"), make_net("gcn", task="node")
    assert gduq.anchor(net, "head").recipe == gduq.anchor(net).recipe == gduq.Recipe.head()
    assert gduq.anchor(net, 1).recipe == gduq.Recipe.thawed(at=1)
    assert gduq.anchor(net, recipe="thawed").point.at == 2  # the last layer
    assert gduq.anchor(net, -3).point.at == "input"
    assert gduq.anchor(net, recipe="paper").recipe == gduq.Recipe.paper("graph")
    assert isinstance(gduq.anchor(node, recipe="paper").source, GaussianAnchors)
    own = gduq.Recipe(at="readout", freeze=False, mask=0.2)
    assert gduq.anchor(net, recipe=own).recipe == own


WRONG: list[dict[str, object]] = [
    *({"num_anchors": 0}, {"num_anchors": 2.5}, {"draws": 0}, {"mask": 1.0}, {"mask": -0.1}),
    *({"at": "middle"}, {"at": 3}, {"at": 0}, {"at": True}, {"scope": "batch"}, {"init": "zero"}),
    *({"anchors": a} for a in ("uniform", "fixed")),
    *({"recipe": "hed"}, {"net": torch_geometric.nn.GCN(4, 8, 2), "recipe": "paper"}),
    *({"net": GNN}, {"net": gduq.anchor(make_net("gin"))}),
]


@pytest.mark.parametrize("options", WRONG, ids=str)
def test_wrong_choices_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        gduq.anchor(**({"net": make_net("gin")} | options))


def test_a_model_can_be_sent_to_another_process() -> None:
    model, graph = anchored(make_net("gin"), 1, freeze=True).train(), full_graph()
    model.prepare([graph], 8)
    model(graph)  # what the frozen part said is remembered, but stays here
    model.eval()
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(again.sample(graph), model.sample(graph))
