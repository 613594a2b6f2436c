"""What a wire API has to offer; `generate` and the routes know dialects only by this."""

from __future__ import annotations

from typing import Protocol

from luce.errors import ApiError
from luce.text.call import GenerationCall
from luce.text.events import GenEvent

JSON_TYPE = "application/json"
EVENT_STREAM_TYPE = "text/event-stream"


class StreamEncoder(Protocol):
    """Turns the events of one streamed generation into bytes, in order."""

    def encode(self, event: GenEvent) -> bytes:
        """Bytes of one event; the terminal one's end the stream."""


class BodyEncoder(Protocol):
    """Collects the events of one generation into a single answer."""

    def add(self, event: GenEvent) -> None:
        """Take the next event.

        Raises:
            ApiError: the generation failed.
        """

    def body(self) -> bytes:
        """The answer, after the terminal event."""


class Dialect(Protocol):
    """One wire API."""

    def decode(self, body: bytes) -> GenerationCall:
        """Read and check a request.

        Raises:
            InvalidRequest: names the field in `param`.
        """

    def stream_encoder(self, call: GenerationCall) -> StreamEncoder:
        """An encoder for one streamed answer."""

    def body_encoder(self, call: GenerationCall) -> BodyEncoder:
        """An encoder for one whole answer."""

    def error_body(self, error: ApiError) -> bytes:
        """An error as this API shows it."""
