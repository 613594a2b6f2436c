"""ResponseStore: bounded, the ones used last stay."""

from __future__ import annotations

from luce.listener.dialects.responses_wire import Item
from luce.listener.responses_store import ResponseStore, StoredResponse, not_kept


def response(num_bytes: int = 10) -> StoredResponse:
    """A response that counts this many bytes: `[]` are its items."""
    return StoredResponse(b"x" * (num_bytes - 2), ())


def kept(store: ResponseStore, *names: str) -> list[str]:
    return [name for name in names if store.get(name) is not None]


def test_the_oldest_makes_room() -> None:
    store = ResponseStore(max_responses=2)
    for name in "abc":
        store.put(name, response())
    assert kept(store, *"abc") == ["b", "c"]


def test_use_makes_young() -> None:
    store = ResponseStore(max_responses=2)
    store.put("a", response())
    store.put("b", response())
    store.get("a")
    store.put("c", response())
    assert kept(store, *"abc") == ["a", "c"]


def test_bytes_are_bounded_and_counted() -> None:
    store = ResponseStore(max_bytes=100)
    for name in "abc":
        store.put(name, response(40))
    assert (kept(store, *"abc"), store.num_bytes, len(store)) == (["b", "c"], 80, 2)
    store.put("d", response(101))
    assert kept(store, *"bcd") == ["b", "c"]
    store.put("e", response(100))
    assert (kept(store, *"bce"), store.num_bytes) == (["e"], 100)


def test_items_count() -> None:
    store = ResponseStore()
    store.put("a", StoredResponse(b"", (Item(role="user", content="x" * 1000),)))
    assert store.num_bytes > 1000


def test_again_replaces() -> None:
    store = ResponseStore()
    store.put("a", response(40))
    store.put("a", response(20))
    assert (store.num_bytes, len(store)) == (20, 1)


def test_delete() -> None:
    store = ResponseStore()
    store.put("a", response())
    assert store.delete("a")
    assert not store.delete("a")
    assert (store.get("a"), store.num_bytes) == (None, 0)


def test_the_error_is_short() -> None:
    error = not_kept("x" * 5000, param="previous_response_id")
    assert (error.status, error.param) == (404, "previous_response_id")
    assert len(error.message) < 200
