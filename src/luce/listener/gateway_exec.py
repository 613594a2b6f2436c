"""Becomes the gateway: ties its life to the server's, then runs the user's program in its place.

`python -m luce.listener.gateway_exec PARENT_PID FD PROGRAM ARGUMENTS...`. FD gets the number of
the error if the program cannot be run; otherwise the running program closes it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""Source: linux/prctl.h. The setting outlives exec."""
_FIRST_OTHER = 3
_MOST_DESCRIPTORS = 1 << 20
CANNOT_RUN = 126
"""Exit code of shells for a program that cannot be run."""


def main(argv: list[str]) -> int:
    """Run the program; comes back only if that fails."""
    parent_pid, report = int(argv[0]), int(argv[1])
    os.set_inheritable(report, False)
    # An event loop's own descriptors come along; the program is to have none of them.
    os.closerange(_FIRST_OTHER, report)
    os.closerange(report + 1, _MOST_DESCRIPTORS)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:
            # The server ended while we came up.
            return CANNOT_RUN
    try:
        os.execv(argv[2], argv[2:])  # noqa: S606 - the program is the user's own
    except OSError as error:
        os.write(report, str(error.errno).encode())
    return CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
