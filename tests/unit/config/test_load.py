"""All sources become one configuration, with notes about what has no effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from luce.config.listener import ListenerConfig
from luce.config.load import Loaded, load_config
from luce.config.model import ModelConfig
from luce.config.option import Option
from luce.config.setting import Setting, Source, settings_of
from luce.config.table import LISTENER_OPTIONS, MODEL_OPTIONS
from luce.config.written import Written, WrittenModel
from luce.errors import UsageError

Values = dict[str, Any]


def line(*models: Values, routing: Values | None = None, **listener: Any) -> Written:
    """A command line that says this; models are without their path, which is `<number>.gguf`."""
    return Written(
        name="the command line",
        routing=settings_of(routing or {}, Source.COMMAND_LINE),
        listener=settings_of(listener, Source.COMMAND_LINE),
        models=tuple(
            WrittenModel(
                place=f"block {number}",
                settings=settings_of({"path": Path(f"{number}.gguf")} | model, Source.COMMAND_LINE),
            )
            for number, model in enumerate(models, start=1)
        ),
    )


def file(*models: Values, routing: Values | None = None, **listener: Any) -> Written:
    """A file `f.toml` that says this."""
    return Written(
        name="f.toml",
        routing=settings_of(routing or {}, Source.FILE, "f.toml"),
        listener=settings_of(listener, Source.FILE, "f.toml"),
        models=tuple(
            WrittenModel(
                place=f"[[model]] {number} of f.toml",
                settings=settings_of(
                    {"path": Path(f"{number}.file")} | model, Source.FILE, "f.toml"
                ),
            )
            for number, model in enumerate(models, start=1)
        ),
    )


BALANCED = {"load_balancing": True}
BIG = {"name": "big", "target_device": "cpu:0"}
SMALL = {"name": "small", "target_device": "cpu:1"}


def names(loaded: Loaded) -> list[str]:
    return [model.name for model in loaded.config.models]


def test_defaults_below_what_was_written() -> None:
    loaded = load_config(line({"chunk": 64}, port=9000))
    assert loaded.config.listener == ListenerConfig(port=9000)
    assert loaded.config.models == (ModelConfig(path=Path("1.gguf"), chunk=64),)
    assert not loaded.config.routing.load_balancing
    assert loaded.notes == ()


def sources_of(option: Option) -> tuple[Written, Written, dict[str, str]]:
    """A command line, a file and an environment that all set the port or a name."""
    if option.field == "port":
        return line({}, port=3), file(port=2), {"LUCE_PORT": "1"}
    return line({"name": "3"}), file({"name": "2"}), {"LUCE_MODEL_NAME": "1"}


@pytest.mark.parametrize("field", ["port", "name"])
def test_precedence(field: str) -> None:
    (option,) = [entry for entry in LISTENER_OPTIONS + MODEL_OPTIONS if entry.field == field]
    said, filed, environment = sources_of(option)
    silent = line() if field == "name" else line({})
    cases = [
        (load_config(line({})), Source.DEFAULT, option.default),
        (load_config(line({}), None, environment), Source.ENVIRONMENT, 1),
        (load_config(silent, filed, environment), Source.FILE, 2),
        (load_config(said, filed, environment), Source.COMMAND_LINE, 3),
    ]
    for loaded, source, value in cases:
        settings = loaded.listener if field == "port" else loaded.blocks[0].settings
        assert settings[field].source is source
        assert str(settings[field].value) == str(value)
        config = loaded.config.listener if field == "port" else loaded.config.models[0]
        assert getattr(config, field) == settings[field].value


def test_server_and_launch_options_are_merged_one_by_one() -> None:
    filed = file(BIG, SMALL, routing=BALANCED | {"primary_device": "cpu:1"}, port=1, host="::1")
    loaded = load_config(line(routing={"load_balancing": False}, port=2), filed)
    assert (loaded.config.listener.port, loaded.config.listener.host) == (2, "::1")
    assert loaded.routing["load_balancing"] == Setting(False, Source.COMMAND_LINE)
    assert loaded.routing["primary_device"] == Setting("cpu:1", Source.FILE, "f.toml")
    assert names(loaded) == ["small"]


def test_models_of_the_command_line_replace_those_of_the_file() -> None:
    filed = file(BIG | {"max_ctx": 64}, SMALL)
    loaded = load_config(line({"name": "other"}), filed)
    assert names(loaded) == ["other"]
    assert loaded.config.models[0].max_ctx is None
    assert loaded.notes == ("the models of f.toml are not used: the command line names its own",)


def test_without_balancing_only_the_primary_is_served() -> None:
    loaded = load_config(line(BIG, {"name": "b"}, {"name": "c"}))
    assert names(loaded) == ["big"]
    assert [block.config.name for block in loaded.blocks] == ["big", "b", "c"]
    assert loaded.notes == (
        "only block 1 (big) is served; unused without --load-balancing: block 2 (b), block 3 (c)",
    )


def test_without_balancing_the_primarys_device_selects_the_model() -> None:
    loaded = load_config(line(BIG, SMALL, routing={"primary_device": "cpu:1"}, port=7))
    assert names(loaded) == ["small"]
    assert loaded.config.listener.port == 7
    assert loaded.notes == (
        "only block 2 (small) is served; unused without --load-balancing: block 1 (big)",
    )


def test_with_balancing_all_are_served_the_primary_first() -> None:
    third = {"name": "third", "target_device": "cpu:2"}
    routing = BALANCED | {"primary_device": "cpu:2"}
    loaded = load_config(line(BIG, SMALL, third, routing=routing))
    assert names(loaded) == ["third", "big", "small"]
    assert loaded.config.routing.primary_device == "cpu:2"
    assert loaded.notes == ()


@pytest.mark.parametrize(
    ("models", "routing", "problem"),
    [
        ([BIG], BALANCED, "there is only block 1 (big)"),
        ([BIG, BIG], BALANCED, "block 1 (big) and block 2 (big) have the same one"),
        ([BIG, {"name": "b"}], BALANCED, "block 2 (b): --load-balancing needs a --target-device"),
        ([BIG, SMALL], BALANCED | {"primary_device": "cpu:7"}, "matches no model block"),
        ([BIG, SMALL, SMALL | {"name": "x"}], {"primary_device": "cpu:1"}, "several model blocks"),
        ([BIG, SMALL, BIG], {}, "block 1 (big) and block 3 (big) have the same one"),
        ([], {}, "no model given"),
    ],
)
def test_rules_between_blocks(models: list[Values], routing: Values, problem: str) -> None:
    with pytest.raises(UsageError) as raised:
        load_config(line(*models, routing=routing))
    assert problem in str(raised.value)


def test_blocks_of_a_file_are_named_by_table() -> None:
    with pytest.raises(UsageError) as raised:
        load_config(line(), file(BIG, BIG))
    assert "[[model]] 1 of f.toml (big) and [[model]] 2 of f.toml (big)" in str(raised.value)


def test_variables_of_a_model_count_for_every_block_that_does_not_say_otherwise() -> None:
    environment = {"LUCE_MAX_CTX": "64", "LUCE_TARGET_DEVICE": "cuda:3"}
    loaded = load_config(line({"name": "a"}, {"name": "b", "max_ctx": 128}), None, environment)
    assert [block.config.max_ctx for block in loaded.blocks] == [64, 128]
    assert [block.config.target_device for block in loaded.blocks] == ["cuda:3", "cuda:3"]


def test_a_name_from_the_environment_is_no_clash_of_unused_blocks() -> None:
    assert names(load_config(line({}, {}), None, {"LUCE_MODEL_NAME": "x"})) == ["x"]


def test_the_target_device_of_the_environment_selects_the_primary() -> None:
    written = line(BIG, {"name": "b"}, routing={"primary_device": "hip:0"})
    assert names(load_config(written, None, {"LUCE_TARGET_DEVICE": "hip:0"})) == ["b"]


@pytest.mark.parametrize("device", ["cuda:0", "nowhere"])
def test_the_target_device_of_the_environment_is_not_looked_at_with_balancing(
    device: str,
) -> None:
    environment = {"LUCE_TARGET_DEVICE": device, "LUCE_MAX_CTX": "64"}
    loaded = load_config(line(BIG, SMALL, routing=BALANCED), None, environment)
    assert [model.target_device for model in loaded.config.models] == ["cpu:0", "cpu:1"]
    assert [model.max_ctx for model in loaded.config.models] == [64, 64]
    assert loaded.notes == ("LUCE_TARGET_DEVICE has no effect with --load-balancing",)
    with pytest.raises(UsageError, match=r"block 2 \(b\).* needs a --target-device"):
        load_config(line(BIG, {"name": "b"}, routing=BALANCED), None, environment)


@pytest.mark.parametrize("variable", ["LUCE_PORT", "LUCE_TARGET_DEVICE", "LUCE_MAX_CTX"])
def test_bad_variables_are_refused(variable: str) -> None:
    with pytest.raises(UsageError, match=f"environment variable {variable}: '\\?'"):
        load_config(line({}), None, {variable: "?"})


@pytest.mark.parametrize(
    ("written", "cap"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7),
        ({"default_max_tokens": 9}, 9),
        ({"max_tokens": 7, "default_max_tokens": 9}, 9),
    ],
)
def test_newer_spelling_of_the_output_cap_wins(written: Values, cap: int | None) -> None:
    loaded = load_config(line(written))
    assert loaded.config.models[0].output_cap == cap
    assert len(loaded.notes) == (len(written) == 2)


def test_every_field_of_the_result_has_a_source() -> None:
    loaded = load_config(line(BIG))
    assert set(loaded.listener) == {option.field for option in LISTENER_OPTIONS}
    assert set(loaded.blocks[0].settings) == {"path"} | {option.field for option in MODEL_OPTIONS}
