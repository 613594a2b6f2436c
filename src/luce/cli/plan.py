"""`luce plan`: what models would take, byte for byte, and whether that fits. For people who debug.

The server plans for itself and never calls this. Only the JSON's `schema_version` is promised.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from luce.cli.launch import read_launch
from luce.cli.resolve import locate_demo, resolve
from luce.cli.rich_output import print_rich
from luce.cli.server_status import NoStatus, fetch_status
from luce.cli.visible import visible
from luce.errors import PlacementError, UsageError
from luce.listener.placing import PlacedModel, machine_for, plan_models
from luce.placement.devices import HOST_POOL, Device, Inventory
from luce.placement.discovery import Machine
from luce.placement.explain import PRESENT, Explanation, Question, ServerStatus, explain
from luce.placement.memory_plan import DevicePlan, pool_bytes
from luce.units import format_bytes

SCHEMA_VERSION = 1
FITS = 0
DOES_NOT_FIT = 1
UNKNOWN = 3
_JSON_FLAG = "--json"
_EXPLAIN_FLAG = "--explain"
_VERDICTS = {FITS: "fits", DOES_NOT_FIT: "does not fit", UNKNOWN: "unknown"}


@dataclass(frozen=True, slots=True)
class _Report:
    """One model's plan, and what its device has now.

    Attributes:
        free_bytes: what a model may take there, margin left out; None if nobody knows.
    """

    model: PlacedModel
    free_bytes: int | None

    @property
    def code(self) -> int:
        if self.model.plan.result == "unknown" or self.free_bytes is None:
            return UNKNOWN
        parts = self.model.plan.devices[self.model.device.uuid]
        is_possible = self.model.plan.result == "ok"
        fits = is_possible and parts.total_bytes <= self.free_bytes
        return FITS if fits else DOES_NOT_FIT


def plan(argv: Sequence[str]) -> int:
    """Print the plans of the models a command line would serve; returns the exit code.

    Args:
        argv: as of `luce_server`, and `--json` and `--explain URL`.

    Raises:
        UsageError: a wrong command line, or options that do not go together with a model.
        ModelFileError: a model cannot be read.
    """
    url, rest = _without_explain(argv)
    words = [word for word in rest if word != _JSON_FLAG]
    launch = read_launch(words)
    if launch.print_config is not None:
        raise UsageError("luce plan prints plans, no configuration: leave --print-config out")
    loaded = resolve(launch, os.environ)
    for note in loaded.notes:
        print(f"luce plan: note: {visible(note)}", file=sys.stderr)
    config = locate_demo(loaded.config)
    machine = machine_for(config.routing, config.models)
    try:
        models = plan_models(config, machine)
    except PlacementError as error:
        print(f"luce plan: {visible(str(error))}", file=sys.stderr)
        return DOES_NOT_FIT
    reports = [_Report(model, machine.free_bytes(model.device)) for model in models]
    needed = _needed(reports, machine.inventory, takes_turns=config.routing.swap_residency)
    code = max(_together(reports, machine, needed), *(report.code for report in reports))
    as_json = len(words) < len(rest)
    if url is None:
        _print(reports, code, None, as_json)
        return code
    keys = config.listener.api_key
    try:
        status = fetch_status(url, keys[0] if keys else None)
        answers = [_explained(report, machine, status) for report in reports]
    except NoStatus as problem:
        print(f"luce plan: {visible(str(problem))}", file=sys.stderr)
        return UNKNOWN
    _print(reports, code, answers, as_json)
    return DOES_NOT_FIT if any(answer.verdict == "refuse" for answer in answers) else FITS


def _without_explain(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """The address after `--explain`, and the other words."""
    words = list(argv)
    for place, word in enumerate(words):
        flag, separator, url = word.partition("=")
        if flag == _EXPLAIN_FLAG:
            rest = words[place + 1 :]
            if not separator:
                url, rest = (rest[0], rest[1:]) if rest else ("", rest)
            if not url or url.startswith("-"):
                raise UsageError(f"{_EXPLAIN_FLAG} needs the address of a server")
            return url, words[:place] + rest
    return None, words


def _explained(report: _Report, machine: Machine, status: ServerStatus) -> Explanation:
    """What the server would decide about a model.

    Raises:
        NoStatus: the server does not know the model's device.
    """
    rows = {row.device: row for row in status.devices}
    model = report.model
    pool = model.device.pool
    if pool not in rows:
        raise NoStatus(
            f"the server says nothing of {model.device.id} ({pool}); repeat its --device-memory "
            "here if it was started with one"
        )
    if rows[pool].free_bytes is None:
        # It has not had to ask yet; what drivers tell us here, they will tell it.
        sample = machine.probe.sample(model.device.uuid)
        rows[pool].free_bytes = None if sample is None else sample.free_bytes
    plan = pool_bytes(model.plan, machine.inventory)
    is_known = model.plan.result != "unknown"
    question = Question(
        name=model.config.name,
        plan={name: count for name, count in plan.items() if name in rows}
        if is_known
        else {pool: max(1, rows[pool].total_bytes)},
        is_exclusive=not is_known,
    )
    return explain(question, status)


def _print(
    reports: Sequence[_Report], code: int, answers: Sequence[Explanation] | None, as_json: bool
) -> None:
    if not as_json:
        _print_tables(reports, code)
        for report, answer in zip(reports, answers or (), strict=False):
            print(visible(_sentence(report.model.config.name, answer)))
        return
    document = _document(reports, code)
    for entry, answer in zip(document["models"], answers or (), strict=False):
        entry["decision"] = {
            "verdict": answer.verdict,
            "victims": list(answer.victims),
            "reason": answer.reason,
        }
    print(json.dumps(document, indent=2))


def _sentence(name: str, answer: Explanation) -> str:
    if answer.verdict in PRESENT:
        return f"{name} is {answer.verdict}: {answer.reason}"
    victims = f": {', '.join(answer.victims)}" if answer.victims else ""
    return f"the server would {answer.verdict}{victims} ({name}: {answer.reason})"


def _needed(
    reports: Sequence[_Report], inventory: Inventory, *, takes_turns: bool
) -> Mapping[str, int]:
    """Bytes by pool of all models; of those that take turns on a device, the largest one's beside
    what the others keep there."""
    needed: Counter[str] = Counter()
    for report in reports:
        needed.update(pool_bytes(report.model.plan, inventory))
    by_device: dict[str, list[PlacedModel]] = {}
    for report in reports if takes_turns else ():
        by_device.setdefault(report.model.device.uuid, []).append(report.model)
    for uuid, models in by_device.items():
        absent = [model.plan.bytes_on(uuid) - model.plan.kept_bytes for model in models]
        needed[models[0].device.pool] -= sum(absent) - max(absent)
    return needed


def _together(reports: Sequence[_Report], machine: Machine, needed: Mapping[str, int]) -> int:
    """Whether there is room for all models, pool by pool, the host's among them."""
    host = machine.inventory.by_id("cpu:0")
    # Of a budget for models on the CPU, what they keep on the host takes nothing.
    host_free = machine.free_bytes(host) if host is not None and host.pool == HOST_POOL else None
    free: dict[str, int] = {} if host_free is None else {HOST_POOL: host_free}
    for report in reports:
        pool = report.model.device.pool
        free[pool] = max(free.get(pool, 0), report.free_bytes or 0)
    is_short = any(needed[pool] > free[pool] for pool in needed if pool in free)
    return DOES_NOT_FIT if is_short else FITS


