"""The end of `gduq.fit`: one temperature from validation rows and copies of them, and novelty."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Subset
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.loader import DataLoader, RandomNodeLoader
from torch_geometric.nn import GraphSAGE

import gduq
from gduq import metrics
from gduq.calibration import DeviationScaling
from gduq.data import View
from gduq.nn import GNN
from gduq.shifts.corruptions import shifted_copies
from tests.training.cases import Net, graphs

QUIET: dict[str, Any] = {"progress": False}


def noisy(count: int, seed: int, flips: float = 0.25) -> list[Data]:
    """Graphs of three classes, some of them with a wrong label."""
    generator = torch.Generator().manual_seed(100 + seed)
    found = graphs(count, seed=seed)
    for graph in found:
        if torch.rand((), generator=generator) < flips:
            graph.y = (graph.y + 1) % 3
    return found


def citation(nodes: int = 240) -> tuple[View, View, View]:
    """One graph of three noisy classes, cut into three parts of its nodes."""
    generator = torch.Generator().manual_seed(3)
    y = torch.arange(nodes) % 3
    x = F.one_hot(y, 3).float() @ torch.randn(3, 6, generator=generator)
    x = x + torch.randn(nodes, 6, generator=generator)
    ends = torch.randint(nodes, (2, nodes), generator=generator)
    ends[1] = (ends[0] + 3 * ends[1]) % nodes  # neighbours are of one class
    data = Data(x=x, edge_index=ends, y=y)
    order = torch.randperm(nodes, generator=generator)
    one, two, three = (View(data, part) for part in order.split(nodes // 3))
    return one, two, three


@functools.cache
def _trained(seed: int) -> GNN:
    torch.manual_seed(seed)
    found = GNN(4, 8, 3, num_layers=2, conv="gin", head="mlp", dropout=0.1).double()
    gduq.fit(found, noisy(45, 1), epochs=60, lr=0.02, seed=seed, **QUIET)
    return found


def net(seed: int = 0) -> GNN:
    """A network that has learnt its noisy training data too well."""
    return copy.deepcopy(_trained(seed))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": net,
    "head": lambda: gduq.anchor(net(), num_anchors=4),
    "thawed": lambda: gduq.anchor(net(), recipe="thawed", num_anchors=4),
    "ensemble": lambda: gduq.Ensemble([net(0), net(1)]),
    "dropout": lambda: gduq.MCDropout(net(), num_samples=3),
    "heads": lambda: gduq.HeadEnsemble(net(), 3),
    "laplace": lambda: gduq.LastLayerLaplace(net(), 5),
}


def models(*fast: str) -> Any:
    """For every model; those that are not named are slow tests."""
    slow = pytest.mark.slow
    cases = [case if case in fast else pytest.param(case, marks=slow) for case in MODELS]
    return pytest.mark.parametrize("case", cases)


def fit(model: nn.Module, train: Any, val: Any = None, **options: Any) -> Any:
    return gduq.fit(model, train, val, **{"epochs": 3, "lr": 0.01, **QUIET, **options})


# -- the temperature -----------------------------------------------------------------------------


@models("plain", "head", "ensemble")
@pytest.mark.parametrize("how", ["shifted", pytest.param("clean", marks=pytest.mark.slow)])
def test_the_temperature_is_the_most_likely_one(case: str, how: Any) -> None:
    """Against a fine grid over what the model says without a temperature; a model is made surer
    only as far as one more row allows, of whose class a hypothesis by chance knows nothing."""
    train, val = View(noisy(45, 1)), View(noisy(40, 2))
    model = MODELS[case]()
    fit(model, train, val, calibrate=how, epochs=20, lr=0.02)
    known = gduq.models.as_predictor(model)
    found = float(known.temperature)
    assert known.calibration == gduq.predict(model, val).calibrated == how
    copies = list(shifted_copies(val, 0)) if how == "shifted" else []
    known.set_temperature(1.0, None)
    parts = [gduq.predict(model, view) for view in (val, *copies)]
    shares = [0.5, *[0.5 / len(copies)] * len(copies)] if copies else [1.0]

    def losses(temperature: float) -> tuple[float, float, float]:
        """Of validation rows, of these and copies, and the same with one more row."""
        each, even = [], []
        for p in parts:
            logits = p.samples / temperature
            each.append(metrics.nll(gduq.ClassPrediction(logits, p.target, weights=p.weights)))
            even.append(-float(logits.log_softmax(dim=-1).mean()))
        mean, prior = (sum(s * x for s, x in zip(shares, xs, strict=True)) for xs in (each, even))
        return each[0], mean, mean + prior / len(val)

    grid = {t: losses(t) for t in (found * 1.05**i for i in range(-16, 17))}
    limit = min(each[0] for each in grid.values()) + known.target.price + 1e-4
    allowed = [t for t in grid if grid[t][0] <= limit]
    best = min(allowed, key=lambda t: grid[t][1])
    if best < 1.0:
        best = min(1.0, min(allowed, key=lambda t: grid[t][2]))
    assert best == pytest.approx(found, rel=0.051)


def test_without_validation_rows_a_head_learns_with_a_small_mask() -> None:
    several, one = (gduq.anchor(net(), num_anchors=4, mask=m) for m in ((0.0, 0.06, 0.2), 0.06))
    for model in (several, one):
        fit(model, noisy(45, 1), epochs=None)
    assert torch.equal(several.linear.weight, one.linear.weight)


@models("plain", "head")
def test_without_validation_rows_nothing_is_calibrated(case: str) -> None:
    for val, how in ((None, "default"), (noisy(40, 2), None)):
        model = MODELS[case]()
        fit(model, noisy(45, 1), val, calibrate=how)
        p = gduq.predict(model, noisy(9, 3))
        assert p.calibrated is None
        assert p.novelty is not None  # known all the same
    raw = model.sample(next(View(noisy(9, 3)).batches())) if case != "plain" else None
    assert raw is None or torch.allclose(raw, p.samples)


# -- leaks ---------------------------------------------------------------------------------------


def copied(views: tuple[View, ...]) -> tuple[View, ...]:
    data = views[0].graphs[0].clone()
    return tuple(View(data, view.rows) for view in views)


@pytest.mark.parametrize("case", ["plain", "head"])
def test_test_labels_change_nothing(case: str) -> None:
    """Labels of rows in neither part may be anything; those of validation rows do matter."""
    options = {"task": "node", "conv": "gcn"}
    makers: dict[str, Callable[[GNN], nn.Module]] = {
        "plain": lambda n: n,
        "head": lambda n: gduq.anchor(n, num_anchors=4),
    }

    def trained(poison: int | None) -> Any:
        train, val, test = copied(citation())
        if poison is not None:
            rows = (train, val, test)[poison].rows
            y = train.graphs[0].y
            y[rows] = (y[rows] + 1) % 3
        torch.manual_seed(0)
        model = makers[case](GNN(6, 8, 3, num_layers=2, head="mlp", **{**options, "dropout": 0.2}))
        fit(model, train, val, epochs=10)
        return gduq.models.as_predictor(model)

    clean, poisoned, other = trained(None), trained(2), trained(1)
    one, two = clean.state_dict(), poisoned.state_dict()
    assert one.keys() == two.keys()
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert not torch.equal(clean.temperature, other.temperature)


# -- novelty -------------------------------------------------------------------------------------


@models("plain", "head", "thawed")
def test_novelty_comes_from_training_rows_and_is_uniform_on_validation_rows(case: str) -> None:
    train, val = View(noisy(60, 1)), View(noisy(50, 2))
    model = MODELS[case]()
    fit(model, train, val)
    known = gduq.models.as_predictor(model)
    h = gduq.predict(model, train, features=True).features
    assert h is not None
    far = (h.double().unsqueeze(1) - known.novelty.reference.double()).norm(dim=2) / h.norm()
    assert far.shape == (60, 60)
    assert far.amin(dim=1).max() < 1e-5  # each training row is there
    assert far.amin(dim=0).max() < 1e-5  # and nothing else
    novelty = gduq.predict(model, val).novelty
    assert novelty is not None
    wanted = (torch.arange(50) + 0.5) / 50
    assert (novelty.sort().values - wanted).abs().max() < 0.05


def test_the_reference_is_a_random_choice_of_sorted_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gduq.training.fitting, "_MOST", 12)
    train = sorted(graphs(90), key=lambda graph: int(graph.y))
    model = Net()
    fit(model, train, batch_size=1, epochs=1)
    known = gduq.models.as_predictor(model)
    h = gduq.predict(model, train, features=True).features
    assert h is not None
    near = torch.cdist(h, known.novelty.reference).argmin(dim=0)
    labels = torch.cat([graph.y for graph in train])[near]
    assert len(labels) < 30
    assert set(labels.tolist()) == {0, 1, 2}


# -- kinds of rows and targets -------------------------------------------------------------------


class Own(Data):
    """A class of one's own may be joined in another way."""


