"""Options of the whole launch are taken from anywhere on the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from luce.cli.launch import LAUNCH_OPTIONS, Launch, read_launch
from luce.errors import UsageError

WRITTEN: dict[str, tuple[list[str], Any]] = {
    "--load-balancing": (["--load-balancing"], True),
    "--no-load-balancing": (["--no-load-balancing"], False),
    "--load-balancing-primary-gpu": (["--load-balancing-primary-gpu", "cuda:1"], "cuda:1"),
    "--routing-gateway": (["--routing-gateway", "gw"], Path("gw")),
    "--routing-engine-port": (["--routing-engine-port", "9000"], 9000),
    "--model-routing": (["--model-routing", "name"], "name"),
    "--unknown-model": (["--unknown-model", "primary"], "primary"),
    "--swap-residency": (["--swap-residency"], True),
    "--no-swap-residency": (["--no-swap-residency"], False),
    "--swap-keep-weights": (["--swap-keep-weights", "a,b"], "a,b"),
    "--swap-host-mib": (["--swap-host-mib", "64"], 64),
    "--swap-min-residency-ms": (["--swap-min-residency-ms", "50"], 50),
    "--swap-max-wait-ms": (["--swap-max-wait-ms", "900"], 900),
    "--swap-drain-timeout-s": (["--swap-drain-timeout-s", "9"], 9),
    "--load-on-demand": (["--load-on-demand"], True),
    "--no-load-on-demand": (["--no-load-on-demand"], False),
    "--admission-policy": (["--admission-policy", "proceed"], "proceed"),
    "--models-max": (["--models-max", "2"], 2),
    "--idle-unload-s": (["--idle-unload-s", "60"], 60),
    "--pin": (["--pin", "a"], ("a",)),
    "--preload": (["--preload", "b"], ("b",)),
    "--device-memory": (["--device-memory", "cpu:0=1GiB"], ("cpu:0=1GiB",)),
    "--device-inventory": (["--device-inventory", "d.toml"], Path("d.toml")),
    "--config": (["--config", "luce.toml"], Path("luce.toml")),
    "--print-config": (["--print-config"], "text"),
}
"""Flag → (the words a person writes, the value they become)."""

AROUND = "a.gguf --port 1 --model b --chunk 64".split()


def value_of(launch: Launch, flag: str) -> Any:
    if flag == "--config":
        return launch.config_file
    if flag == "--print-config":
        return launch.print_config
    (value,) = launch.routing.values()
    return value


def test_every_flag_has_an_example_here() -> None:
    assert {flag for option in LAUNCH_OPTIONS for flag in option.spellings} == set(WRITTEN)


@pytest.mark.parametrize("flag", WRITTEN)
@pytest.mark.parametrize("position", [0, 1, 3, 5, len(AROUND)])
def test_every_flag_is_found_between_other_words(flag: str, position: int) -> None:
    words, value = WRITTEN[flag]
    launch = read_launch([*AROUND[:position], *words, *AROUND[position:]])
    assert value_of(launch, flag) == value
    assert launch.words == tuple(AROUND)


def test_nothing_written() -> None:
    expected = Launch(routing={}, config_file=None, print_config=None, words=tuple(AROUND))
    assert read_launch(AROUND) == expected


@pytest.mark.parametrize(
    ("word", "flag", "value"),
    [
        ("--load-balancing-primary-gpu=cpu:1", "--load-balancing-primary-gpu", "cpu:1"),
        ("--config=a=b.toml", "--config", Path("a=b.toml")),
        ("--print-config=json", "--print-config", "json"),
        ("--print-config=text", "--print-config", "text"),
    ],
)
def test_values_after_an_equals_sign(word: str, flag: str, value: object) -> None:
    assert value_of(read_launch([word]), flag) == value


def test_a_value_that_may_be_left_out_is_never_the_next_word() -> None:
    assert read_launch(["--print-config", "json"]).words == ("json",)


def test_a_list_takes_every_value_in_order() -> None:
    words = "--device-memory cpu:0=1GiB a.gguf --device-memory=cuda:0=2GiB".split()
    launch = read_launch(words)
    assert launch.routing == {"device_memory": ("cpu:0=1GiB", "cuda:0=2GiB")}
    assert launch.words == ("a.gguf",)


def test_the_last_form_of_a_switch_counts() -> None:
    assert read_launch(["--load-balancing", "--no-load-balancing"]).routing == {
        "load_balancing": False
    }
    assert read_launch(["--load-balancing", "--load-balancing"]).routing == {"load_balancing": True}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--load-balancing=yes", "--load-balancing takes no value"),
        ("--no-load-balancing=", "--no-load-balancing takes no value"),
        ("--load-balancing-primary-gpu", "--load-balancing-primary-gpu needs a value"),
        ("--load-balancing-primary-gpu --model a", "--load-balancing-primary-gpu needs a value"),
        ("--load-balancing-primary-gpu=", "--load-balancing-primary-gpu: the value is empty"),
        ("--load-balancing-primary-gpu auto:0", "'auto:0' names no device"),
        ("--load-balancing-primary-gpu auto", "'auto' names no device"),
        ("--load-balancing-primary-gpu gpu1", "'gpu1' is none of cpu, cpu:N, cuda:N, hip:N"),
        ("--load-balancing-primary-gpu cuda:99999999999", "'cuda:99999999999': no machine has"),
        ("--load-balancing-primary-gpu cpu:0 a --load-balancing-primary-gpu=cpu:0",
         "--load-balancing-primary-gpu is given more than once"),
        ("--config a --config b", "--config is given more than once"),
        ("--swap-host-mib -1", "--swap-host-mib: -1 is out of range, 0 to 2147483647"),
        ("--device-memory cpu:0=1GiB --swap-host-mib -model", "--swap-host-mib needs a value"),
        ("--config", "--config needs a value"),
        ("--config=", "--config: the value is empty"),
        ("--config --load-balancing", "--config needs a value"),
        ("--print-config=yaml", "--print-config: 'yaml' is none of text, json"),
        ("--print-config=", "--print-config: '' is none of text, json"),
    ],
)  # fmt: skip
def test_what_is_refused(line: str, problem: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_launch(line.split())
    assert problem in str(raised.value)


@pytest.mark.parametrize("word", ["--load-balancing-primary", "--load", "--config-file", "--print"])
def test_shortened_flags_stay_on_the_line(word: str) -> None:
    assert read_launch([word]).words == (word,)
