"""The devices of this machine: `luce_server --list-devices` for scripts, `luce devices` for people.

The lines of the first have their keyword in front, then `key=value` words, free text last; the
container's entry script reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from luce.cli.launch import LAUNCH_OPTIONS, read_launch
from luce.cli.options import describe_unknown, flags_of
from luce.cli.rich_output import print_rich
from luce.cli.visible import visible
from luce.config.model import ModelConfig
from luce.config.routing import RoutingConfig
from luce.errors import UsageError
from luce.listener.placing import machine_for
from luce.listener.startup import load_spec
from luce.loaders.checkpoint import Checkpoint
from luce.loaders.opening import open_checkpoint
from luce.placement.choice import DeviceChoice
from luce.placement.devices import Device
from luce.placement.discovery import Machine
from luce.placement.suitability import choose_among, one_sequence_plan
from luce.units import format_bytes

_LIST_FLAG = "--list-devices"
NOTHING_FOUND = 1
"""Exit code when there is no device, or none for the model."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Listing:
    """What was asked for and what was found."""

    machine: Machine
    path: Path | None
    checkpoint: Checkpoint | None
    choice: DeviceChoice | None

    @property
    def exit_code(self) -> int:
        if self.path is None:
            return 0 if len(self.machine.inventory) else NOTHING_FOUND
        is_placed = self.choice is not None and self.choice.device is not None
        return 0 if is_placed else NOTHING_FOUND


def list_devices(argv: Sequence[str]) -> int:
    """Print the devices, and the one for a model, in lines for scripts; returns the exit code.

    Args:
        argv: what follows `--list-devices`: nothing, or a model, and options of the launch.

    Raises:
        UsageError: more than that.
        ModelFileError: the model cannot be read.
    """
    listing = _listing(argv, _LIST_FLAG)
    for line in _lines(listing):
        print(line)
    return listing.exit_code


def show_devices(argv: Sequence[str]) -> int:
    """The same as a table; returns the exit code.

    Raises:
        UsageError: wrong arguments.
        ModelFileError: the model cannot be read.
    """
    listing = _listing(argv, "devices")
    table = Table()
    for heading in ("device", "type", "arch"):
        table.add_column(heading, no_wrap=True)
    for heading in ("memory", "free", "for models"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("name", overflow="fold")
    for device in listing.machine.inventory:
        table.add_row(*(escape(visible(cell)) for cell in _cells(listing.machine, device)))
    print_rich(table)
    for device in listing.machine.inventory:
        print(visible(_share_of_others(listing.machine, device)))
    choice = listing.choice
    if choice is not None:
        place = "nowhere" if choice.device is None else f"to {choice.device.id}"
        print(visible(f"{listing.path} goes {place}: {choice.reason}"))
    return listing.exit_code


def _listing(argv: Sequence[str], command: str) -> _Listing:
    launch = read_launch(argv)
    _check_words(launch.words, command)
    machine = machine_for(RoutingConfig(**launch.routing), [])
    if not launch.words:
        return _Listing(machine, None, None, None)
    path = Path(launch.words[0])
    checkpoint = open_checkpoint(path)
    spec = load_spec(ModelConfig(path=path, name=path.name or "model"))
    return _Listing(machine, path, checkpoint, choose_among(checkpoint, spec, machine))


def _check_words(words: Sequence[str], command: str) -> None:
    """At most a model.

    Raises:
        UsageError: more than that, or an option that is none here.
    """
    for word in words:
        if word.startswith("-"):
            raise UsageError(f"{command}: {describe_unknown(word, flags_of(LAUNCH_OPTIONS))}")
    if len(words) > 1:
        raise UsageError(f"{command}: unexpected word {words[1]!r}: it takes one model")
    if words and not words[0]:
        raise UsageError(f"{command}: the model's path is empty")


def _lines(listing: _Listing) -> Iterator[str]:
    for device in listing.machine.inventory:
        sample = listing.machine.probe.sample(device.uuid)
        free = 0 if sample is None else sample.free_bytes // _MIB
        yield visible(
            f"device {device.id} arch={device.arch or 'unknown'} type={_type(device)} "
            f"total_mib={device.total_bytes // _MIB} free_mib={free} "
            f"busy={device.num_foreign_processes} uuid={device.uuid} name={device.name}"
        )
    yield from _choice_lines(listing)


def _choice_lines(listing: _Listing) -> Iterator[str]:
    checkpoint, choice = listing.checkpoint, listing.choice
    if checkpoint is None or choice is None:
        return
    size, kv = checkpoint.file_bytes // _MIB, _kv_bytes(listing, checkpoint) // _MIB
    yield visible(
        f"model arch={checkpoint.architecture} size_mib={size} kv_mib={kv} path={listing.path}"
    )
    if choice.device is None:
        yield visible(f"auto none reason={choice.reason}")
        return
    total = choice.device.total_bytes // _MIB
    yield f"auto {choice.device.id} fits=yes total_mib={total} reason={choice.reason}"


def _kv_bytes(listing: _Listing, checkpoint: Checkpoint) -> int:
    """Of one sequence of full context, in the types of the device chosen."""
    devices = list(listing.machine.inventory)
    chosen = listing.choice.device if listing.choice is not None else None
    if chosen is None and not devices:
        return 0
    spec = load_spec(ModelConfig(path=listing.path or Path(), name="model"))
    parts = one_sequence_plan(checkpoint, spec, chosen or devices[0])
    return parts.kv_bytes + parts.state_bytes


def _share_of_others(machine: Machine, device: Device) -> str:
    """What has been taken of a device, and by how many; of a budget what cuts into it."""
    sample = machine.probe.sample(device.uuid)
    if sample is None or not device.total_bytes:
        return f"{device.id}: nobody says how much of it is in use"
    used = format_bytes(max(0, device.total_bytes - sample.free_bytes))
    if device.backend == "cpu":
        return f"{device.id}: {used} in use"
    count = device.num_foreign_processes
    return f"{device.id}: {used} in use, {count or 'no'} process{'' if count == 1 else 'es'} on it"


def _type(device: Device) -> str:
    if device.backend == "cpu":
        return "cpu"
    return "integrated" if device.is_unified else "discrete"


def _cells(machine: Machine, device: Device) -> tuple[str, ...]:
    sample, usable = machine.probe.sample(device.uuid), machine.free_bytes(device)
    return (
        device.id,
        _type(device),
        device.arch,
        format_bytes(device.total_bytes) if device.total_bytes else "unknown",
        "unknown" if sample is None else format_bytes(sample.free_bytes),
        "unknown" if usable is None else format_bytes(usable),
        device.name,
    )
