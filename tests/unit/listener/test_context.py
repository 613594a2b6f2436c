from __future__ import annotations

import pytest

from luce.listener.context import attach, context_of, new_context


def test_ids() -> None:
    first, second = new_context([]), new_context([(b"x-request-id", b"mine:1/a")])
    assert first.request_id == f"req-{first.key}"
    assert second.request_id == "mine:1/a"
    assert first.key != second.key


@pytest.mark.parametrize("given", [b"", b"a b", b"a\tb", b"\xff", b"x" * 129, b'a"b'])
def test_id_that_cannot_be_echoed(given: bytes) -> None:
    assert new_context([(b"x-request-id", given)]).request_id.startswith("req-")


def test_scope() -> None:
    scope = {"state": {}}
    context = new_context([])
    attach(scope, context)
    assert context_of(scope) is context