def _document(reports: Sequence[_Report], code: int) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": _VERDICTS[code],
        "models": [_object(report) for report in reports],
    }


def _object(report: _Report) -> dict[str, Any]:
    made, device = report.model.plan, report.model.device
    return {
        "name": report.model.config.name,
        "identity": {
            "files": made.identity.files,
            "options": dict(made.identity.options),
            "device_uuids": list(made.identity.device_uuids),
            "version": made.identity.version,
        },
        "devices": [
            _device_object(device, parts, report.free_bytes) for parts in made.devices.values()
        ],
        "host": _parts_object(made.host),
        "total_bytes": made.host.total_bytes + sum(p.total_bytes for p in made.devices.values()),
        "kept_bytes": made.kept_bytes,
        "max_ctx": None if made.sizes is None else made.sizes.max_ctx,
        "kv_pool_tokens": None if made.sizes is None else made.sizes.kv_pool_tokens,
        "result": made.result,
        "problem": made.problem or None,
        "verdict": _VERDICTS[report.code],
        "warnings": list(made.warnings),
    }


def _device_object(device: Device, parts: DevicePlan, free: int | None) -> dict[str, Any]:
    return {
        "uuid": device.uuid,
        "id": device.id,
        "name": device.name,
        **_parts_object(parts),
        "device_bytes": device.total_bytes,
        "margin_bytes": device.margin_bytes,
        "available_bytes": free,
    }


def _parts_object(parts: DevicePlan) -> Mapping[str, int]:
    components = {f"{name}_bytes": count for name, count in parts.components()}
    return components | {"total_bytes": parts.total_bytes}


def _print_tables(reports: Sequence[_Report], code: int) -> None:
    for report in reports:
        print_rich(_table(report), *map(escape, _sentences(report)))
    if len(reports) > 1:
        print(f"together: {_VERDICTS[code]}")
    elif code != reports[0].code:
        print(f"with what it keeps on the host: {_VERDICTS[code]}")


def _table(report: _Report) -> Table:
    table = Table(title=escape(visible(report.model.config.name)), title_justify="left")
    for heading in ("where", *(name for name, _ in DevicePlan().components()), "total"):
        table.add_column(heading, justify="left" if heading == "where" else "right")
    for parts in report.model.plan.devices.values():
        table.add_row(report.model.device.id, *_cells(parts))
    table.add_row("host", *_cells(report.model.plan.host))
    return table


def _cells(parts: DevicePlan) -> Iterator[str]:
    for _, count in parts.components():
        yield format_bytes(count) if count else "-"
    yield format_bytes(parts.total_bytes)


def _sentences(report: _Report) -> Iterator[str]:
    made, device, free = report.model.plan, report.model.device, report.free_bytes
    if made.sizes is not None:
        yield f"context {made.sizes.max_ctx} tokens, KV pool {made.sizes.kv_pool_tokens} tokens"
    known = "an unknown amount" if free is None else format_bytes(free)
    margin = format_bytes(device.margin_bytes)
    yield f"{device.id} ({visible(device.name)}): {known} free for models (margin {margin})"
    for warning in made.warnings:
        yield f"note: {warning}"
    if made.problem:
        yield visible(made.problem)
    yield f"verdict: {_VERDICTS[report.code]}"
