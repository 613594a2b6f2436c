from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.protocol import messages as wire
from luce.protocol.frames import (
    FrameDecoder,
    FrameError,
    FrameGarbage,
    FrameTruncated,
    encode_frame,
    listener_decoder,
    worker_decoder,
)
from luce.protocol.sampling import SamplingParams

ids = st.text(st.characters(codec="utf-8"), max_size=20)
counts = st.integers(0, 2**63)
tokens = st.lists(st.integers(0, 2**31 - 1), max_size=8)
finishes = st.sampled_from(["stop", "length", "cancelled", "error"])
numbers = st.floats(allow_nan=False)

samplings = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 2**40),
    temperature=numbers,
    top_p=numbers,
    logit_bias=st.dictionaries(st.integers(0, 2**31), numbers, max_size=4),
    seed=st.none() | st.integers(-(2**63), 2**64 - 1),
    stop_token_ids=st.lists(st.integers(0, 2**31), max_size=4).map(tuple),
)
to_worker = st.one_of(
    st.builds(wire.Load, st.builds(wire.LoadSpec, name=ids, path=ids, threads=st.none() | counts)),
    st.builds(wire.Submit, ids, st.binary(max_size=64), samplings),
    st.builds(wire.Cancel, ids, st.sampled_from(["client_gone", "stop_string", "slow_reader"])),
    st.builds(
        wire.Control,
        counts,
        st.sampled_from(["drain", "check", "evict", "reinstate"]),
        st.sampled_from([None, "cold", "host", "warm", "partial"]),
    ),
    st.builds(wire.Shutdown, numbers),
)
limits = st.builds(
    wire.Limits,
    max_ctx=counts,
    max_concurrency=counts,
    kv_pool_tokens=counts,
    block_tokens=counts,
)
to_listener = st.one_of(
    st.builds(wire.Hello, counts, counts, ids),
    st.builds(wire.LoadProgress, ids, counts, counts),
    st.builds(
        wire.Ready,
        limits=limits,
        architecture=ids,
        device=ids,
        dtype=ids,
        weights_bytes=counts,
        kv_bytes=counts,
        vocab_size=counts,
        load_ms=counts,
    ),
    st.builds(wire.Admitted, ids, counts),
    st.builds(wire.Refused, ids, st.sampled_from(["capacity", "never_fits", "failed"]), ids, ids),
    st.builds(
        wire.StepOutput,
        counts,
        st.lists(st.builds(wire.SeqDelta, ids, tokens, st.none() | finishes), max_size=4),
    ),
    st.builds(
        wire.Retired,
        ids,
        finishes,
        st.builds(wire.Usage, prompt_tokens=counts, cached_tokens=counts, completion_tokens=counts),
        st.builds(wire.WorkerTimings, admitted_ns=counts),
        ids,
        ids,
    ),
    st.builds(wire.ControlDone, counts, ids, counts, counts, counts, counts),
    st.builds(wire.Stats, st.builds(wire.WorkerStats, running=counts)),
    st.builds(wire.Fault, ids, ids, st.booleans()),
)


def feed_in_pieces(decoder: FrameDecoder, data: bytes, cuts: list[int]) -> list:
    borders = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    messages = []
    for start, end in itertools.pairwise(borders):
        messages += decoder.feed(data[start:end])
    return messages


def joined(messages) -> bytes:
    return b"".join(encode_frame(message) for message in messages)


splits = st.lists(st.integers(0, 2**20), max_size=12)


@given(st.lists(to_worker, max_size=6), splits)
def test_any_split_gives_the_worker_the_same_messages(messages, cuts):
    decoder = worker_decoder()
    assert feed_in_pieces(decoder, joined(messages), cuts) == messages
    decoder.end()


@given(st.lists(to_listener, max_size=6), splits)
def test_any_split_gives_the_listener_the_same_messages(messages, cuts):
    decoder = listener_decoder()
    assert feed_in_pieces(decoder, joined(messages), cuts) == messages
    decoder.end()


@given(st.lists(to_listener, min_size=1, max_size=3))
def test_byte_by_byte_gives_the_same_messages(messages):
    decoder = listener_decoder()
    data = joined(messages)
    assert [m for i in range(len(data)) for m in decoder.feed(data[i : i + 1])] == messages


@given(st.lists(to_listener, min_size=1, max_size=4), st.integers(1, 2**20))
def test_a_truncated_stream_gives_a_prefix_and_says_so(messages, cut):
    data = joined(messages)
    keep = len(data) - 1 - cut % len(data)
    decoder = listener_decoder()
    received = decoder.feed(data[:keep])
    assert received == messages[: len(received)]
    rest = keep - len(joined(received))
    if rest == 0:
        decoder.end()
        return
    with pytest.raises(FrameTruncated, match=f"closed {rest} bytes"):
        decoder.end()


@given(
    st.lists(to_worker, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), min_size=1, max_size=4),
    splits,
)
@settings(max_examples=300)
def test_mutated_bytes_give_messages_or_a_typed_error(messages, mutations, cuts):
    data = bytearray(joined(messages))
    for position, change in mutations:
        data[position % len(data)] ^= change
    decoder = worker_decoder()
    received = []
    try:
        received = feed_in_pieces(decoder, bytes(data), cuts)
        decoder.end()
    except FrameError:
        return
    assert all(isinstance(message, wire.ToWorker) for message in received)


@given(st.binary(max_size=200), splits)
def test_noise_never_raises_anything_else(data, cuts):
    decoder = listener_decoder()
    try:
        feed_in_pieces(decoder, data, cuts)
    except FrameError as error:
        with pytest.raises(type(error)):
            decoder.feed(b"\0")


@given(to_worker, to_listener)
def test_each_side_refuses_the_other_sides_messages(for_worker, for_listener):
    for message, decoder in ((for_worker, listener_decoder()), (for_listener, worker_decoder())):
        with pytest.raises(FrameGarbage, match="no message"):
            decoder.feed(encode_frame(message))
