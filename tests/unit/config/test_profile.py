"""Profiles: every one is valid, and everything anybody writes is stronger."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.cli.launch import read_launch
from luce.cli.profile_variables import set_profile_variables
from luce.cli.resolve import resolve
from luce.config.listener import ListenerConfig, ServerConfig
from luce.config.load import Loaded
from luce.config.model import ModelConfig
from luce.config.profile import PROFILES
from luce.config.profile_settings import profile_note, profile_settings
from luce.config.setting import Setting, Source
from luce.errors import UsageError


def loaded(line: str, **environment: str) -> Loaded:
    return resolve(read_launch(line.split()), environment)


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_is_made_of_options(name: str) -> None:
    profile = PROFILES[name]
    settings = profile_settings({"profile": Setting(name, Source.COMMAND_LINE)})
    assert len(settings) == len(profile.flags) > 0
    assert {setting.origin for setting in settings.values()} == {f"profile {name}"}
    assert profile.summary.endswith(".")
    assert loaded(f"m.gguf --profile {name}").config.models[0].profile == name


def test_the_values_of_a_profile() -> None:
    model = loaded("m.gguf --profile ds4-strix").config.models[0]
    assert (model.max_ctx, model.chunk, model.max_concurrency) == (131072, 8192, 4)


@pytest.mark.parametrize(
    "line", ["m.gguf --profile ds4-strix --chunk 64", "m.gguf --chunk 64 --profile ds4-strix"]
)
def test_what_is_written_wins_in_any_order(line: str) -> None:
    model = loaded(line).config.models[0]
    assert (model.max_ctx, model.chunk) == (131072, 64)


def test_variables_and_files_win(tmp_path: Path) -> None:
    assert loaded("m --profile ds4-strix", LUCE_MAX_CTX="4096").config.models[0].max_ctx == 4096
    file = tmp_path / "luce.toml"
    file.write_text("[[model]]\nmodel = 'm'\nprofile = 'ds4-strix'\nmax-ctx = 77\n", "ascii")
    model = loaded(f"--config {file}").config.models[0]
    assert (model.max_ctx, model.chunk) == (77, 8192)


def test_each_block_has_its_own() -> None:
    line = (
        "a --model-name a --target-device cpu:0 --profile small-cpu --load-balancing "
        "--model b --model-name b --target-device cpu:1 --chunk 100"
    )
    first, second = loaded(line).config.models
    assert (first.chunk, first.target_device) == (256, "cpu:0")
    assert (second.chunk, second.max_ctx) == (100, None)


def test_by_variable() -> None:
    assert loaded("m", LUCE_PROFILE="small-cpu").config.models[0].max_ctx == 2048


def test_unknown_names_are_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'fast' is none of small-cpu, coding-agents"):
        loaded("m --profile fast")


def test_variables_are_not_for_several_models() -> None:
    line = (
        "a --model-name a --target-device cpu:0 --profile many-clients --load-balancing "
        "--model b --model-name b --target-device cpu:1"
    )
    with pytest.raises(UsageError, match=r"block 1 \(a\): --profile many-clients sets environment"):
        loaded(line)


def test_variables_that_are_set_stay() -> None:
    models = (ModelConfig(path=Path("m"), profile="many-clients"), ModelConfig(path=Path("n")))
    config = ServerConfig(listener=ListenerConfig(), models=models)
    environment: dict[str, str] = {}
    (note,) = set_profile_variables(config, environment)
    assert environment == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert note == "--profile many-clients: PYTORCH_ALLOC_CONF=expandable_segments:True"
    environment = {"PYTORCH_ALLOC_CONF": "mine"}
    (note,) = set_profile_variables(config, environment)
    assert environment == {"PYTORCH_ALLOC_CONF": "mine"}
    assert "is set already and stays as it is" in note


def test_a_problem_with_what_a_profile_says_names_the_profile() -> None:
    model = loaded("m --profile coding-agents --chunk 64").config.models[0]
    assert profile_note(model, "--chunk 64 is too short") == ""
    assert profile_note(model, "--max-ctx 32768 is longer than 8192 tokens") == (
        "; --max-ctx is set by --profile coding-agents; a value you write wins"
    )
    plain = loaded("m --max-ctx 32768").config.models[0]
    assert profile_note(plain, "--max-ctx 32768 is longer than 8192 tokens") == ""
