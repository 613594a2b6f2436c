from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from luce.errors import ModelFileError
from luce.loaders.vocab_keys import VocabKeys


def _keys(**values: Any) -> VocabKeys:
    return VocabKeys("file", {f"p.{key}": value for key, value in values.items()}, "p.")


@pytest.mark.parametrize("array", [[1, 2], np.array([1, 2], dtype=np.uint8)])
def test_lists(array: Any) -> None:
    assert _keys(a=array).whole_numbers("a") == [1, 2]
    assert _keys(a=array).numbers("a") == [1.0, 2.0]
    assert _keys(a=["x", ""]).texts("a") == ["x", ""]
    assert _keys(a=[]).texts("a") == []


WRONG_LISTS = [1, 1.5, "x", True, [1, "x"], [[1]], ["x", None], np.array([[1]]), np.array([True])]


@pytest.mark.parametrize("value", WRONG_LISTS)
def test_what_is_no_list_of_its_kind(value: Any) -> None:
    for read, kind in (
        (VocabKeys.texts, "list of strings"),
        (VocabKeys.whole_numbers, "list of whole numbers"),
        (VocabKeys.numbers, "list of numbers"),
    ):
        with pytest.raises(ModelFileError, match=rf"^file: p\.a is .*: it must be a {kind}$"):
            read(_keys(a=value), "a")


def test_numbers_must_be_finite_and_whole_ones_whole() -> None:
    for values in ([1.0, float("nan")], np.array([np.inf], dtype=np.float32)):
        with pytest.raises(ModelFileError, match="must be a list of numbers"):
            _keys(a=values).numbers("a")
    for values in ([1.0, 2.0], np.array([1.0])):
        with pytest.raises(ModelFileError, match="must be a list of whole numbers"):
            _keys(a=values).whole_numbers("a")
    assert _keys(a=[1, 2.5]).numbers("a") == [1.0, 2.5]


def test_token_ids() -> None:
    assert _keys(t=3).token_id("t", 4) == 3
    assert _keys(t=2**32 - 1).token_id("t", 4) is _keys().token_id("t", 4) is None
    for value in (4, -1):
        with pytest.raises(ModelFileError, match="outside the vocabulary of 4 tokens"):
            _keys(t=value).token_id("t", 4)
    for wrong in (True, 1.0, "1", np.array([1, 2])):
        with pytest.raises(ModelFileError, match="it must be a whole number"):
            _keys(t=wrong).token_id("t", 4)


def test_lists_that_are_missing() -> None:
    for read in (VocabKeys.texts, VocabKeys.whole_numbers, VocabKeys.numbers):
        with pytest.raises(ModelFileError, match=r"^file: p\.a is missing$"):
            read(_keys(), "a")
