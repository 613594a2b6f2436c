"""Streams chat requests at a server and times every token; the same client for all servers."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

_TEXT = """river stone window garden music paper winter engine silver forest market bridge
orange travel letter candle ocean planet doctor school"""
_WORDS = _TEXT.split()


def unique_prompt(num_words: int, seed: int) -> list[dict[str, str]]:
    """Messages no other prompt shares a prefix with; about 1.1 tokens a word."""
    rng = random.Random(seed)
    words = " ".join(rng.choice(_WORDS) for _ in range(num_words))
    return [{"role": "system", "content": f"{seed:06d}"}, {"role": "user", "content": words}]


@dataclass
class Stream:
    """What one request saw; times are seconds of the monotonic clock."""

    sent: float = 0.0
    token_times: list[float] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        return self.token_times[0] - self.sent


@dataclass
class Sample:
    """One batch of simultaneous streams."""

    streams: list[Stream]
    wall_s: float

    @property
    def completion_tokens(self) -> int:
        return sum(s.completion_tokens for s in self.streams)

    @property
    def wall_rate(self) -> float:
        """Completion tokens per second over the whole batch, prefill included."""
        return self.completion_tokens / self.wall_s

    @property
    def decode_rate(self) -> float:
        """Tokens per second from the moment every stream has its first token to the first end.

        Only the part in which all streams decode together counts, so no server profits from
        the order in which it prefills.
        """
        begin = max(s.token_times[0] for s in self.streams)
        end = min(s.token_times[-1] for s in self.streams)
        counted = sum(sum(begin < t <= end for t in s.token_times) for s in self.streams)
        return counted / (end - begin) if end > begin else float("nan")

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second until the last first token."""
        last_first = max(s.token_times[0] for s in self.streams)
        first_sent = min(s.sent for s in self.streams)
        return sum(s.prompt_tokens for s in self.streams) / (last_first - first_sent)


async def stream_chat(
    host: str, port: int, body: dict[str, Any], result: Stream | None = None
) -> Stream:
    """One streamed chat completion over a plain socket (the client must not be the bottleneck).

    What it sees is in `result` as it comes.
    """
    payload = json.dumps(
        {**body, "stream": True, "stream_options": {"include_usage": True}}
    ).encode()
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    result = result or Stream()
    result.sent = time.monotonic()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(payload) + payload
    )
    try:
        status = await reader.readline()
        if b" 200 " not in status:
            rest = await reader.read()
            raise RuntimeError(f"{status!r} {rest[-400:]!r}")
        while line := await reader.readline():
            if not line.startswith(b"data: {"):
                continue
            _take(result, json.loads(line[6:]), time.monotonic())
    finally:
        writer.close()
    return result


def _take(result: Stream, chunk: dict[str, Any], now: float) -> None:
    if "error" in chunk:
        raise RuntimeError(chunk["error"])
    if usage := chunk.get("usage"):
        result.prompt_tokens = usage["prompt_tokens"]
        result.completion_tokens = usage["completion_tokens"]
    for choice in chunk.get("choices", ()):
        if text := choice["delta"].get("content"):
            result.text += text
            result.token_times.append(now)


async def sample(port: int, bodies: list[dict[str, Any]], host: str = "127.0.0.1") -> Sample:
    """Send all bodies at once; returns when the last stream ended."""
    start = time.monotonic()
    streams = await asyncio.gather(*(stream_chat(host, port, body) for body in bodies))
    return Sample(list(streams), time.monotonic() - start)
