"""The error tree: one status and code each, and the way over the wire."""

from __future__ import annotations

import pytest

from luce import errors


def family(root: type[errors.LuceError]) -> list[type[errors.LuceError]]:
    """The tree as far as it stands in the module: packages may have errors of their own."""
    children = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    return [root, *(found for child in children for found in family(child))]


@pytest.mark.parametrize("error", family(errors.LuceError), ids=lambda error: error.__name__)
def test_every_error_is_in_the_drawing(error: type[errors.LuceError]) -> None:
    assert error.__doc__
    assert error.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("error", family(errors.ApiError), ids=lambda error: error.__name__)
def test_answers(error: type[errors.ApiError]) -> None:
    assert 400 <= error.status < 600
    assert error.retryable == (error.status == 503)
    assert error.code.replace("_", "").isalpha()


def test_exit_codes_tell_the_causes_apart() -> None:
    codes = [error.exit_code for error in errors.StartupError.__subclasses__()]
    assert sorted(codes) == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("error", family(errors.LuceError), ids=lambda error: error.__name__)
def test_over_the_wire(error: type[errors.LuceError]) -> None:
    back = errors.from_wire(error.__name__, "what was wrong")
    assert type(back) is error
    assert str(back) == "what was wrong"


def test_an_unknown_name_is_our_bug() -> None:
    assert type(errors.from_wire("ZeroDivisionError", "x")) is errors.InternalError
