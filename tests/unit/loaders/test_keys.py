from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from luce.errors import ModelFileError
from luce.loaders.keys import Keys


def _keys(**values: Any) -> Keys:
    return Keys("file", {f"p.{key}": value for key, value in values.items()}, "p.")


def test_values_and_defaults() -> None:
    keys = _keys(n=3, x=2, b=False, s="t", null=None)
    assert keys.count("n") == 3
    assert keys.number("x") == 2.0
    assert keys.flag("b", True) is False
    assert keys.text("s") == "t"
    assert keys.count("null", 7) == keys.count("absent", 7) == 7
    assert keys.flag("null", True) is True


def test_an_absent_value_without_default() -> None:
    reads = (
        Keys.count,
        Keys.number,
        Keys.text,
        Keys.texts,
    )
    for read in reads:
        with pytest.raises(ModelFileError, match=r"^file: p\.k is missing$"):
            read(_keys(k=None), "k")


@pytest.mark.parametrize("array", [[4, 4], np.array([4, 4], dtype=np.int32)])
def test_equal_per_layer_values_count_as_one(array: Any) -> None:
    assert _keys(n=array).layer_count("n") == 4
    assert type(_keys(n=array).layer_count("n")) is int
    with pytest.raises(ModelFileError, match=r"^file: p\.n is .*: it must be a whole number$"):
        _keys(n=array).count("n")


@pytest.mark.parametrize("array", [[], [4, 5], [[4], [4]], [np.array([1, 2])] * 2, [{}, {}]])
def test_other_arrays_are_refused(array: Any) -> None:
    with pytest.raises(ModelFileError, match=r"^file: p\.n is "):
        _keys(n=array).layer_count("n")
    with pytest.raises(ModelFileError, match=r"^file: p\.n is "):
        _keys(n=array).only("n", (4,), "no")


def test_only_tells_numbers_from_booleans() -> None:
    _keys(n=0, f=0.0, b=False).only("n", (0,), "no")
    _keys(f=0.0).only("f", (0,), "no")
    _keys().only("absent", (0,), "no")
    with pytest.raises(ModelFileError, match=r"p\.b is False: no"):
        _keys(b=False).only("b", (0,), "no")
    with pytest.raises(ModelFileError, match=r"p\.n is 1: no"):
        _keys(n=1).only("n", (True,), "no")


def test_unknown_keys() -> None:
    keys = Keys("file", {"p.known": 1, "p.harmless": 2, "p.null": None, "q.other": 3}, "p.")
    keys.count("known")
    keys.refuse_unknown({"harmless"})
    with pytest.raises(ModelFileError, match=r"^file: p\.harmless is 2: luce does not know"):
        keys.refuse_unknown(())


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(ModelFileError) as caught:
        _keys(s=["x" * 10_000]).text("s")
    assert len(str(caught.value)) < 200


def test_ranges() -> None:
    assert _keys(n=0).count("n", minimum=0) == 0
    assert _keys(x=1.5).number("x", above=1.0) == 1.5
    with pytest.raises(ModelFileError, match=r"p\.n is 15: it is out of range: it must be 16 at"):
        _keys(n=15).count("n", minimum=16)
    with pytest.raises(ModelFileError, match=r"p\.x is 1\.0: .* it must be above 1"):
        _keys(x=1.0).number("x", above=1.0)


@pytest.mark.parametrize("wrong", [1, ["x"], np.array([1, 2]), True])
def test_text_and_objects_of_another_kind(wrong: Any) -> None:
    with pytest.raises(ModelFileError, match="it must be a string"):
        _keys(s=wrong).optional_text("s")
    with pytest.raises(ModelFileError, match="it must be an object"):
        _keys(s=wrong).optional_object("s")
    assert _keys().optional_text("s") is None
    assert _keys().optional_object("s") is None


def test_without_a_source_the_key_comes_first() -> None:
    with pytest.raises(ModelFileError, match=r"^k is 1: it must be a string$"):
        Keys(None, {"k": 1}).text("k")
    with pytest.raises(ModelFileError, match=r"^k is missing$"):
        Keys(None, {}).text("k")
