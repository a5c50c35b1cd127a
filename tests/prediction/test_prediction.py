"""`ClassPrediction` against plain numpy, its edges, its files; `predict` on all kinds of data."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import special, stats
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

import gduq
from gduq.errors import InputError
from gduq.graphs.view import View
from gduq.nn import GNN
from gduq.prediction import ClassPrediction, predict

few = settings(deadline=None, max_examples=40)


def randn(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def logits(low: int = 1, classes: int = 1) -> st.SearchStrategy[np.ndarray]:
    shape = st.tuples(st.integers(low, 6), st.integers(0, 5), st.integers(classes, 4))
    numbers = st.floats(-50, 50, width=64)
    return shape.flatmap(lambda s: hnp.arrays(np.float64, s, elements=numbers))


# -- formulas ----------------------------------------------------------------------------------


def reference(samples: np.ndarray) -> dict[str, np.ndarray]:
    """The docstring's table, in numpy and scipy."""
    k, m, c = samples.shape
    if c == 1:
        samples = np.concatenate([np.zeros((k, m, 1)), samples], axis=2)
    each = special.softmax(samples, axis=-1)
    probs, aleatoric = each.mean(axis=0), stats.entropy(each, axis=-1).mean(0)
    total = stats.entropy(probs, axis=-1)
    spread = each.std(axis=0, ddof=1) if k > 1 else np.zeros_like(each[0])
    return {
        "logits": samples.mean(axis=0),
        "probs": probs,
        "log_probs": special.logsumexp(special.log_softmax(samples, axis=-1), axis=0) - np.log(k),
        "confidence": probs.max(axis=-1),
        "label": probs.argmax(axis=-1),
        "entropy": total,
        "aleatoric": aleatoric,
        "epistemic": np.maximum(total - aleatoric, 0),
        "spread": spread,
    }


@few
@given(logits())
def test_everything_follows_the_formulas(samples: np.ndarray) -> None:
    p = ClassPrediction(torch.from_numpy(samples))
    k, m, c = samples.shape
    assert (p.num_samples, len(p), p.num_classes) == (k, m, max(c, 2))
    for name, wanted in reference(samples).items():
        found = getattr(p, name)
        assert found.shape == wanted.shape, name
        if name == "label":  # ties may be broken either way
            picked = np.take_along_axis(p.probs.numpy(), found.numpy()[:, None], 1)
            np.testing.assert_allclose(picked[:, 0], p.probs.numpy().max(axis=-1, initial=0))
        else:
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9, atol=1e-9, err_msg=name)
        assert getattr(p, name) is found  # computed once


@few
@given(logits(), st.integers(1, 12), st.sampled_from([torch.float32, torch.float64]))
def test_equal_hypotheses_have_no_spread(samples: np.ndarray, k: int, dtype: torch.dtype) -> None:
    p = ClassPrediction(torch.from_numpy(samples[:1]).to(dtype).repeat(k, 1, 1))
    assert torch.equal(p.spread, torch.zeros_like(p.spread))
    assert torch.equal(p.epistemic, torch.zeros_like(p.epistemic))
    assert torch.equal(p.entropy, p.aleatoric)
    one = ClassPrediction(p.samples[:1])
    for name in ("probs", "log_probs", "entropy", "label"):
        assert torch.equal(getattr(p, name), getattr(one, name)), name
    torch.testing.assert_close(p.rescaled("paper").samples, one.samples)
    divisor = 1.0 if k == 1 else 2.0
    torch.testing.assert_close(p.rescaled("released").samples, one.samples / divisor)


@few
@given(logits(low=2), st.randoms(use_true_random=False))
def test_the_order_of_hypotheses_does_not_matter(samples: np.ndarray, random: object) -> None:
    order = list(range(len(samples)))
    random.shuffle(order)  # type: ignore[attr-defined]
    given = torch.from_numpy(samples)
    share = torch.arange(1.0, len(samples) + 1).double()
    for weights in (None, share / share.sum()):
        p = ClassPrediction(given, weights=weights)
        q = ClassPrediction(given[order], weights=None if weights is None else weights[order])
        for name in ("logits", "probs", "aleatoric", "epistemic", "spread", "entropy"):
            torch.testing.assert_close(getattr(p, name), getattr(q, name), rtol=1e-9, atol=1e-9)


