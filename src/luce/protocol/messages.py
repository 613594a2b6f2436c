"""The messages listener and worker exchange. Nothing else crosses the process border.

Life of a worker:   Load → Hello, LoadProgress*, Ready | Fault(fatal) → … → Shutdown → EOF.
Life of a request:  Submit → Refused, or Admitted → StepOutput* → Retired.
A request gets exactly one `Refused` or `Retired`. After `Retired` its memory is free.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from luce.protocol.sampling import HiddenStates, SamplingParams, TokenLogprobs

PROTOCOL_VERSION = 1

FinishReason = Literal["stop", "length", "cancelled", "error"]
CancelReason = Literal["client_gone", "stop_string", "slow_reader", "shutdown"]
RefusalReason = Literal["capacity", "never_fits", "draining", "failed"]
ControlOp = Literal["drain", "check", "evict", "reinstate"]
EvictionLevel = Literal["cold", "host", "warm", "partial"]
"""What an evicted model keeps.

cold: host snapshots of prefixes only. host: also its weights, in pinned host memory. warm: its
weights, on the device. partial: what it has on devices other than its first.
"""


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker loads and how: the part of a model block the engine needs.

    `None` means "resolve from the file and the machine"; the resolved values come back in
    `Ready`. Sizes are in tokens.
    """

    name: str
    path: str
    device: str = "cpu"
    dtype: str = "auto"
    threads: int | None = None
    max_ctx: int | None = None
    max_concurrency: int = 4
    kv_pool_tokens: int | None = None
    chunk: int = 512
    block_tokens: int = 16
    prefix_cache: bool = True
    cache_type_k: str = "auto"
    cache_type_v: str = "auto"
    cpu_exact: bool = False
    prefix_snapshot_bytes: int | None = None
    """Host memory for prefixes that the device has no room for; 0: they are lost."""
    num_models: int = 1
    """That share the host's memory."""
    files: str = ""
    """`FileIdentity.digest` of what was planned; empty: whatever the files are."""
    takes_turns: bool = False
    """It will leave its device and come back, again and again."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker can hold. A sequence fits if prompt + 1 <= `max_seq_tokens`."""

    max_ctx: int
    max_concurrency: int
    kv_pool_tokens: int
    block_tokens: int

    @property
    def max_seq_tokens(self) -> int:
        """Most tokens (prompt + output) one sequence may reach."""
        return min(self.max_ctx, self.kv_pool_tokens)


class WorkerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and gauges of one worker; counters only grow while the process lives."""

    running: int = 0
    preempted: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    total_blocks: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    prefix_host_blocks: int = 0
    prefix_recalled_blocks: int = 0
    used_checkpoints: int = 0
    total_checkpoints: int = 0
    restored_checkpoints: int = 0
    preemptions: int = 0
    rss_bytes: int = 0
    num_experts: int = 0
    """Of each layer with a mixture; 0: the model has none."""
    expert_loads: bytes = b""
    """Tokens each expert has had, int64 little-endian, layer by layer; at most 5 s old."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one request as the worker counted them."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class WorkerTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Monotonic nanoseconds of the host's clock; 0 = never reached."""

    admitted_ns: int
    first_token_ns: int = 0
    last_token_ns: int = 0
    retired_ns: int = 0


# --- listener → worker ---------------------------------------------------------------


class Load(msgspec.Struct, frozen=True, tag=True):
    """First message: load this model."""

    spec: LoadSpec


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Admit this sequence or refuse it, at once."""

    request_id: str
    prompt: bytes
    """int32 little-endian token ids."""
    sampling: SamplingParams


class Vocabulary(msgspec.Struct, frozen=True, tag=True):
    """What grammars need to know of the tokens; sent once, before the first one that has need.

    `tokens` are each id's bytes, empty for an id without text; `control_ids` are control tokens,
    whose bytes are their names; `end_ids` end a generation.
    """

    tokens: list[bytes]
    control_ids: list[int]
    end_ids: list[int]


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Stop this sequence. Unknown ids are ignored: it may have retired already."""

    request_id: str
    reason: CancelReason


