from __future__ import annotations

import pytest

from luce.errors import InvalidRequest
from luce.text.bare_prompt import bare_prompt
from luce.text.channels import THINK

CHAT = "<s>user: hi\n<s>assistant: <think>old</think>ho\n<s>user: again\n"


@pytest.mark.parametrize(
    "added", ["", "<think>\n\n</think>\n\n", "<think>\n", "</think>", "<think></think>"]
)
def test_what_stands_behind_the_header_is_cut(added: str) -> None:
    assert bare_prompt(f"{CHAT}<s>assistant:{added}", CHAT, THINK) == f"{CHAT}<s>assistant:"


def test_without_reasoning_nothing_is_cut() -> None:
    opened = f"{CHAT}<s>assistant: <think>"
    assert bare_prompt(opened, CHAT, None) == opened


@pytest.mark.parametrize(
    "opened",
    [
        CHAT,
        f"{CHAT}  \n",
        f"{CHAT}<think>\n",
        "<s>another conversation\n<s>assistant:",
        CHAT[:-10],
    ],
)
def test_without_an_open_header_nothing_is_guessed(opened: str) -> None:
    with pytest.raises(InvalidRequest, match="open assistant header") as caught:
        bare_prompt(opened, CHAT, THINK)
    assert caught.value.param == "generation_prompt"
