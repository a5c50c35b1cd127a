"""`Neighbours`: votes of training rows, held against scikit-learn and plain loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor
from torch_geometric.data import Data

import gduq
from gduq import InputError, Neighbours
from gduq.errors import NotFittedError
from gduq.nn import GNN
from tests.models.test_targets import fitted, trained
from tests.training.test_calibrated_fit import noisy

QUIET: dict[str, Any] = {"progress": False}


def net() -> GNN:
    torch.manual_seed(0)
    return GNN(4, 8, 3, num_layers=2, conv="gin", head="mlp").double().eval()


def made(k: int = 5, train: list[Data] | None = None, **options: Any) -> Neighbours:
    model = Neighbours(net(), k, **options)
    gduq.fit(model, train or noisy(60, 1), noisy(40, 2), **QUIET)
    return model


def test_votes_are_those_of_scikit_learn() -> None:
    train, new = noisy(60, 1), noisy(30, 3)
    model = made(5, train)
    model.set_temperature(1.0, None)
    h, y = gduq.predict(model, train, features=True), torch.tensor([int(d.y) for d in train])
    theirs = KNeighborsClassifier(5, metric="cosine", algorithm="brute").fit(h.features, y)
    p = gduq.predict(model, new, features=True)
    alone = torch.cat([gduq.predict(model, [graph]).probs for graph in new])
    assert torch.equal(p.probs, alone)  # in no batch
    share = (torch.bincount(y, minlength=3) + 1) / (len(y) + 2)
    votes = 5 * torch.from_numpy(theirs.predict_proba(p.features))
    expected = (votes + share / share.sum()) / 6
    assert torch.allclose(p.probs, expected)
    assert p.num_samples == 1


def test_all_rows_as_near_as_the_last_one_share_its_votes() -> None:
    """Whatever their order: the same graph four times, with three labels."""
    train = noisy(40, 1)
    twins = [train[0].clone() for _ in range(4)]
    for twin, label in zip(twins, (0, 1, 1, 2), strict=True):
        twin.y = torch.tensor([label])
    rows = twins + train[1:]
    answers = []
    for order in (rows, rows[::-1]):
        model = made(2, order)
        model.set_temperature(1.0, None)
        answers.append(gduq.predict(model, twins[:1]).probs[0])
    assert torch.allclose(answers[0], answers[1])
    share = torch.tensor([sum(int(d.y) == c for d in rows) for c in range(3)]) + 1
    expected = (torch.tensor([0.5, 1.0, 0.5]) + share / share.sum()) / 3
    assert torch.allclose(answers[0], expected.double())


def test_a_large_part_that_all_rows_share_makes_no_ties() -> None:
    """Directions that hardly differ still have an order."""
    model = made(1)
    angle = 1e-5 * torch.arange(60, dtype=torch.float64)
    model.reference = torch.stack([angle.cos(), angle.sin()], dim=1)
    said = model.from_rows(model.reference, model.reference)[0].exp()
    assert torch.equal(said.argmax(dim=1), model.says.argmax(dim=1))


def _logit(p: Tensor) -> Tensor:
    return (p / (1 - p)).log()


def test_unknown_labels_do_not_vote() -> None:
    model = fitted(Neighbours(trained("labels"), 4), "labels")
    says, h = model.says, model.reference
    assert bool(says.isnan().any())
    said = model.from_rows(h[:7], h[:7])[0]
    unit = h / h.norm(dim=1, keepdim=True)
    for i in range(7):
        near = (unit @ unit[i]).topk(4).indices
        for t in range(2):
            known = says[near, t][~says[near, t].isnan()]
            everyone = says[:, t][~says[:, t].isnan()]
            share = (everyone.sum() + 1) / (len(everyone) + 2)
            expected = _logit((known.sum() + share) / (len(known) + 1))
            assert torch.allclose(said[i, t], expected.to(said))


def test_one_logit_for_two_classes() -> None:
    torch.manual_seed(0)
    binary = GNN(4, 8, 1, num_layers=2, conv="gin", head="mlp").double()
    train, val = noisy(60, 1), noisy(40, 2)
    for graph in (*train, *val):
        graph.y = graph.y.clamp_max(1)
    model = Neighbours(binary)
    gduq.fit(model, train, val, **QUIET)
    model.set_temperature(1.0, None)
    p = gduq.predict(model, val, features=True)
    h = gduq.predict(model, train, features=True).features
    y = torch.tensor([int(d.y) for d in train])
    theirs = KNeighborsClassifier(10, metric="cosine", algorithm="brute").fit(h, y)
    votes = 10 * torch.from_numpy(theirs.predict_proba(p.features))[:, 1]
    assert torch.allclose(p.probs[:, 1], (votes + (y.sum() + 1) / 62) / 11)


def test_values_and_other_mistakes_are_refused() -> None:
    with pytest.raises(InputError):
        fitted(Neighbours(trained("values")), "values")
    with pytest.raises(InputError):
        Neighbours(net(), k=0)
    for wrong in (gduq.anchor(net()), Neighbours(net()), [net()]):
        with pytest.raises(InputError):
            Neighbours(wrong)
    with pytest.raises(NotFittedError):
        gduq.predict(Neighbours(net()), noisy(3, 0))
