"""File names that are no UTF-8 reach the worker byte for byte."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.protocol import messages as wire
from luce.protocol.frames import encode_frame
from luce.protocol.paths import path_from_wire, path_to_wire, text_to_wire


@given(st.binary())
def test_every_name_comes_back_and_can_be_sent(name: bytes) -> None:
    path = os.fsdecode(name)
    sent = path_to_wire(path)
    encode_frame(wire.Load(wire.LoadSpec(name="m", path=sent)))
    assert path_from_wire(sent) == path


def test_plain_names_stay_readable() -> None:
    assert path_to_wire("/models/a b.gguf") == "/models/a b.gguf"


@pytest.mark.parametrize(("text", "sent"), [("a\udcffb", "a?b"), ("Größe 大", "Größe 大")])
def test_text_for_people(text: str, sent: str) -> None:
    assert text_to_wire(text) == sent
