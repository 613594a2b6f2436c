"""A worker's ties to the listener: it never outlives it and leaves Ctrl-C to it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

_PR_SET_PDEATHSIG = 1
"""Source: linux/prctl.h."""


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends; Linux only, nothing elsewhere.

    The end of the socket says the same, but a process inside a driver call may not hear it.

    Args:
        parent_pid: the parent as it was at the start; if it has ended already, so do we.
    """
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def leave_signals_to_listener(on_terminate: Callable[[], None]) -> None:
    """Ignore SIGINT: a terminal's Ctrl-C is for the listener, which then tells the workers.

    Args:
        on_terminate: called in the main thread for each SIGTERM.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def handle(_number: int, _frame: FrameType | None) -> None:
        on_terminate()

    signal.signal(signal.SIGTERM, handle)
