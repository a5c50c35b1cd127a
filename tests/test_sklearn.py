"""`gduq.sklearn`: estimators for molecules as scikit-learn's tools expect them."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("rdkit")

from sklearn.base import clone, is_classifier, is_regressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks as checks

import gduq
from gduq.errors import InputError
from gduq.sklearn import MoleculeClassifier, MoleculeRegressor

CHAINS = ["C" * n + end for n in range(1, 26) for end in "ONFSPB"]
LENGTHS = np.array([float(len(text)) for text in CHAINS])
ENDS = np.array([text[-1] for text in CHAINS])
QUICK = {"validation_fraction": 0.4, "max_epochs": 30, "hidden_channels": 16, "num_layers": 2,
         "learning_rate": 0.01}  # fmt: skip


@pytest.fixture(scope="module")
def regressor():
    return MoleculeRegressor(**QUICK).fit(CHAINS, LENGTHS)


@pytest.fixture(scope="module")
def classifier():
    return MoleculeClassifier(**QUICK).fit(CHAINS, ENDS)


def test_values(regressor):
    mean, std = regressor.predict(CHAINS, return_std=True)
    assert (std > 0).all()
    np.testing.assert_array_equal(mean, regressor.predict(CHAINS))
    assert regressor.score(CHAINS, LENGTHS) > 0.8
    narrow, wide = (regressor.predict_interval(CHAINS, level) for level in (0.5, 0.9))
    assert (wide[:, 0] < narrow[:, 0]).all()
    assert (narrow[:, 1] < wide[:, 1]).all()
    p = regressor.predict_distribution(CHAINS)
    np.testing.assert_allclose(p.mean.numpy(), mean)


def test_classes_keep_their_names(classifier):
    probs = classifier.predict_proba(CHAINS)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-6)
    assert list(classifier.classes_) == list("BFNOPS")
    np.testing.assert_array_equal(classifier.predict(CHAINS), classifier.classes_[probs.argmax(1)])
    assert classifier.score(CHAINS, ENDS) > 0.8


def test_novelty_knows_what_is_new(regressor):
    usual, new = regressor.novelty(CHAINS), regressor.novelty(["[Pt](Cl)(Cl)Br", "c1ccc2ccccc2c1"])
    assert ((usual >= 0) & (usual <= 1)).all()
    assert new.min() > np.median(usual)


def test_several_values():
    both = np.column_stack([LENGTHS, -LENGTHS])
    model = MoleculeRegressor(**{**QUICK, "max_epochs": 2}).fit(CHAINS, both)
    assert model.predict(CHAINS[:4]).shape == (4, 2)
    assert model.predict_interval(CHAINS[:4]).shape == (4, 2, 2)


def test_tables_and_columns_are_read(regressor):
    expected = regressor.predict(CHAINS[:5])
    for given in (np.array(CHAINS[:5]), pd.Series(CHAINS[:5]), pd.DataFrame({"s": CHAINS[:5]})):
        np.testing.assert_array_equal(regressor.predict(given), expected)


def test_it_is_cloned_pickled_and_saved(regressor, tmp_path):
    again = clone(regressor)
    assert not hasattr(again, "model_")
    assert again.get_params() == regressor.get_params()
    expected, twin = regressor.predict(CHAINS[:5]), pickle.loads(pickle.dumps(regressor))
    np.testing.assert_array_equal(twin.predict(CHAINS[:5]), expected)
    model, _ = gduq.load(gduq.save(regressor.model_, tmp_path / "model"))
    p = gduq.predict(model, gduq.data.smiles.molecules(CHAINS[:5]))
    np.testing.assert_allclose(p.mean.numpy(), expected)
    quick = clone(regressor).set_params(max_epochs=1)
    one, same = (clone(quick).fit(CHAINS, LENGTHS).predict(CHAINS[:5]) for _ in range(2))
    np.testing.assert_array_equal(one, same)


def test_tools_of_scikit_learn_take_it():
    stripped = FunctionTransformer(lambda texts: [text.strip() for text in texts])
    pipeline = make_pipeline(stripped, MoleculeClassifier(**{**QUICK, "max_epochs": 2}))
    search = GridSearchCV(pipeline, {"moleculeclassifier__num_layers": [1]}, cv=2, refit=False)
    search.fit(CHAINS, ENDS)
    assert 0 <= search.best_score_ <= 1


@pytest.mark.parametrize("estimator", [MoleculeRegressor(), MoleculeClassifier()])
def test_scikit_learns_checks_that_need_no_numbers(estimator):
    for name in (
        "no_attributes_set_in_init", "parameters_default_constructible", "get_params_invariance",
        "set_params", "estimator_repr", "estimator_cloneable", "valid_tag_types", "mixin_order",
    ):  # fmt: skip
        getattr(checks, f"check_{name}")(type(estimator).__name__, estimator)
    assert is_regressor(estimator) != is_classifier(estimator)


def test_mistakes():
    model = MoleculeRegressor(**QUICK)
    with pytest.raises(Exception, match="not fitted"):
        model.predict(["CCO"])
    chains = ["CCO"] * 19
    for X in ([*chains, "C1CC("], [*chains, None], np.zeros((20, 3)), chains):
        with pytest.raises(InputError):
            model.fit(X, range(20))
    with pytest.raises(InputError):
        model.fit(chains[:4], range(4))
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            model.fit(["CCO"] * 20, [1.0] * 19 + [bad])
    classes = MoleculeClassifier(**QUICK)
    for labels in (["a"] * 20, ["a"] * 19 + ["b"]):
        with pytest.raises(InputError):
            classes.fit(["CCO"] * 20, labels)
    assert not hasattr(model, "model_")