@few
@given(logits(low=2), st.integers(0, 3))
def test_weights_are_repetitions(samples: np.ndarray, times: int) -> None:
    """Twice the weight says the same as being there twice; no weight, as not being there."""
    given = torch.from_numpy(samples)
    share = torch.ones(len(samples)).double()
    share[0] = times
    p = ClassPrediction(given, weights=share / share.sum())
    q = ClassPrediction(torch.cat([given[:1]] * times + [given[1:]]))
    for name in ("logits", "probs", "log_probs", "aleatoric", "epistemic", "entropy"):
        torch.testing.assert_close(getattr(p, name), getattr(q, name), rtol=1e-9, atol=1e-9)
    if times == 0:
        torch.testing.assert_close(p.spread, q.spread, rtol=1e-9, atol=1e-9)


def test_tiny_disagreement_is_not_lost() -> None:
    """Two hypotheses a small step apart: probabilities differ by step / 4, to first order."""
    step = 1e-6
    samples = torch.tensor([[[0.0, 0.0]], [[step, 0.0]]], dtype=torch.float64)
    assert ClassPrediction(samples).epistemic.item() == pytest.approx(step**2 / 32, rel=1e-3)


@few
@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 5)),
                  elements=st.floats(-40, 40)))  # fmt: skip
def test_one_logit_is_two(z: np.ndarray) -> None:
    one = ClassPrediction(torch.from_numpy(z)[:, :, None])
    two = ClassPrediction(torch.stack([torch.zeros(z.shape).double(), torch.from_numpy(z)], dim=-1))
    assert torch.equal(one.samples, two.samples)
    np.testing.assert_allclose(one.probs[:, 1], special.expit(z).mean(axis=0), atol=1e-12)
    assert torch.equal(one.label, (one.log_probs[:, 1] > one.log_probs[:, 0]).long())
    assert torch.equal(one.with_samples(one.samples).samples, one.samples)


def test_extreme_logits_stay_finite() -> None:
    p = ClassPrediction(torch.tensor([[[1e30, -1e30], [0.0, 0.0]], [[-1e30, 1e30], [3e4, -3e4]]]))
    for name in ("probs", "entropy", "aleatoric", "epistemic", "spread"):
        assert torch.isfinite(getattr(p, name)).all(), name
    assert p.epistemic[0].item() == pytest.approx(np.log(2))


# -- rescaling ---------------------------------------------------------------------------------


@few
@given(logits(low=2, classes=2))
def test_rescaling_rules(samples: np.ndarray) -> None:
    p = ClassPrediction(torch.from_numpy(samples), target=[0] * samples.shape[1])
    mean = samples.mean(axis=0)
    sigma = special.softmax(samples, axis=-1).std(axis=0, ddof=1)
    np.testing.assert_allclose(p.rescaled("paper").logits, mean * (1 - sigma), atol=1e-9)
    one_logit = samples.shape[2] == 2 and not samples[..., 0].any()
    own = samples[..., 1:] if one_logit else samples
    sigmoid = special.expit(own).std(axis=0, ddof=1).mean(axis=-1, keepdims=True)
    released = p.rescaled("released")
    assert released.num_samples == p.rescaled("paper").num_samples == 1
    calibrated = ClassPrediction(torch.from_numpy(samples), calibrated="shifted")
    others = [calibrated.mean_logits(), *map(calibrated.rescaled, ("paper", "released"))]
    assert [other.calibrated for other in others] == [None] * 3  # its temperature is not theirs
    np.testing.assert_allclose(released.logits, mean / (1 + np.exp(sigmoid)), atol=1e-9)
    top = p.logits.gather(1, released.label.unsqueeze(1)).squeeze(1)  # one divisor a row keeps
    torch.testing.assert_close(top, p.logits.amax(dim=1))  # the arg-max, but for rounded ties
    assert released.target is not None


# -- bad input ---------------------------------------------------------------------------------