class InMemory(InMemoryDataset):
    def __init__(self, data: list[Data]) -> None:
        super().__init__()
        self.data, self.slices = self.collate(data)


def _scaled(data: list[Data]) -> DataLoader:
    loader = DataLoader(data, 24)
    loader.collate_fn = lambda graphs: Batch.from_data_list(graphs)
    return loader


LOADERS: dict[str, tuple[str, Callable[[list[Data]], Any]]] = {
    "graphs": ("shifted", lambda data: DataLoader(data, 7)),
    "shuffled": ("shifted", lambda data: DataLoader(data, 7, shuffle=True)),
    "a dataset": ("shifted", lambda data: DataLoader(InMemory(data), 7)),
    "a subset": ("shifted", lambda data: DataLoader(Subset(Subset(data, range(24)), range(24)), 7)),
    "followed": ("clean", lambda data: DataLoader(data, 24, follow_batch=["x"])),
    "excluded": ("clean", lambda data: DataLoader(data, 24, exclude_keys=["name"])),
    "an own class": ("clean", lambda data: DataLoader([Own(**g.to_dict()) for g in data], 24)),
    "an own collate_fn": ("clean", _scaled),
    "full batches": ("clean", lambda data: DataLoader([*data, data[0]], 24, drop_last=True)),
}


