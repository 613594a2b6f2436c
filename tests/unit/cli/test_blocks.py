"""The command line is cut into ordered blocks before any option is parsed."""

from __future__ import annotations

import pytest

from luce.cli.blocks import Block, CommandLine, split_blocks
from luce.errors import UsageError


def test_first_path_may_be_positional() -> None:
    line = split_blocks(["a.gguf", "--max-ctx", "512"])
    assert line == CommandLine((), (Block(1, "a.gguf", ("--max-ctx", "512")),))


@pytest.mark.parametrize("words", [["--model", "a.gguf"], ["--model=a.gguf"], ["a.gguf"]])
def test_three_ways_to_write_one_model(words: list[str]) -> None:
    assert split_blocks(words).blocks == (Block(1, "a.gguf"),)


def test_options_stay_with_the_model_they_follow() -> None:
    line = split_blocks("--model a --max-ctx 1 --model b --max-ctx 2 --model=c".split())
    assert line.blocks == (
        Block(1, "a", ("--max-ctx", "1")),
        Block(2, "b", ("--max-ctx", "2")),
        Block(3, "c", ()),
    )


def test_positional_path_then_further_blocks() -> None:
    line = split_blocks("a --port 1 --model b --threads 2".split())
    assert [block.path for block in line.blocks] == ["a", "b"]
    assert line.blocks[0].arguments == ("--port", "1")


def test_words_before_the_first_model_are_kept_apart() -> None:
    line = split_blocks("--port 9000 --model a --threads 2".split())
    assert line.prelude == ("--port", "9000")
    assert line.blocks == (Block(1, "a", ("--threads", "2")),)


def test_demo_opens_a_block_anywhere() -> None:
    line = split_blocks("--port 1 --demo --max-ctx 5 --model b --demo".split())
    assert [(block.number, block.path) for block in line.blocks] == [(1, None), (2, "b"), (3, None)]
    assert line.blocks[0].arguments == ("--max-ctx", "5")


def test_no_words_give_no_blocks() -> None:
    assert split_blocks([]) == CommandLine((), ())


def test_equals_form_takes_a_path_that_looks_like_an_option() -> None:
    assert split_blocks(["--model=-x.gguf"]).blocks[0].path == "-x.gguf"


def test_longer_flag_is_not_the_model_flag() -> None:
    line = split_blocks(["a", "--model-name", "--model-name=b"])
    assert line.blocks[0].arguments == ("--model-name", "--model-name=b")


@pytest.mark.parametrize(
    "words",
    [
        ["--model"],
        ["--model="],
        ["--model", ""],
        ["--model", "--port"],
        [""],
        ["--model", "--model", "a"],
    ],
)
def test_model_without_a_path_names_its_block(words: list[str]) -> None:
    with pytest.raises(UsageError, match=r"block 1: --model needs the path"):
        split_blocks(words)


@pytest.mark.parametrize("word", ["--demo=1", "--demo="])
def test_demo_takes_no_value(word: str) -> None:
    with pytest.raises(UsageError, match=r"^block 2: --demo takes no value$"):
        split_blocks(["a", word])


def test_later_model_without_a_path_names_its_block() -> None:
    with pytest.raises(UsageError, match=r"block 3: --model needs the path"):
        split_blocks("a --model b --model".split())


@pytest.mark.parametrize(
    ("block", "label"),
    [
        (Block(1, "models/a.gguf"), "block 1 (a.gguf)"),
        (Block(2, None), "block 2 (demo)"),
        (Block(2, "a", ("--model-name", "small")), "block 2 (small)"),
        (Block(2, "a", ("--model-name=small", "--port", "1")), "block 2 (small)"),
        (Block(2, "a", ("--model-name", "x", "--model-name", "y")), "block 2 (y)"),
        (Block(3, "a", ("--model-name",)), "block 3 (a)"),
        (Block(1, "/"), "block 1 (/)"),
    ],
)
def test_label_names_number_and_model(block: Block, label: str) -> None:
    assert block.label == label
