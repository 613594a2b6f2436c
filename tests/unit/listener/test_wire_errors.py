from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from luce.errors import InvalidRequest
from luce.listener.dialects.wire_errors import decode_json


class Part(msgspec.Struct):
    size: int


class Wire(msgspec.Struct):
    parts: list[Part]
    weights: dict[int, float] | None = None
    mode: Literal["auto", "none"] | None = None


DECODER = msgspec.json.Decoder(Wire)


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b'{"parts":[{"size":"x"}]}', "parts[0].size", "parts[0].size is wrong: expected `int`"),
        (b'{"parts":[{}]}', "parts[0].size", "parts[0].size is required."),
        (b"{}", "parts", "parts is required."),
        (
            b'{"weights":{"1":1,"x":1,"y":1}}',
            "weights.x",
            "the key of weights.x is wrong: expected",
        ),
        (b'{"weights":{"":1}}', "weights.", "the key of weights. is wrong"),
        (b'{"weights":{"1":2,"2":"x","3":[]}}', "weights.2", "weights.2 is wrong: expected `float"),
        (b'{"weights":{"1":2,"2":null},"parts":', "weights", "an entry of weights is wrong: exp"),
        (b'{"weights":{"x":1},"weights":{}}', "weights", "a key of weights is wrong"),
        (b'{"weights":{"x":1},"weights":{"1":1}}', "weights", "a key of weights is wrong"),
        (b'{"weights":{"x":1},"weights":3}', "weights", "a key of weights is wrong"),
        (b'{"weights":{"7":1%b}}' % (b"0" * 400), "weights.7", "number out of range"),
        (b'{"weights":{"%b":1}}' % (b"a" * 99), f"weights.{'a' * 64}…", "is wrong"),
        (b"[]", None, "The body is wrong: expected `object`"),
        (b"{", None, "The body is not valid JSON: input data was truncated."),
        (rb'{"parts":"\ud83d', None, "truncated"),
        (rb'{"parts":"\ud83d\ude', None, "truncated"),
        (rb'{"x":"\\ud83d","', None, "truncated"),
        (rb'{"parts":"\ud83d"}', None, "not valid JSON: half of a surrogate pair (byte 10)."),
        (rb'{"parts":"a\uD800\n"}', None, "half of a surrogate pair (byte 11)"),
        (b'{"parts":[],"x":' + b"[" * 50_000, None, "nested too deeply"),
    ],
)
def test_message_and_param(body: bytes, param: str | None, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_json(DECODER, body)
    assert caught.value.param == param
    assert says in caught.value.message


def test_good() -> None:
    assert decode_json(DECODER, b'{"parts":[{"size":1}],"other":2}').parts == [Part(1)]


def test_a_long_text_is_not_sent_back() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_json(DECODER, b'{"parts":[],"mode":"' + b"a" * 100_000 + b'"}')
    assert caught.value.param == "mode"
    assert caught.value.message.startswith("mode is wrong: invalid enum value 'aaa")
    assert caught.value.message.endswith("aaa….")
    assert len(caught.value.message) < 400
