"""The three errors: what they say, what they are, and that they cross process borders."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from gduq.errors import BundleError, InputError, NotFittedError


@pytest.mark.parametrize("kind", [InputError, NotFittedError, BundleError])
@pytest.mark.parametrize("got", ["text", 3, None, [1, 2], torch.float32, lambda: None])
def test_an_error_says_what_is_wrong_and_crosses_process_borders(kind, got):
    error = kind("a graph", got, "Pass one graph.")
    assert isinstance(error, (InputError, ValueError))
    assert (error.expected, error.got, error.do) == ("a graph", got, "Pass one graph.")
    assert str(kind("k >= 1", 0)) == "expected k >= 1, got 0."
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == str(error)


def test_an_error_is_one_short_line_whatever_a_file_holds():
    error = InputError("a column\nof numbers", "a\r\nname", "Columns: a,\nb.")
    assert str(error) == "expected a column of numbers, got a name. Columns: a, b."
    long = "a" * 100_000
    error = InputError(f"a column of {long}", long, f"There is {long}.")
    assert len(str(pickle.loads(pickle.dumps(error)))) < 1300