@pytest.mark.parametrize("case", LOADERS)
def test_loaders_are_calibrated_on_their_rows(case: str) -> None:
    """On copies too, where they hand out all of their graphs as they are."""
    calibration, loader = LOADERS[case]
    net = Net()
    fit(net, DataLoader(noisy(40, 1), 40), loader(noisy(24, 2)), batch_size=40)
    found = gduq.models.as_predictor(net)
    assert found.calibration == calibration
    torch.testing.assert_close(found.temperature, _temperature_of_lists(calibration))


@functools.cache
def _temperature_of_lists(calibration: Any) -> Tensor:
    net = Net()
    fit(net, noisy(40, 1), noisy(24, 2), batch_size=40, calibrate=calibration)
    return gduq.models.as_predictor(net).temperature


@pytest.mark.parametrize("run", [fit, functools.partial(gduq.choose, **QUIET)])
def test_no_batch_is_larger_than_the_loaders(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs may be so large that few of them fit in memory."""
    own, sizes, forward = net(), set[int](), GNN.forward

    def counted(self: GNN, graph: Batch) -> Tensor:
        sizes.add(int(graph.num_graphs))
        return forward(self, graph)

    monkeypatch.setattr(GNN, "forward", counted)
    run(own, DataLoader(noisy(40, 1), 5), DataLoader(noisy(40, 2), 4))
    assert {4, 5} <= sizes <= set(range(6))


# -- never silently wrong ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "ensemble"])
def test_no_epochs_calibrate_a_trained_model_as_it_is(kind: str) -> None:
    one, two = net(0), net(1)
    model: Any = one if kind == "plain" else gduq.Ensemble([one, two])
    before = {name: value.clone() for name, value in one.named_parameters()}
    gduq.fit(model, noisy(45, 1), noisy(60, 2), epochs=0, **QUIET)
    assert all(torch.equal(value, before[name]) for name, value in one.named_parameters())
    p = gduq.predict(model, noisy(30, 4))
    assert p.calibrated == "shifted"
    assert p.novelty is not None


# -- what copies may cost ------------------------------------------------------------------------


def _rings(count: int, seed: int, values: bool = False) -> list[Data]:
    generator = torch.Generator().manual_seed(seed)
    ring = torch.arange(8)
    edges = torch.stack([ring, ring.roll(1)])
    edges = torch.cat([edges, edges.flip(0)], dim=1)
    found = []
    for _ in range(count):
        side = float(torch.randn((), generator=generator))
        noise = float(torch.randn((), generator=generator))
        y = torch.tensor(side + 0.1 * noise) if values else torch.tensor(int(side + noise < 0))
        found.append(Data(x=torch.full((8, 1), side), edge_index=edges, y=y.view(1)))
    return found


# -- values --------------------------------------------------------------------------------------


class _Fragile(nn.Module):
    """Right about clean graphs, sure of nonsense where edges are missing, unless it reads none."""

    def __init__(self, reads_edges: bool = True) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[4.0, 30.0], [-4.0, -30.0]]))
            self.head.bias.zero_()
        self.reads_edges = reads_edges

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        size = torch.bincount(batch).unsqueeze(1)
        mean = torch.zeros(len(size), 1).index_add(0, batch, x[:, :1]) / size
        edges = torch.bincount(batch[edge_index[0]], minlength=len(size)).unsqueeze(1) / size
        return self.head(torch.cat([mean, self.reads_edges * (2 - edges)], dim=1))


def test_copies_cost_validation_rows_no_more_than_the_price() -> None:
    net, val = _Fragile(), _rings(200, 1)
    gduq.fit(net, _rings(100, 0), val, epochs=0, **QUIET)
    shifted = gduq.predict(net, val)
    gduq.fit(net, _rings(100, 0), val, epochs=0, calibrate="clean", **QUIET)
    clean = gduq.predict(net, val)
    assert (shifted.calibrated, clean.calibrated) == ("shifted", "clean")
    assert 0.01 < metrics.nll(shifted) - metrics.nll(clean) <= 0.0501


def test_copies_that_change_nothing_are_none() -> None:
    """Categories stay, although they are floats, and edges are not read."""
    graphs = _rings(60, 0)
    for i, graph in enumerate(graphs):
        graph.x = torch.full((8, 1), float(i % 4))
    net = _Fragile(reads_edges=False)
    gduq.fit(net, graphs[:30], graphs[30:], epochs=0, **QUIET)
    assert gduq.predict(net, graphs).calibrated == "clean"


class _Mean(nn.Module):
    """A trained regression: the mean of the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[1.0, 0.5]]))
            self.head.bias.zero_()

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        size = torch.bincount(batch).unsqueeze(1)
        mean = torch.zeros(len(size), 1).index_add(0, batch, x) / size
        edges = torch.bincount(batch[edge_index[0]], minlength=len(size)).unsqueeze(1) / size
        return self.head(torch.cat([mean, 2 - edges], dim=1))


