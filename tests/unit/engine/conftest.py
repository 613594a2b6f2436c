"""Sets threads up before any test of this folder imports torch."""

from __future__ import annotations

import luce.engine  # noqa: F401 - its settings must stand before torch is imported
