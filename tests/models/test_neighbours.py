"""`Neighbours`: votes of training rows, held against scikit-learn and plain loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch_geometric.data import Data

import gduq
from gduq import InputError, Neighbours
from gduq.errors import NotFittedError
from gduq.nn import GNN
from tests.models.test_targets import fitted, trained
from tests.training.test_calibrated_fit import noisy

QUIET: dict[str, Any] = {"progress": False}


def net(outputs: int = 3) -> GNN:
    torch.manual_seed(0)
    return GNN(4, 8, outputs, num_layers=2, conv="gin", head="mlp").double().eval()


def made(k: int = 5, train: list[Data] | None = None, outputs: int = 3) -> Neighbours:
    model, val = Neighbours(net(outputs), k), noisy(40, 2)
    for graph in val if outputs == 1 else ():
        graph.y = graph.y.clamp_max(1)
    gduq.fit(model, train or noisy(60, 1), val, **QUIET)
    model.set_temperature(1.0, None)
    return model


@pytest.mark.parametrize("outputs", [3, 1])
def test_votes_are_those_of_scikit_learn(outputs: int) -> None:
    """Of three classes, and of two that share a logit."""
    train, new, classes = noisy(60, 1), noisy(30, 3), max(2, outputs)
    for graph in (*train, *new):
        graph.y = graph.y.clamp_max(classes - 1)
    model = made(5, train, outputs)
    h, y = gduq.predict(model, train, features=True), torch.tensor([int(d.y) for d in train])
    theirs = KNeighborsClassifier(5, metric="cosine", algorithm="brute").fit(h.features, y)
    p = gduq.predict(model, new, features=True)
    alone = torch.cat([gduq.predict(model, [graph]).probs for graph in new])
    assert torch.equal(p.probs, alone)  # in no batch
    share = (torch.bincount(y, minlength=classes) + 1) / (len(y) + classes)
    votes = 5 * torch.from_numpy(theirs.predict_proba(p.features))
    assert torch.allclose(p.probs, (votes + share) / 6)
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
        answers.append(gduq.predict(made(2, order), twins[:1]).probs[0])
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
            expected = torch.logit((known.sum() + share) / (len(known) + 1))
            assert torch.allclose(said[i, t], expected.to(said))


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
