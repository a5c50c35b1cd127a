"""The three errors: what they say, what they are, and that they cross process borders."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from gduq import errors
from gduq.errors import BundleError, InputError, NotFittedError

KINDS = [InputError, NotFittedError, BundleError]


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_error_says(kind: type[InputError]) -> None:
    error = kind("a graph", "a list", "Pass one graph.")
    assert str(error) == "expected a graph, got a list. Pass one graph."
    assert (error.expected, error.got, error.do) == ("a graph", "a list", "Pass one graph.")
    assert str(kind("k >= 1", 0)) == "expected k >= 1, got 0."
    assert isinstance(error, (InputError, ValueError))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("got", ["text", 3, None, [1, 2], torch.float32, lambda: None])
def test_errors_cross_process_borders(kind: type[InputError], got: object) -> None:
    error = kind("this", got, "Do that.")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == str(error)


def test_every_public_class_is_an_error() -> None:
    public = [getattr(errors, name) for name in errors.__all__]
    assert {kind for kind in public if isinstance(kind, type)} == {
        BundleError, InputError, NotFittedError,
    }  # fmt: skip


def test_an_error_is_one_line_whatever_a_file_holds() -> None:
    error = InputError("a column\nof numbers", "a\r\nname", "Columns: a,\nb.")
    assert str(error) == "expected a column of numbers, got a name. Columns: a, b."


def test_what_is_quoted_is_shortened():
    long = "a" * 100_000
    error = InputError(f"a column of {long}", long, f"There is {long}.")
    assert len(str(error)) < 1300
    assert len(str(pickle.loads(pickle.dumps(error)))) < 1300
