"""The two commands: `luce_server` serves models, `luce` has that and the tools as subcommands.

Nothing heavy is imported before it is needed: help and usage errors come at once, and the
listener's process never sees torch.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from luce.cli.launch import read_launch
from luce.cli.profile_variables import set_profile_variables
from luce.cli.resolve import locate_demo, resolve
from luce.cli.visible import visible
from luce.config.load import Loaded
from luce.errors import StartupError, UsageError

OUR_BUG = 1
"""Exit code when something was raised that nobody foresaw."""
DEBUG_VARIABLE = "LUCE_DEBUG"
"""Environment variable that asks for the traceback of our bugs."""
INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as shells have it."""
OUTPUT_CLOSED = 141
"""Exit code when the reader of our output went away: 128 + SIGPIPE."""

_HELP_FLAGS = ("--help", "-h")
_VERSION_FLAG = "--version"
_LIST_FLAG = "--list-devices"
_MIX_FLAG = "--luce-mix"
_PROFILE_FLAG = "--print-profile"


def server_main(argv: Sequence[str] | None = None) -> int:
    """`luce_server`: serve the models of the command line. Returns the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    return _guarded("luce_server", lambda: _serve(words))


def main(argv: Sequence[str] | None = None) -> int:
    """`luce`: run one subcommand. Returns the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    return _guarded("luce", lambda: _run_subcommand(words))


def _serve(argv: list[str]) -> int:
    if _MIX_FLAG in argv:
        from luce.cli.mix import hand_over

        hand_over(argv, os.environ)
    if _wants(argv, *_HELP_FLAGS):
        return _print_server_help()
    if _wants(argv, _VERSION_FLAG):
        return _print_version("luce_server")
    if argv[:1] == [_PROFILE_FLAG]:
        from luce.cli.print_profile import print_profile

        return print_profile(argv[1:])
    if argv[:1] == [_LIST_FLAG]:
        from luce.cli.devices import list_devices

        return list_devices(argv[1:])
    launch = read_launch(argv)
    loaded = resolve(launch, os.environ)
    for note in loaded.notes:
        print(f"luce_server: note: {visible(note)}", file=sys.stderr)
    if launch.print_config is not None:
        return _print_config(loaded, launch.print_config)
    config = locate_demo(loaded.config)
    for note in set_profile_variables(config, os.environ):
        print(f"luce_server: note: {visible(note)}", file=sys.stderr)
    from luce.listener.server import serve

    return serve(config)


def _run_subcommand(argv: list[str]) -> int:
    name = argv[0] if argv else ""
    if name in _SUBCOMMANDS:
        return _SUBCOMMANDS[name](argv[1:])
    if name in _HELP_FLAGS:
        return _print_luce_help()
    if name == _VERSION_FLAG:
        return _print_version("luce")
    known = ", ".join(_SUBCOMMANDS)
    kind = "option" if name.startswith("-") else "subcommand"
    problem = f"unknown {kind} {name!r}" if name else "no subcommand given"
    raise UsageError(f"{problem}; there are {known} (luce --help)")


def _inspect(argv: list[str]) -> int:
    from luce.cli.tools import inspect_arguments

    arguments = inspect_arguments(argv)
    from luce.cli.inspect import inspect

    return inspect(arguments.path, arguments.as_json)


def _devices(argv: list[str]) -> int:
    if _wants(argv, *_HELP_FLAGS):
        from luce.cli.help import devices_help

        print(devices_help())
        return 0
    from luce.cli.devices import show_devices

    return show_devices(argv)


def _plan(argv: list[str]) -> int:
    if _wants(argv, *_HELP_FLAGS):
        from luce.cli.help import plan_help

        print(plan_help())
        return 0
    from luce.cli.plan import plan

    return plan(argv)


def _bench(argv: list[str]) -> int:
    from luce.cli.tools import bench_arguments

    arguments = bench_arguments(argv)
    from luce.cli.bench import bench

    return bench(arguments)


_SUBCOMMANDS: dict[str, Callable[[list[str]], int]] = {
    "serve": _serve,
    "devices": _devices,
    "plan": _plan,
    "inspect": _inspect,
    "bench": _bench,
}


def _wants(argv: Sequence[str], *flags: str) -> bool:
    return any(word in flags for word in argv)


def _print_server_help() -> int:
    from luce.cli.help import server_help

    print(server_help())
    return 0


def _print_luce_help() -> int:
    from luce.cli.help import luce_help

    print(luce_help())
    return 0


def _print_config(loaded: Loaded, form: str) -> int:
    from luce.cli.print_config import config_json, config_text

    print(config_json(loaded) if form == "json" else config_text(loaded))
    return 0


def _print_version(program: str) -> int:
    from luce import __version__

    print(f"{program} {__version__}")
    return 0


def _guarded(program: str, command: Callable[[], int]) -> int:
    """Run a command; what goes wrong becomes one line and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Paths and names may hold what the terminal's encoding has no letter for.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = command()
        sys.stdout.flush()
    except StartupError as error:
        print(f"{program}: {visible(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit; give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_CLOSED
    except Exception as error:
        _report_bug(program, error)
        return OUR_BUG
    return code


def _report_bug(program: str, error: Exception) -> None:
    """One line for the person; the traceback for who asks for it."""
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error)
    name = type(error).__name__
    print(
        f"{program}: this is a bug of luce ({name}); please report it with what "
        f"{DEBUG_VARIABLE}=1 in the environment makes it print",
        file=sys.stderr,
    )
