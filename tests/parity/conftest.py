"""Lets the tests of this folder import what they share, and sets threads up before torch."""

from __future__ import annotations

import sys
from pathlib import Path

import luce.engine  # noqa: F401 - its settings must stand before a test imports torch

# The test folders are no packages, and pytest's importlib mode adds none of them to the path.
sys.path.append(str(Path(__file__).parent))
