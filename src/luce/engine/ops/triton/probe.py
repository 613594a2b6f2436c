"""Whether a kernel can be compiled and started on this machine, found out before it is needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

from triton.errors import TritonError

from luce.engine.device import is_out_of_memory
from luce.engine.ops.triton.numeric import INTERPRETED


class TrialError(RuntimeError):
    """A kernel that was tried gives wrong results."""


_log = logging.getLogger(__name__)
_known: dict[Hashable, str | None] = {}
_REFUSALS = (TritonError, RuntimeError, AttributeError, LookupError, TypeError, ValueError)
"""The compiler's own passes fail with a plain RuntimeError; the others come of a Triton that does
not know an option, or an operation."""


def launch_refusal(facts: Hashable, launch: Callable[[], object]) -> str | None:
    """Why `launch` fails, or None; tried once for the same facts, and never in the interpreter.

    What it says is logged.

    Args:
        facts: what the kernels are compiled for.
        launch: starts them.

    Raises:
        RuntimeError: there is no memory for it.
    """
    if INTERPRETED:
        return None
    if facts not in _known:
        reason = _known[facts] = failure_of(launch)
        if reason is not None:
            _log.warning("a faster way is left out, %s", reason)
    return _known[facts]


def failure_of(launch: Callable[[], object]) -> str | None:
    """What the compiler or the driver says against it, in one line."""
    try:
        launch()
    except _REFUSALS as error:
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return f"a kernel does not work here: {lines[0]}"
    return None
