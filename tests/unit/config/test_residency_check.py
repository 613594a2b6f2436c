"""What may be written about residency; rows A21 and A22, and the flags of A1.1."""

from __future__ import annotations

from typing import Any

import pytest

from luce.cli.launch import read_launch
from luce.cli.resolve import resolve
from luce.config.residency import ResidencyConfig
from luce.errors import UsageError

TWO = "--model x.gguf --model-name a --target-device cpu:0 " + (
    "--model y.gguf --model-name b --target-device cpu:0"
)


def routing(words: str) -> ResidencyConfig:
    return resolve(read_launch(words.split())).config.routing


def problem(words: str) -> str:
    with pytest.raises(UsageError) as caught:
        routing(words)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_all_models_are_served_by_name() -> None:
    config = resolve(read_launch(f"--model-routing name {TWO}".split())).config
    assert [model.name for model in config.models] == ["a", "b"]
    assert (config.routing.is_by_name, config.routing.unknown_model) == (True, "reject")


def test_what_can_be_said_about_swapping() -> None:
    said = routing(
        f"--model-routing name --swap-residency --swap-keep-weights a,,b --swap-host-mib 64 "
        f"--swap-min-residency-ms 50 --swap-max-wait-ms 900 --swap-drain-timeout-s 9 {TWO}"
    )
    assert said.kept_weights == ("a", "b")
    assert (said.swap_host_mib, said.swap_drain_timeout_s) == (64, 9)
    assert (said.swap_min_residency_ms, said.swap_max_wait_ms) == (50, 900)


def test_what_can_be_said_about_loading_on_demand() -> None:
    said = routing(
        f"--model-routing name --load-on-demand --admission-policy proceed --models-max 2 "
        f"--idle-unload-s 60 --pin a --pin b --preload a {TWO}"
    )
    assert (said.admission_policy, said.models_max, said.idle_unload_s) == ("proceed", 2, 60)
    assert (said.pin, said.preload) == (("a", "b"), ("a",))


@pytest.mark.parametrize("value", ["alphabet", "Name", ""])
def test_a_way_of_routing_that_there_is_not(value: str) -> None:
    assert "--model-routing" in problem(f"--model-routing={value} {TWO}")


def test_a21_weights_of_a_model_that_there_is_not() -> None:
    text = problem(f"--model-routing name --swap-residency --swap-keep-weights a,zz {TWO}")
    assert "--swap-keep-weights" in text
    assert "'zz'" in text
    assert "a, b" in text


@pytest.mark.parametrize("value", ["", " --swap-residency", "=,,"])
def test_weights_of_no_model(value: str) -> None:
    text = problem(f"--model-routing name --swap-residency {TWO} --swap-keep-weights{value}")
    assert "--swap-keep-weights" in text


def test_a22_one_block() -> None:
    text = problem("--model-routing name --swap-residency --model x --target-device cpu:0")
    assert "--model-routing name needs two models" in text


@pytest.mark.parametrize("device", ["", "--target-device auto"])
@pytest.mark.parametrize("flag", ["--swap-residency", "--load-on-demand"])
def test_a22_a_device_that_is_not_named(device: str, flag: str) -> None:
    words = f"--model-routing name {flag} {TWO} --model z --model-name c {device}"
    text = problem(words)
    assert "block 3 (c)" in text
    assert "--target-device" in text
    assert "--model-routing name" in text


@pytest.mark.parametrize(
    ("flags", "needed"),
    [
        ("--unknown-model reject", "--model-routing name"),
        ("--load-balancing --unknown-model primary", "--model-routing name"),
        ("--swap-residency", "--model-routing name"),
        ("--load-balancing --swap-residency", "--model-routing name"),
        ("--load-on-demand", "--model-routing name"),
        ("--model-routing name --swap-keep-weights a", "--swap-residency"),
        ("--model-routing name --swap-host-mib 1", "--swap-residency"),
        ("--model-routing name --swap-min-residency-ms 0", "--swap-residency"),
        ("--model-routing name --swap-max-wait-ms 0", "--swap-residency"),
        ("--model-routing name --swap-drain-timeout-s 0", "--swap-residency"),
        ("--model-routing name --models-max 0", "--load-on-demand"),
        ("--model-routing name --admission-policy gate", "--load-on-demand"),
        ("--model-routing name --idle-unload-s 0", "--load-on-demand"),
        ("--model-routing name --pin a", "--load-on-demand"),
        ("--model-routing name --preload a", "--load-on-demand"),
    ],
)
def test_a22_what_is_of_no_use_is_refused(flags: str, needed: str) -> None:
    text = problem(f"{flags} {TWO}")
    assert needed in text
    assert flags.split()[-1] in text or flags.split()[-2] in text


def test_turns_and_bytes_exclude_each_other() -> None:
    text = problem(f"--model-routing name --swap-residency --load-on-demand {TWO}")
    assert "exclude each other" in text


@pytest.mark.parametrize("flag", ["--pin", "--preload"])
def test_models_that_there_are_not(flag: str) -> None:
    text = problem(f"--model-routing name --load-on-demand {flag} zz {TWO}")
    assert f"{flag}: there is no model 'zz'" in text


def test_more_preloaded_models_than_may_be_resident() -> None:
    flags = "--model-routing name --load-on-demand --models-max 1 --preload a"
    assert routing(f"{flags} --preload a {TWO}").preload == ("a", "a")
    text = problem(f"{flags} --preload b {TWO}")
    assert "--preload names 2 models, and --models-max 1 has room for fewer" in text


def test_more_pinned_models_than_may_be_resident() -> None:
    """The one that loads first would keep the other out for good."""
    flags = "--model-routing name --load-on-demand --models-max 1 --pin a"
    assert routing(f"{flags} {TWO}").pin == ("a",)
    text = problem(f"{flags} --pin b {TWO}")
    assert "--pin names 2 models, and --models-max 1 has room for fewer" in text


def test_a22_the_primary_must_be_the_only_one_on_its_device() -> None:
    words = f"--model-routing name --swap-residency --load-balancing-primary-gpu cpu:0 {TWO}"
    assert "several model blocks" in problem(words)


def test_nothing_said_is_what_always_was() -> None:
    config: Any = routing(f"--load-balancing {TWO}")
    assert (config.model_routing, config.swap_residency, config.load_on_demand) == (
        "balance",
        False,
        False,
    )