BAD: list[dict[str, Any]] = [
    *({"samples": samples} for samples in (
        torch.ones(3), [1.0, 2.0], torch.ones(2, 3, 4, 5), torch.ones(0, 3, 2), torch.ones(2, 3, 0),
        torch.ones(2, 3, 2, dtype=torch.int64), torch.tensor([[float("nan"), 1.0]]),
        torch.tensor([[float("inf"), -float("inf")]]),
    )),
    *({"target": torch.tensor(target)} for target in (
        [0, 1], [[0.0, 0.0]] * 3, [0, 1, 2], [0, 1, -1], [0.0, 0.5, 1.0], [0.0, float("nan"), 1.0],
    )),
    *({"names": names} for names in (("a", "b", "c"), ("a", "a"))),
    *({"features": randn(*size)} for size in ((2, 5), (3,), (3, 2, 2))),
    *({"weights": torch.tensor(weights)} for weights in (
        [0.5, 0.25, 0.25], [1.0] * 4, [1.5, -0.5, 0.0, 0.0], [float("nan")] * 4,
    )),
    *({"novelty": torch.tensor(novelty)} for novelty in (
        [1.0, 1.0], [0.0, 0.5, 1.5], [0.0, 0.5, float("nan")],
    )),
    {"calibrated": "yes"},
]  # fmt: skip


@pytest.mark.parametrize("given", BAD)
def test_bad_input(given: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ClassPrediction(**{"samples": randn(4, 3, 2), **given})


def test_targets_of_any_kind() -> None:
    wanted = torch.tensor([0, 1, 1])
    for target in ([0, 1, 1], np.array([0, 1, 1]), wanted.double(), wanted[:, None], wanted > 0):
        p = ClassPrediction(randn(4, 3, 2), target)
        assert torch.equal(p.target, wanted)
        assert torch.equal(p.correct, p.label == wanted)


# -- rows --------------------------------------------------------------------------------------


def assert_same(one: ClassPrediction, two: ClassPrediction) -> None:
    """The same in everything they were made from."""
    for field in dataclasses.fields(two):
        a, b = getattr(one, field.name), getattr(two, field.name)
        same = torch.equal(a, b) and a.dtype == b.dtype if isinstance(b, Tensor) else a == b
        assert same, field.name


def full(k: int = 4, m: int = 5, c: int = 3, seed: int = 0) -> ClassPrediction:
    weights = torch.arange(1.0, k + 1).double()
    return ClassPrediction(
        randn(k, m, c, seed=seed), torch.arange(m) % c, tuple("abc"[:c]),
        features=randn(m, 2, seed=seed + 1), weights=weights / weights.sum(),
        novelty=torch.arange(m) / max(m, 1), calibrated="shifted",
    )  # fmt: skip


INDICES = {
    "slice": slice(None, None, 2),
    "list": [4, 0, 0],
    "tensor": torch.tensor([2, 1]),
    "list mask": [True, False, True, False, False],
    "numpy mask": np.array([False, True, True, False, False]),
    "last": -1,
    "numpy number": np.int64(3),
    "none": [],
}


@pytest.mark.parametrize("name", INDICES)
def test_rows_of_a_prediction(name: str) -> None:
    p, index = full(), INDICES[name]
    numbers = np.atleast_1d(np.arange(5)[np.asarray(index, dtype=int) if name == "none" else index])
    q = p[index]  # type: ignore[index]
    rows = {name: getattr(p, name)[numbers] for name in ("target", "features", "novelty")}
    assert_same(q, dataclasses.replace(p, samples=p.samples[:, numbers], **rows))
    torch.testing.assert_close(q.epistemic, p.epistemic[numbers])


@few
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5),
       st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=40))  # fmt: skip
def test_parts_make_the_whole(sizes: list[int], shares: list[float]) -> None:
    """Parts keep the weights bit by bit, however their sum rounds."""
    p = full(m=sum(sizes), k=len(shares))
    weights = torch.tensor(shares, dtype=torch.float64)
    p = dataclasses.replace(p, weights=weights / weights.sum())
    edges = np.cumsum([0, *sizes])
    assert_same(ClassPrediction.concatenate([p[a:b] for a, b in pairwise(edges)]), p)


def test_parts_that_do_not_fit() -> None:
    p = full()
    others = full(k=5), dataclasses.replace(p, names="xyz"), dataclasses.replace(p, weights=None)
    for parts in ([], *([p, other] for other in others)):
        with pytest.raises(InputError):
            ClassPrediction.concatenate(parts)
    bare = dataclasses.replace(p, target=None, features=None, novelty=None, calibrated="clean")
    mixed = ClassPrediction.concatenate([p, bare])
    assert mixed.target is mixed.features is mixed.novelty is mixed.calibrated is None


