"""Less confidence far from the anchors: who gets it, by how much, and what stays as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_mean_pool

import gduq
from gduq.bundle.blueprint import rebuild, spec_of
from gduq.nn import GNN
from gduq.tempering import NEAR, reach_of, tempered


def graphs(count: int = 40, scale: float = 1.0) -> list[Data]:
    generator = torch.Generator().manual_seed(0)
    ring = torch.arange(5)
    edges = torch.stack([ring, ring.roll(1)])
    features = scale * torch.randn(count, 5, 3, generator=generator)
    return [Data(x=x, edge_index=edges, y=torch.tensor(i % 2)) for i, x in enumerate(features)]


def net(**options: object) -> GNN:
    torch.manual_seed(0)
    return GNN(3, 8, 2, num_layers=2, head="mlp", **options)


def model(**options: object) -> gduq.Anchored:
    return gduq.anchor(net(), freeze=True, num_anchors=4, **options).fit_bank(graphs())


def test_it_is_the_default_of_a_head_on_a_frozen_network() -> None:
    assert model().temper
    assert not model(temper=False).temper
    assert not gduq.anchor(net(), freeze=True, at=1).temper  # nodes there, graphs in the answer
    assert not gduq.anchor(net()).temper  # equation (1) as it stands


def test_nearly_all_training_rows_are_within_reach() -> None:
    found = model()
    h = torch.cat([found.represent(graph) for graph in graphs()])
    distance = torch.cdist(h, found.bank).mean(1)
    assert (distance <= found.reach).float().mean() == pytest.approx(NEAR, abs=0.03)


def test_the_mean_shrinks_with_the_distance_and_disagreement_stays() -> None:
    found, plain = model(init="random"), model(init="random", temper=False)
    plain.load_state_dict(found.state_dict())
    for scale in (1.0, 30.0):
        for graph in graphs(10, scale):
            with torch.no_grad():
                far = torch.cdist(found.represent(graph), found.bank).mean() / found.reach
                ours, theirs = found.sample(graph), plain.sample(graph)
            torch.testing.assert_close(ours.mean(0), theirs.mean(0) / far.clamp_min(1.0))
            torch.testing.assert_close(ours - ours.mean(0), theirs - theirs.mean(0))
            assert torch.equal(ours.mean(0).argmax(-1), theirs.mean(0).argmax(-1))
    assert far > 2  # the last ones were far away
    assert theirs.std(0).max() > 1e-4


def test_a_row_does_not_depend_on_the_others_of_its_batch() -> None:
    found = gduq.anchor(net(readout="sum"), freeze=True, num_anchors=4)
    rows = graphs(60)
    for graph in rows:
        graph.x += 300.0  # far from zero distances are easily lost in rounding
    found.fit_bank(rows).eval()
    with torch.no_grad():
        together = found.sample(Batch.from_data_list(rows))
        alone = torch.cat([found.sample(graph) for graph in rows], dim=1)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 12])
def test_rows_that_do_not_differ_tell_nothing(rows: int) -> None:
    found = gduq.anchor(net(), freeze=True, num_anchors=1).fit_bank(graphs(1) * rows).eval()
    assert found.reach == torch.inf
    with torch.no_grad():
        assert found.sample(graphs(1, scale=50.0)[0]).isfinite().all()


def test_a_failure_changes_nothing() -> None:
    found = model()
    bank, reach = found.bank.clone(), found.reach.clone()
    wrong = graphs(40, scale=9.0)
    for graph in wrong:
        graph.y += 1  # a class too many
    with pytest.raises(gduq.InputError):
        gduq.fit(found, wrong, epochs=1, progress=False)
    assert torch.equal(found.bank, bank)
    assert torch.equal(found.reach, reach)
    fixed = gduq.anchor(net(), freeze=True, anchors=torch.zeros(10, 8))
    with pytest.raises(gduq.InputError):
        fixed.fit_bank([])
    assert not len(fixed.bank)


def test_masking_and_the_identity_start_are_on_together() -> None:
    assert model().init == "identity"
    assert gduq.anchor(net(), at=1, freeze=True).init == "random"
    linear = GNN(3, 8, 2, num_layers=2)
    assert gduq.anchor(linear, freeze=True).init == "random"
    with pytest.raises(gduq.InputError, match="temper True, 'distance' or False"):
        gduq.anchor(net(), temper="no")


def test_candidates_have_it_where_rows_are_answers() -> None:
    found = gduq.anchor(net(), at="auto", temper=True)
    assert [c.temper for c in found.candidates] == [False, False, True]
    sparse = Data(x=torch.eye(4).to_sparse_csr(), edge_index=torch.zeros(2, 0).long())
    nodes = gduq.anchor(GNN(4, 8, 2, 2, task="node"), at="input", num_anchors=2, temper=True)
    with pytest.raises(gduq.InputError, match="dense representations"):
        nodes.fit_bank(sparse).eval().sample(sparse)


def test_training_does_not_see_it() -> None:
    found, plain = model().train(), model(temper=False).train()
    graph = graphs(1, scale=100.0)[0]
    passes = []
    for one in (found, plain):
        torch.manual_seed(3)
        passes.append(one(graph))
    assert torch.equal(*passes)


def test_a_bank_of_given_anchors_has_a_reach_too() -> None:
    found = gduq.anchor(net(), freeze=True, anchors=torch.zeros(10, 8)).fit_bank(graphs())
    h = torch.cat([found.represent(graph) for graph in graphs()])
    assert float(found.reach) == pytest.approx(float(h.norm(dim=1).quantile(NEAR)), rel=1e-5)


def test_weights_and_bundles_of_before_have_no_reach(tmp_path) -> None:
    plain = model(temper=False)
    old = {k: v for k, v in plain.state_dict().items() if k != "reach"}
    fresh = gduq.anchor(net(), freeze=True, num_anchors=4)
    fresh.load_state_dict(old)
    assert torch.isinf(fresh.eval().reach)
    for together in (plain, gduq.Ensemble([plain, model(temper=False, init="random")])):
        spec, tensors = spec_of(together), together.state_dict()
        for part in spec.get("members", [spec]):
            del part["temper"]
        kept = {k: v for k, v in tensors.items() if not k.endswith(("reach", "temperature"))}
        loaded = rebuild(spec, kept, iter(()), None, version=1).eval()
        graph = graphs(1, scale=100.0)[0]
        with torch.no_grad():
            assert torch.equal(loaded.sample(graph), together.eval().sample(graph))
    with pytest.raises(gduq.InputError, match="misfit"):
        rebuild(spec_of(plain), old, iter(()), None, version=2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_any_precision(dtype: torch.dtype) -> None:
    found = gduq.anchor(net().to(dtype), freeze=True, num_anchors=4)
    found.fit_bank(graphs()).eval()
    with torch.no_grad():
        near, far = (found.sample(graphs(1, scale)[0]) for scale in (1.0, 1e3))
    assert near.dtype == far.dtype == dtype
    assert far.isfinite().all()


def test_a_bundle_keeps_it(tmp_path) -> None:
    found = model()
    gduq.save(found, tmp_path / "bundle")
    loaded, _ = gduq.load(tmp_path / "bundle")
    graph = graphs(1, scale=50.0)[0]
    assert loaded.temper
    with torch.no_grad():
        assert torch.equal(loaded.sample(graph), found.sample(graph))


class Pooled(nn.Module):
    """Somebody else's network: a layer on nodes, one on graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.on_nodes, self.on_graphs = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return self.on_graphs(global_mean_pool(self.on_nodes(x).relu(), batch))