def test_intervals_are_as_wide_as_errors_of_validation_rows() -> None:
    """Copies with other edges are far off, and hardly widen the intervals."""
    train, val, test = (_rings(300, seed, values=True) for seed in range(3))
    widths, held = {}, {}
    for how in ("shifted", "clean"):
        net = _Mean()
        gduq.fit(net, train, val, epochs=0, calibrate=how, **QUIET)
        p = gduq.predict(net, test)
        low, high = p.interval(0.9)
        widths[how] = float((high - low).median())
        held[how] = float(((low <= p.target) & (p.target <= high)).float().mean())
    assert 1.0 < widths["shifted"] / widths["clean"] < 1.15
    assert all(0.86 <= share <= 0.97 for share in held.values())


def test_deviations_grow_with_novelty_where_errors_do() -> None:
    train, val, test = (_rings(300, seed, values=True) for seed in range(3))
    generator = torch.Generator().manual_seed(7)
    for graph in (*val, *test):
        far = float(graph.x[0, 0].abs() > 1.5)
        graph.y = graph.x[0] + (0.05 + far) * torch.randn(1, generator=generator)
    net = _Mean()
    gduq.fit(net, train, val, epochs=0, **QUIET)
    p = gduq.predict(net, test)
    assert p.std[p.novelty > 0.9].mean() > 1.5 * p.std[p.novelty < 0.3].mean()
    assert torch.equal(p.std, gduq.predict(net, test, novelty=False).std)
    held = gduq.predict(net, val)
    fitted = DeviationScaling().fit(held)(held)  # to validation rows alone
    assert float(held.std.median() / fitted.std.median()) < 1.04
    plain = gduq.fit(net, train, _rings(300, 1, values=True), epochs=0, **QUIET)
    assert plain is not None
    steady = gduq.predict(net, test).std
    assert steady.max() < 1.3 * steady.min()  # noise that does not grow leaves them alike


# -- structure -----------------------------------------------------------------------------------


def grown(graph: Data, times: int) -> Data:
    """So many copies side by side: every mean over its nodes is what it was."""
    nodes = graph.num_nodes
    edges = [graph.edge_index + i * nodes for i in range(times)]
    return Data(x=graph.x.repeat(times, 1), edge_index=torch.cat(edges, dim=1), y=graph.y)


@models("plain", "thawed")
def test_every_model_sees_a_graph_that_is_too_large(case: str) -> None:
    model, val = MODELS[case](), noisy(50, 2)
    fit(model, noisy(60, 1), val)
    assert gduq.models.as_predictor(model).novelty.reads_structure
    large = [grown(graph, 3) for graph in val]
    assert (gduq.predict(model, large).novelty >= 0.999).all()
    assert abs(float(gduq.predict(model, val).novelty.mean()) - 0.5) < 0.02
    alone = gduq.models.as_predictor(model).novelty(
        gduq.predict(model, large, features=True).features
    )
    if case != "thawed":  # there the rows are those of a layer, which sees more
        assert alone.mean() < 0.6  # a mean over its nodes does not show it


def test_parts_of_a_graph_do_not_teach_degrees() -> None:
    """In a random tenth of the nodes hardly any edge is left; the whole graph is not strange."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    x = nn.functional.one_hot(y, 3) + 0.5 * torch.randn(300, 3, generator=generator)
    data = Data(x=x, edge_index=torch.randint(300, (2, 3000), generator=generator), y=y)
    torch.manual_seed(0)
    net = GraphSAGE(3, 8, num_layers=1, out_channels=3, jk="cat")  # with a head
    gduq.fit(net, *(RandomNodeLoader(data, num_parts=5) for _ in range(2)), epochs=3, **QUIET)
    assert not gduq.models.as_predictor(net).novelty.reads_structure
    assert gduq.predict(net, data).novelty.mean() < 0.8
