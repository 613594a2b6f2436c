"""Lets the cases use what the tests over HTTP and over processes share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from luce.testing.tiny_models import tiny_llama

# The test folders are no packages, and pytest's importlib mode adds none of them to the path.
for folder in (".", "../http", "../chaos"):
    sys.path.append(str((Path(__file__).parent / folder).resolve()))


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights, a byte vocabulary and a ChatML template."""
    return tiny_llama(tmp_path_factory.mktemp("tiny"))