def test_other_modules_can_have_it_where_rows_are_answers() -> None:
    behind = gduq.anchor(Pooled(), at="on_graphs", num_anchors=4, temper=True).fit_bank(graphs())
    before = gduq.anchor(Pooled(), at="on_nodes", num_anchors=4, temper=True).fit_bank(graphs())
    far, near = (Batch.from_data_list(graphs(2, scale)) for scale in (100.0, 1.0))
    bare = gduq.anchor(Pooled(), at="on_graphs", num_anchors=4)
    bare.load_state_dict(behind.state_dict())
    with torch.no_grad():
        ours, theirs = behind.eval().sample(far), bare.eval().sample(far)
        assert (ours.mean(0).abs() < 0.5 * theirs.mean(0).abs()).all()
        with pytest.raises(gduq.InputError, match="one representation for every answer"):
            before.eval().sample(near)


def test_without_rows_nothing_is_out_of_reach() -> None:
    assert reach_of(None, torch.zeros(2, 3)) == torch.inf
    logits, h = torch.ones(2, 3, 4), 1e6 * torch.ones(3, 5)
    assert torch.equal(tempered(logits, h, torch.zeros(2, 5), torch.tensor(torch.inf)), logits)


# -- no more confidence than validation rows bear out ----------------------------------------------


def random_labels(count: int, seed: int) -> list[Data]:
    """Rows that nothing can be said about: who is sure of them is wrong half of the time."""
    generator, found = torch.Generator().manual_seed(seed), graphs(count)
    for graph in found:
        graph.x = graph.x + 0.3 * torch.randn(graph.x.shape, generator=generator)
        graph.y = torch.randint(2, (), generator=generator)
    return found


