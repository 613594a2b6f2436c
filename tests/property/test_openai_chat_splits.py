"""Chat completions: however the tokens come, the stream adds up to the unstreamed reply."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming._deltas import accumulate_delta

from luce.listener.dialects.openai_chat import OpenAIChat
from luce.testing.tiny_models import tiny_qwen2
from luce.text.bundle import TextBundle
from luce.text.call import GenerationCall
from luce.text.events import GenEvent, Started, ToolCallStarted

TEMPLATE = Path(__file__).parents[1] / "unit" / "text" / "templates" / "qwen3.jinja"
DIALECT = OpenAIChat(clock_s=lambda: 1)
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("add", "mul")]
PIECES = st.sampled_from(
    [
        "Hello wörld 🎉 ",
        "<think>\ndeep thought STO\n</think>\n\n",
        "<think>",
        "\n",
        "x < y",
        "<tool_call>",
        '<tool_call>\n{"name": "add", "arguments": {"a": "é", "b": [1, 2]}}\n</tool_call>',
        '<tool_call>{"name": "mul", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>',
        '{"name": "add"',
        "STOP",
    ]
)


@cache
def bundle(folder: Path) -> TextBundle:
    return TextBundle.load(tiny_qwen2(folder, container="gguf"), TEMPLATE)


def request(stop: bool, num_choices: int) -> GenerationCall:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": TOOLS,
        "n": num_choices,
        "stream_options": {"include_usage": True},
    }
    if stop:
        body["stop"] = ["STOP", "rld"]
    return DIALECT.decode(json.dumps(body).encode())


def events_of(text: TextBundle, call: GenerationCall, batches: Sequence[Any]) -> list[GenEvent]:
    output = text.pipeline(text.prepare(call), 1)
    events: list[GenEvent] = [Started("m", 0)]
    for tokens in batches:
        events += output.feed(tokens)
    events += output.feed((), "stop")
    # Ids are random; the same text must give the same answer here.
    return [
        ToolCallStarted(e.index, f"call_{e.index}", e.name) if isinstance(e, ToolCallStarted) else e
        for e in events
    ]


def batches_of(data: st.DataObject, tokens: list[int]) -> list[list[int]]:
    batches = []
    while tokens:
        size = data.draw(st.integers(1, max(1, len(tokens))))
        batches.append(tokens[:size])
        tokens = tokens[size:]
    return batches


def accumulated(frames: bytes, num_choices: int) -> tuple[list[Any], Any]:
    """Messages with finish reasons, and usage."""
    choices: list[dict[Any, Any]] = [{} for _ in range(num_choices)]
    reasons = [""] * num_choices
    usage = None
    *blocks, done, rest = frames.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    for block in blocks:
        chunk = json.loads(block.removeprefix("data: "))
        usage = chunk.get("usage", usage)
        for choice in chunk["choices"]:
            index = choice["index"]
            assert not reasons[index]
            choices[index] = accumulate_delta(choices[index], choice["delta"])
            reasons[index] = choice["finish_reason"] or ""
    for message in choices:
        for call in message.get("tool_calls", ()):
            del call["index"]
    return list(zip(choices, reasons, strict=True)), usage


@given(st.data(), st.lists(PIECES, max_size=5), st.booleans(), st.integers(1, 3))
def test_stream_adds_up(
    tmp_path_factory: Any, data: st.DataObject, pieces: list[str], stop: bool, num_choices: int
) -> None:
    text = bundle(tmp_path_factory.getbasetemp() / "split-bundle")
    call = request(stop, num_choices)
    stream, whole = DIALECT.stream_encoder(call), DIALECT.body_encoder(call)
    tokens = text.tokenizer.encode_with_specials("".join(pieces))
    frames = b""
    for choice in range(num_choices):
        for event in events_of(text, call, batches_of(data, tokens)):
            frames += stream.encode(event, choice)
        for event in events_of(text, call, [tokens]):
            whole.add(event, choice)
    answer = json.loads(whole.body())
    expected = []
    for choice in answer["choices"]:
        message = {k: v for k, v in choice["message"].items() if k != "refusal"}
        if message["content"] is None:
            del message["content"]
        expected.append((message, choice["finish_reason"]))
    assert accumulated(frames, num_choices) == (expected, answer["usage"])
