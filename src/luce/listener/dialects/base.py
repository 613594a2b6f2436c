"""What a wire API has to offer; `generate` and the routes know dialects only by this."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from luce.errors import ApiError
from luce.text.call import GenerationCall
from luce.text.events import GenEvent

JSON_TYPE = "application/json"
EVENT_STREAM_TYPE = "text/event-stream"


class StreamEncoder(Protocol):
    """Turns the events of one streamed generation into bytes, in order."""

    def encode(self, event: GenEvent) -> bytes:
        """Bytes of one event; the terminal one's end the stream."""


@runtime_checkable
class KeepsAlive(Protocol):
    """A stream encoder whose API has a better sign of life than a comment."""

    def keep_alive(self) -> bytes:
        """Bytes that may be sent between any two events."""


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


class ChoiceStreamEncoder(Protocol):
    """A `StreamEncoder` of several generations that are choices of one answer."""

    def encode(self, event: GenEvent, choice: int = 0) -> bytes:
        """Bytes of one event of one choice.

        The end of the last choice ends the stream, and so does the failure of any.
        """


class ChoiceBodyEncoder(Protocol):
    """A `BodyEncoder` of several generations that are choices of one answer."""

    def add(self, event: GenEvent, choice: int = 0) -> None:
        """Take the next event of one choice.

        Raises:
            ApiError: the generation failed.
        """

    def body(self) -> bytes:
        """The answer, after every choice's terminal event."""


class ChoiceDialect(Dialect, Protocol):
    """A wire API whose requests may ask for several answers at once."""

    def stream_encoder(self, call: GenerationCall) -> ChoiceStreamEncoder:
        """An encoder for one streamed answer of all choices."""

    def body_encoder(self, call: GenerationCall) -> ChoiceBodyEncoder:
        """An encoder for one whole answer of all choices."""
