from __future__ import annotations

from luce.observability.history import HISTORY_LENGTH, FinishedRequest, PerfHistory


def request(number: int) -> FinishedRequest:
    return FinishedRequest(
        model="m",
        prompt_tokens=number,
        cached=0,
        completion_tokens=1,
        queue_ms=1.0,
        ttft_ms=2.0,
        prefill_tok_s=None,
        decode_tok_s=None,
    )


def test_the_oldest_are_forgotten_and_the_newest_is_last() -> None:
    history = PerfHistory()
    for number in range(HISTORY_LENGTH + 3):
        history.add(request(number))
    remembered = [finished.prompt_tokens for finished in history.recent()]
    assert remembered == list(range(3, HISTORY_LENGTH + 3))


def test_what_was_given_out_does_not_change_later() -> None:
    history = PerfHistory(2)
    history.add(request(1))
    given = history.recent()
    history.add(request(2))
    assert given == [request(1)]
