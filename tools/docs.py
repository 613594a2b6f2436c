"""Writes the pages that are made from the code: `docs/flags.md` and `docs/errors.md`.

`--check` writes nothing and fails when a page is not what the code says.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from luce.cli.launch import LAUNCH_OPTIONS
from luce.config.option import Option
from luce.config.table import LISTENER_OPTIONS, MODEL_OPTIONS
from luce.errors import ApiError, ClientGone, LuceError, Overloaded, StartupError
from luce.observability.metrics import MetricSpec, table

DOCS = Path(__file__).resolve().parent.parent / "docs"

_FLAGS_HEAD = """\
# Flags

Written by `make docs` from the configuration's fields; change `src/luce/config/`, not this page.

```
luce_server MODEL [options] [--model MODEL [options]]...
luce_server --demo [options]
luce_server --config FILE [options]
luce_server --list-devices [MODEL] | --print-profile [NAME] | --luce-mix ...
luce_server --help | --version
luce serve ...                      the same as luce_server
```

Options of the launch are taken out first, wherever they stand. Then the line is cut into **model
blocks** at each `--model` (and `--demo`) before any other option is read. An option belongs to
the block it stands in, and a message about it names that block. The first model may be written
without `--model` if it is the first word left. Options of the server belong to the first block
or stand before it, whichever block is the primary. Flags cannot be shortened.

- Every block is checked, also those that are not served, before any file or device is touched.
- Without `--load-balancing` one model loads: the first, or the one that
  `--load-balancing-primary-gpu` selects. With it all load, the primary first, the others in
  their order; each then needs its own `--model-name` and a `--target-device`.
- Names must differ in more than their case, and none is `auto`. Without load balancing, blocks
  that are given no name may share the default one.
- When an option is written twice in a block, the last one counts, and a note says so. Options of
  the launch that take a value are refused when written twice.
- A switch has two forms, `--x` and `--no-x`; the second undoes what a file says.

The same can be said in a [configuration file](config-file.md), and by the environment variables
named below. Weakest first: default, profile, environment variable, file, command line. A model's
variable counts for every block that does not say otherwise; an empty variable says nothing;
`LUCE_TARGET_DEVICE` is not looked at with `--load-balancing`. `--print-config` shows what came
out of it and who said it.

