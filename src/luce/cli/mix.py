"""`--luce-mix`: hands the command line over to an installed launcher, which starts us again.

The launcher picks devices and models and comes back with ordinary options. It replaces this
process, so signals and exit status are its own. Nothing here may look at a device first.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from luce.errors import UsageError

FLAG = "--luce-mix"
LAUNCHER_VARIABLE = "LUCE_MIX_LAUNCHER"
LAUNCHER_NAME = "luce-mix"
MARKER = "LUCE_MIX_ACTIVE"
"""Set in the launcher's environment, so that it cannot send us in circles."""
_PROGRAM = "luce_server"


def hand_over(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Become the launcher; comes back only by raising.

    Args:
        argv: with the flag in it; all other words are forwarded as they are.
        environment: ours.

    Raises:
        UsageError: there is no launcher, it cannot be run, or it was running already.
    """
    if environment.get(MARKER):
        raise UsageError(f"{FLAG} was given by its own launcher; it must start with other options")
    launcher = find_launcher(environment)
    place = list(argv).index(FLAG)
    words = [str(launcher), "--engine", str(find_engine()), *argv[:place], *argv[place + 1 :]]
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(launcher, words, {**environment, MARKER: "1"})  # noqa: S606 - that is its purpose
    except OSError as error:
        raise UsageError(f"{FLAG}: {launcher} cannot be run: {error.strerror}") from error


def find_launcher(environment: Mapping[str, str]) -> Path:
    """The launcher: the one the variable names, else the one on the PATH.

    Raises:
        UsageError: the variable names none, or there is none.
    """
    named = environment.get(LAUNCHER_VARIABLE)
    if named:
        path = Path(named)
        if not (path.is_file() and os.access(path, os.X_OK)):
            raise UsageError(f"{LAUNCHER_VARIABLE} names no program that can be run: {named}")
        return path.absolute()
    found = shutil.which(LAUNCHER_NAME, path=environment.get("PATH"))
    if found is None:
        raise UsageError(
            f"{FLAG} needs a launcher: put {LAUNCHER_NAME} on the PATH, or its path in "
            f"{LAUNCHER_VARIABLE}"
        )
    return Path(found).absolute()


def find_engine() -> Path:
    """The program that starts a server, as an absolute path.

    Raises:
        UsageError: it is not installed as a program.
    """
    for candidate in (Path(sys.argv[0]), Path(sys.executable).with_name(_PROGRAM)):
        if candidate.name == _PROGRAM and os.access(candidate, os.X_OK):
            return candidate.absolute()
    raise UsageError(f"{FLAG} needs {_PROGRAM} beside {sys.executable}, and it is not there")