# -- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [None, ("no", "yes", "π/é")])
def test_dataframe_and_parquet(names: tuple[str, ...] | None, tmp_path: Path) -> None:
    p = ClassPrediction(randn(4, 5, 3), names and torch.arange(5) % 3, names)
    frame = p.to_pandas()
    for name in ("label", "confidence", "entropy", "aleatoric", "epistemic"):
        np.testing.assert_array_equal(frame[name], getattr(p, name))
    np.testing.assert_array_equal(frame["spread"], p.spread.mean(dim=-1))
    for c, name in enumerate(names or "012"):
        np.testing.assert_array_equal(frame[f"prob_{name}"], p.probs[:, c])
    assert ("target" in frame) == ("class" in frame) == (names is not None)
    if names is not None:
        assert frame["class"].tolist() == [names[i] for i in p.label]
    frame.to_parquet(tmp_path / "p.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "p.parquet"), frame, check_dtype=False)


@pytest.mark.parametrize("with_all", [False, True])
@pytest.mark.parametrize("name", ["p.npz", "no suffix"])
def test_npz_round_trip(with_all: bool, name: str, tmp_path: Path) -> None:
    p = full() if with_all else ClassPrediction(randn(2, 3, 1).float())
    p.to_npz(str(tmp_path / name))
    assert [f.name for f in tmp_path.iterdir()] == [name]
    assert_same(ClassPrediction.from_npz(str(tmp_path / name)), p)


def flipped(content: bytes) -> bytes:
    return content[:100] + bytes([content[100] ^ 0xFF]) + content[101:]


def archive(**arrays: Any) -> bytes:
    np.savez(file := BytesIO(), **arrays)
    return file.getvalue()


class Bomb:
    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return exec, ("raise SystemExit('unpickled')",)


BAD_FILES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "pickle": lambda content: pickle.dumps(Bomb()),
    "truncated": lambda content: content[: len(content) // 2],
    "bit-flipped": flipped,
    "other arrays": lambda content: archive(other=np.ones(3)),
    "texts": lambda content: archive(samples=np.array(["a"])),
    "objects": lambda content: archive(samples=np.array([Bomb()])),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files_are_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    full().to_npz(path)
    path.write_bytes(BAD_FILES[kind](path.read_bytes()))
    with pytest.raises(InputError):
        ClassPrediction.from_npz(path)


# -- predict -----------------------------------------------------------------------------------


def make_net(task: str = "graph", out: int = 3, conv: str = "gin", **options: object) -> GNN:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GNN(4, 8, out, num_layers=2, conv=conv, task=task, **options).double()


def anchored(task: str, at: str, data: object) -> gduq.Anchored:
    return gduq.anchor(make_net(task), at=at, num_anchors=3).fit_anchors(data)


def models(task: str, data: object) -> dict[str, nn.Module]:
    made = gduq.Ensemble(GNN(4, 8, 3, num_layers=2, task=task).double() for _ in range(2))
    return {
        "plain": make_net(task),
        "readout": anchored(task, "readout", data),
        "input": anchored(task, "input", data),
        "ensemble": made,
        "dropout": gduq.MCDropout(make_net(task), num_samples=4),
    }


KINDS: dict[str, Callable[[list[Data]], object]] = {
    "view": View,
    "batch": Batch.from_data_list,
    "loader": lambda graphs: DataLoader(graphs, batch_size=3),
    "generator": iter,
}


@pytest.mark.parametrize("name", ["plain", "readout", "ensemble"])
@pytest.mark.parametrize("kind", KINDS)
def test_predict_graphs(name: str, kind: str, graphs: list[Data]) -> None:
    model = models("graph", graphs)[name]
    p = predict(model, KINDS[kind](graphs))
    assert p.samples.shape == ({"plain": 1, "ensemble": 2}.get(name, 3), 7, 3)
    assert torch.equal(p.target, torch.cat([g.y for g in graphs]))
    single = ClassPrediction.concatenate([predict(model, g) for g in graphs])  # no batch-mates
    torch.testing.assert_close(p.samples, single.samples)
    torch.testing.assert_close(predict(model, graphs, batch_size=2).samples, p.samples)


@pytest.mark.parametrize("name", ["plain", "readout", "input", "ensemble"])
def test_predict_nodes(name: str, node_graph: Data) -> None:
    mask = torch.arange(9) % 2 == 1
    view = View(node_graph, rows=mask)
    model = models("node", View(node_graph, rows=~mask))[name]
    p, everything = predict(model, view), predict(model, node_graph)
    assert len(p) == 4
    assert len(everything) == 9
    assert torch.equal(p.target, node_graph.y[mask])
    torch.testing.assert_close(p.samples, everything.samples[:, mask])
    assert "row_mask" not in node_graph


@pytest.mark.parametrize("name", ["plain", "readout", "input", "ensemble", "dropout"])
def test_predict_neighbour_batches(name: str, node_graph: Data) -> None:
    """Data as ``NeighborLoader`` makes them: seeds first, their number in ``batch_size``."""
    model = models("node", node_graph)[name]
    parts = []
    for seeds in ([0, 1, 2], [3, 4], [5, 6, 7, 8]):
        order = seeds + [i for i in range(9) if i not in seeds]
        place = torch.empty(9, dtype=torch.int64)
        place[order] = torch.arange(9)
        parts.append(
            Data(
                x=node_graph.x[order], edge_index=place[node_graph.edge_index],
                y=node_graph.y[order], batch_size=len(seeds), input_id=torch.tensor(seeds),
            )
        )  # fmt: skip
    p = predict(model, iter(parts))
    assert torch.equal(p.target, node_graph.y)
    if name != "dropout":
        torch.testing.assert_close(p.samples, predict(model, node_graph).samples)
    assert p.samples.shape[1:] == (9, 3)


def test_predict_unlabelled(node_graph: Data) -> None:
    del node_graph.y
    p = predict(make_net("node"), View(node_graph, rows=torch.tensor([3, 1])))
    assert (p.target, p.nodes.tolist()) == (None, [3, 1])


def test_predict_leaves_model_and_data_alone(graphs: list[Data]) -> None:
    model = make_net().train()
    model.layers[0].eval()
    modes = [m.training for m in model.modules()]
    state = {k: v.clone() for k, v in model.state_dict().items()}
    before, random = [dict(g.to_dict()) for g in graphs], torch.random.get_rng_state()
    p = predict(model, graphs)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert torch.equal(random, torch.random.get_rng_state())
    assert all(g.to_dict().keys() == b.keys() for g, b in zip(graphs, before, strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(p.samples, predict(model.eval(), graphs).samples)


def test_predict_refuses_bad_data(graphs: list[Data]) -> None:
    graphs[3].x[0, 0] = float("nan")
    graphs[4].x = torch.ones(graphs[4].num_nodes, 5).double()
    for data in ([], [1, 2], graphs[:4], graphs[4]):
        with pytest.raises(InputError):
            predict(make_net(), data)


@pytest.mark.parametrize("make_inside", [False, True])
@pytest.mark.parametrize("name", ["plain", "readout", "input", "ensemble", "dropout"])
def test_predict_in_inference_mode(name: str, make_inside: bool, graphs: list[Data]) -> None:
    model = models("graph", graphs)[name]
    wanted = predict(model, graphs).samples
    with torch.inference_mode():
        data = Batch.from_data_list(graphs) if make_inside else graphs
        p = predict(model, data)
    torch.testing.assert_close(p.samples, wanted)
    if name not in ("ensemble", "dropout"):  # these only predict
        model.train()(Batch.from_data_list(graphs)).sum().backward()  # nothing kept spoils training


# -- features ----------------------------------------------------------------------------------


def test_features_are_what_is_read(graphs: list[Data], node_graph: Data) -> None:
    net = make_net()
    p = predict(net, graphs, batch_size=3, features=True)
    torch.testing.assert_close(net.eval().head(p.features), p.logits)
    at_input = predict(anchored("graph", "input", graphs), graphs, features=True)
    wanted = torch.stack([g.x.mean(dim=0) for g in graphs])
    torch.testing.assert_close(at_input.features, wanted)
    rows, sparse = torch.tensor([1, 4, 5]), node_graph.clone()
    p = predict(anchored("node", "input", node_graph), View(node_graph, rows=rows), features=True)
    assert torch.equal(p.features, node_graph.x[rows])
    sparse.x = node_graph.x.to_sparse_csr()
    model = anchored("node", "input", sparse)
    p = predict(model, View(sparse, rows=rows), features=True)  # not the wide input itself
    torch.testing.assert_close(p.features, model.linear.residual(node_graph.x)[rows])
