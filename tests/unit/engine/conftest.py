"""Sets threads up before any test here imports torch; lets tests import what they share."""

from __future__ import annotations

import sys
from pathlib import Path

import luce.engine  # noqa: F401 - its settings must stand before torch is imported

sys.path.append(str(Path(__file__).parent))