A command line that is refused ends with exit code 2. One that is right and names a model file,
template or folder of cards that is missing ends with 3 ([all exit codes](errors.md#exit-codes)).
"""

_ERRORS_HEAD = """\
# Errors

Written by `make docs` from `src/luce/errors.py`; change that file, not this page.

## Answers

A failed request is answered with its status and this body:

```json
{"error": {"message": "...", "type": "...", "code": "...", "param": null}}
```

`param` is the path of the offending field, for example `messages[0].content`. Once the first
byte of a stream is out, the dialect's error event ends the stream instead (in Chat Completions
`[DONE]` still follows); there is never a second status. Retryable answers carry `Retry-After`.
"""

_ERRORS_EXIT = """\
## Exit codes

Commands that cannot start print one line on stderr, `luce_server: what is wrong`, and end with:
"""

_ERRORS_END = """\
Besides: 0 done, or a server stopped as asked (SIGTERM or Ctrl-C, also while it loads); 1 a bug of
ours, or an answer of no (`luce plan`: it does not fit; `luce devices` and `--list-devices`: no
device suits; `--routing-gateway`: the gateway has ended); 3 of `luce plan` also where a device is
not known well enough to tell; 130 Ctrl-C before there was a server to stop, or in another command;
141 whoever read the output went away.

A bug of ours ends in one line as well, which names the kind of exception. `LUCE_DEBUG=1` in the
environment adds the traceback; please report it with that.
"""


_METRICS_HEAD = """\
# Metrics

Written by `make docs` from `src/luce/observability/metrics.py`; change that file, not this page.

`GET /metrics` gives all of them for all models in one scrape, in Prometheus' text format, or as
OpenMetrics to who asks for that. Names and meanings follow vLLM's where it has them. Times are
monotonic and as the listener saw them. Counters that a worker keeps begin anew with its process,
which `rate()` understands. [Status and props](status.md) show the same as of now.
"""


def flags_page() -> str:
    """The option table as Markdown."""
    return "\n".join(
        [
            _FLAGS_HEAD,
            "## The launch (anywhere)",
            "",
            *_option_rows(LAUNCH_OPTIONS),
            "",
            "## The server (first block)",
            "",
            *_option_rows(LISTENER_OPTIONS),
            "",
            "## A model (any block)",
            "",
            *_option_rows(MODEL_OPTIONS),
            "",
        ]
    )


def errors_page() -> str:
    """The error tree as Markdown."""
    answers = [error for error in _family(ApiError) if error not in (ApiError, Overloaded)]
    answers.sort(key=lambda error: error.status)
    return "\n".join(
        [
            _ERRORS_HEAD,
            *_answer_rows(answers),
            "",
            f"`{ClientGone.__name__}`: {_first_sentence(ClientGone)} Logged as 499.",
            "",
            _ERRORS_EXIT,
            *_exit_rows(StartupError.__subclasses__()),
            "",
            _ERRORS_END,
        ]
    )


def metrics_page() -> str:
    """The metric table as Markdown."""
    return "\n".join([_METRICS_HEAD, *_metric_rows(table()), ""])


PAGES: dict[str, Callable[[], str]] = {
    "flags.md": flags_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
}


def _metric_rows(specs: Iterable[MetricSpec]) -> Iterable[str]:
    yield "| metric | kind | labels | meaning |"
    yield "| --- | --- | --- | --- |"
    for spec in specs:
        labels = " ".join(f"`{label}`" for label in spec.labels)
        buckets = f" Buckets: {', '.join(f'{b:g}' for b in spec.buckets)}." if spec.buckets else ""
        yield f"| `{spec.name}` | {spec.kind} | {labels} | {spec.help}{buckets} |"


def _option_rows(options: Iterable[Option]) -> Iterable[str]:
    yield "| flag | value | default | variable | what it does |"
    yield "| --- | --- | --- | --- | --- |"
    for option in options:
        flags = ", ".join(f"`{flag}`" for flag in option.spellings)
        default = f"`{option.default_text}`" if option.default_text else ""
        variable = f"`{option.variable}`" if option.variable else ""
        yield f"| {flags} | {_value(option)} | {default} | {variable} | {option.help} |"


def _value(option: Option) -> str:
    if option.is_switch:
        return "none"
    if option.bare is not None:
        return " ".join(f"`={choice}`" for choice in option.choices) + " or none"
    if option.choices:
        return " ".join(f"`{choice}`" for choice in option.choices)
    if option.kind is not int:
        return f"`{option.metavar}`"
    unit = f" {option.unit}" if option.unit else ""
    top = "" if option.maximum is None else f" to {option.maximum}"
    return f"{option.lowest}{top or ' or more'}{unit}"


def _family(root: type[ApiError]) -> list[type[ApiError]]:
    """`root` and all below it, parents first."""
    found = [root]
    for child in root.__subclasses__():
        found += _family(child)
    return found


def _answer_rows(errors: Iterable[type[ApiError]]) -> Iterable[str]:
    yield "| status | code | type | retry | error | meaning |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for error in errors:
        retry = "yes" if error.retryable else "no"
        yield (
            f"| {error.status} | `{error.code}` | `{error.type}` | {retry} "
            f"| `{error.__name__}` | {_first_sentence(error)} |"
        )


def _exit_rows(errors: Iterable[type[StartupError]]) -> Iterable[str]:
    yield "| code | error | meaning |"
    yield "| --- | --- | --- |"
    for error in errors:
        yield f"| {error.exit_code} | `{error.__name__}` | {_first_sentence(error)} |"


def _first_sentence(error: type[LuceError]) -> str:
    return (inspect.getdoc(error) or "").splitlines()[0]


def stale_pages(folder: Path) -> list[str]:
    """Names of the pages in `folder` that are not what the code says."""
    return [
        name
        for name, page in PAGES.items()
        if not (folder / name).is_file() or (folder / name).read_text("utf-8") != page()
    ]


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` say which are stale. Returns the exit code."""
    stale = stale_pages(DOCS)
    if arguments == ["--check"]:
        for name in stale:
            print(f"docs/{name} is stale: run make docs", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