def fitted(
    train: list[Data], val: list[Data] | None, scale: float = 1.0, **options: object
) -> gduq.Anchored:
    plain = net()
    with torch.no_grad():
        plain.head.rest[-1].weight.mul_(scale)  # how sure it is of itself
    found = gduq.anchor(plain, freeze=True, num_anchors=4, **options)
    gduq.fit(found, train, val, epochs=1, lr=1e-5, seed=0, progress=False)
    return found.eval()


def test_confidence_that_validation_rows_do_not_bear_out_is_lowered() -> None:
    train, val = random_labels(40, 1), random_labels(40, 2)
    ours, bare = (fitted(train, val, 40.0, temper=temper) for temper in (True, "distance"))
    assert ours.temperature > 2
    assert bare.temper == "distance"
    assert bare.temperature == fitted(train, None, 40.0).temperature == 1
    ps = [gduq.predict(one, val) for one in (ours, bare)]
    assert torch.equal(ps[0].label, ps[1].label)
    assert gduq.metrics.nll(ps[0]) < gduq.metrics.nll(ps[1])
    best = float(gduq.calibration.TemperatureScaling().fit(ps[1]).value)
    assert 1 < ours.temperature < best  # as if ten rows more were as they should be
    mean = [p.samples.mean(0) for p in ps]
    spread = [p.samples - p.samples.mean(0) for p in ps]
    torch.testing.assert_close(mean[0] * ours.temperature, mean[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(spread[0], spread[1])


def test_confidence_is_never_raised() -> None:
    rows = graphs(40)
    for graph in rows:
        graph.x[:, 0] += 4.0 * graph.y - 2.0
    found = gduq.anchor(net(), freeze=True, num_anchors=4)
    gduq.fit(found, rows, rows, epochs=20, lr=1e-2, mask=0.6, progress=False)  # much is masked
    unsure = gduq.calibration.TemperatureScaling().fit(gduq.predict(found, rows))
    assert unsure.value < 0.5
    assert found.temperature == 1


def test_a_finished_run_has_its_temperature_again_and_another_bank_none(tmp_path) -> None:
    train, val = random_labels(40, 1), random_labels(40, 2)
    models = []
    for epochs in (1, 1, 2):
        found = gduq.anchor(net(), freeze=True, num_anchors=4)
        with torch.no_grad():
            found.cut.net.head.rest[-1].weight.mul_(40.0)
        gduq.fit(found, train, val, epochs=epochs, lr=1e-5, progress=False, resume=tmp_path)
        models.append(found)
    once, again, longer = models
    assert once.temperature > 2
    assert torch.equal(once.temperature, again.temperature)
    assert float(longer.temperature) == pytest.approx(float(once.temperature), rel=0.05)
    assert once.fit_bank(train).temperature == 1


def test_a_bundle_keeps_the_temperature_and_earlier_ones_have_none(tmp_path) -> None:
    found = model()
    found.temperature.fill_(3.0)
    gduq.save(found, tmp_path / "bundle")
    loaded, _ = gduq.load(tmp_path / "bundle")
    assert loaded.temperature == 3.0
    spec = spec_of(found)
    kept = {k: v for k, v in found.state_dict().items() if k != "temperature"}
    with pytest.raises(gduq.InputError, match="misfit"):
        rebuild(spec, kept, iter(()), None)
    assert rebuild(spec, kept, iter(()), None, version=2).temperature == 1


def test_few_rows_say_little() -> None:
    sure = fitted(random_labels(40, 1), None, 40.0)
    wrong = random_labels(40, 1)[:1]
    wrong[0].y = 1 - gduq.predict(sure, wrong).label[0]
    alone = float(gduq.calibration.TemperatureScaling().fit(gduq.predict(sure, wrong)).value)
    assert 1 < fitted(random_labels(40, 1), wrong, 40.0).temperature < 0.1 * alone


def test_a_failure_leaves_the_temperature() -> None:
    train, val = random_labels(40, 1), random_labels(40, 2)
    found = fitted(train, val, 40.0)
    before = found.temperature.clone()
    val[0].y = torch.tensor(7)
    with pytest.raises(gduq.InputError):
        gduq.fit(found, train, val, epochs=1, progress=False)
    assert torch.equal(found.temperature, before)
    assert before > 1


@pytest.mark.parametrize(("said", "kept"), [(1, True), (0, False), ("distance", "distance")])
def test_choices_are_kept_as_what_they_mean(said: object, kept: object) -> None:
    found = gduq.anchor(net(), freeze=True, temper=said).temper
    assert (type(found), found) == (type(kept), kept)