class Control(msgspec.Struct, frozen=True, tag=True):
    """Ask for an operation on the whole worker; answered by one `ControlDone`.

    drain: admit nothing more. check: verify the block pool's invariants. evict: give device
    memory back; asked of a worker that holds no request, and again of an evicted one to keep
    less. The process, its frozen layout and its prefix snapshots in host memory stay. reinstate:
    serve again with the same layout. While evicted, `Submit` is refused with "draining".
    """

    op_id: int
    op: ControlOp
    level: EvictionLevel | None = None
    """What to keep; only for evict."""


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Admit nothing more, finish what runs for at most `grace_s`, then exit."""

    grace_s: float


# --- worker → listener ---------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First message of a worker."""

    version: int
    pid: int
    build: str


class LoadProgress(msgspec.Struct, frozen=True, tag=True):
    """Loading advances; at most ten a second."""

    stage: str
    done_bytes: int
    total_bytes: int


class LayerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's layers keep.

    Attributes:
        pattern: the kinds of layers, for people.
        kv_bytes_per_token: keys and values of one token.
        state_bytes_per_sequence: recurrent states of one sequence; 0 for a model without them.
        state_bytes: those of all rows and checkpoints.
        num_checkpoints: states that can be saved beside the rows'.
    """

    pattern: str
    kv_bytes_per_token: int
    state_bytes_per_sequence: int = 0
    state_bytes: int = 0
    num_checkpoints: int = 0


class Ready(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The worker serves; here is what it resolved."""

    limits: Limits
    architecture: str
    device: str
    dtype: str
    weights_bytes: int
    kv_bytes: int
    vocab_size: int
    load_ms: int
    num_layers: int = 0
    """Blocks whose hidden states can be read; 0: none."""
    hidden_size: int = 0
    layers: LayerMemory | None = None
    peak_bytes: int = 0
    """Most memory taken on a GPU while it loaded and tried its largest steps, without the
    runtime's context; on a CPU what the whole process holds then. 0: not known."""


class Admitted(msgspec.Struct, frozen=True, tag=True):
    """The sequence has a row and its prompt's blocks."""

    request_id: str
    cached_tokens: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The sequence was not admitted. Only `capacity` may be tried again or elsewhere.

    `error` is a class name of `luce.errors` for `failed` and `never_fits`.
    """

    request_id: str
    reason: RefusalReason
    error: str = ""
    detail: str = ""


class SeqDelta(msgspec.Struct, frozen=True, array_like=True):
    """What one step added to one sequence; `logprobs`, if asked for, one entry a token.

    `hidden` comes once, with the end of a sequence that was read instead of answered.
    """

    request_id: str
    token_ids: list[int]
    finish: FinishReason | None = None
    logprobs: list[TokenLogprobs] | None = None
    hidden: HiddenStates | None = None


class StepOutput(msgspec.Struct, frozen=True, tag=True):
    """The deltas of one step, one frame."""

    step: int
    deltas: list[SeqDelta]


class Retired(msgspec.Struct, frozen=True, tag=True):
    """The sequence's row and blocks are free. `error`/`detail` are set when it failed."""

    request_id: str
    finish: FinishReason
    usage: Usage
    timings: WorkerTimings
    error: str = ""
    detail: str = ""


class ControlDone(msgspec.Struct, frozen=True, tag=True):
    """A `Control` is done; `error` is empty when it went well.

    An evict with an error touched nothing: the model serves as before. A reinstate with an error
    left the model evicted and holding nothing on its device that it had not held before.

    Attributes:
        retained_bytes: still on devices.
        host_bytes: weights parked in host memory.
        duration_ms: how long the worker took.
        snapshots_lost: prefixes that could not be kept.
    """

    op_id: int
    error: str = ""
    retained_bytes: int = 0
    host_bytes: int = 0
    duration_ms: int = 0
    snapshots_lost: int = 0


class Stats(msgspec.Struct, frozen=True, tag=True):
    """Sent when something changed, at most four times a second, and after each check."""

    stats: WorkerStats


class Fault(msgspec.Struct, frozen=True, tag=True):
    """The worker cannot load, or cannot go on (`fatal`); it exits after a fatal one.

    `error` is a class name of `luce.errors`.
    """

    error: str
    message: str
    fatal: bool


ToWorker = Load | Vocabulary | Submit | Cancel | Control | Shutdown
ToListener = (
    Hello
    | LoadProgress
    | Ready
    | Admitted
    | Refused
    | StepOutput
    | Retired
    | ControlDone
    | Stats
    | Fault
)
