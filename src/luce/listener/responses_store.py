"""ResponseStore: responses that clients may refer to later, in memory and bounded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from luce.errors import ResponseNotFound
from luce.listener.dialects.responses_wire import Item
from luce.units import quoted

MAX_RESPONSES = 1024
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response.

    Attributes:
        body: as the client got it.
        items: the whole conversation up to and with it, without instructions.
    """

    body: bytes
    items: tuple[Item, ...]


class ResponseStore:
    """Keeps the responses used last. Not thread-safe: only the event loop's thread uses it.

    Items that follow-ups share are counted with each of them, so what is really held is less.

    Args:
        max_responses: most responses.
        max_bytes: most bytes, as JSON.
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def num_bytes(self) -> int:
        """Bytes held, as counted."""
        return self._num_bytes

    def put(self, response_id: str, response: StoredResponse) -> None:
        """Keep a response; those not used for longest make room. One too large is not kept."""
        num_bytes = len(response.body) + len(msgspec.json.encode(response.items))
        if num_bytes > self._max_bytes:
            return
        self.delete(response_id)
        self._kept[response_id] = (response, num_bytes)
        self._num_bytes += num_bytes
        while len(self._kept) > self._max_responses or self._num_bytes > self._max_bytes:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._num_bytes -= dropped

    def get(self, response_id: str) -> StoredResponse | None:
        """The response of this id, if it is kept."""
        kept = self._kept.get(response_id)
        if kept is None:
            return None
        self._kept.move_to_end(response_id)
        return kept[0]

    def delete(self, response_id: str) -> bool:
        """Forget a response.

        Returns:
            Whether it was there.
        """
        kept = self._kept.pop(response_id, None)
        if kept is None:
            return False
        self._num_bytes -= kept[1]
        return True


def not_kept(response_id: str, param: str | None = None) -> ResponseNotFound:
    """The error about an id that leads nowhere."""
    return ResponseNotFound(
        f"There is no response {quoted(response_id)} here; send the conversation instead.",
        param=param,
    )
