"""Lets the tests of this folder import what they share from `server_process`."""

from __future__ import annotations

import sys
from pathlib import Path

# The test folders are no packages, and pytest's importlib mode adds none of them to the path.
sys.path.append(str(Path(__file__).parent))
