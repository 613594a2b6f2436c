"""How one sequence is sampled. Plain dataclass: the engine reads it and knows no msgspec."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """What the whole output must look like, end token left out.

    Attributes:
        lark: a grammar in llguidance's form of Lark; it was compiled once already, so that a
            worker that cannot compile it has another vocabulary or less patience.
    """

    lark: str


@dataclass(frozen=True, slots=True)
class ReasoningTexts:
    """Tags of reasoning that are plain text, which a model may cut into tokens in many ways.

    Attributes:
        opening: bytes that open it.
        close: bytes that close it.
        pieces: the bytes of each token that begins, goes on with or ends one of the two, or is
            blank; every other token has nothing of them.
        half_ids: tokens that write the rest of `close`, behind its first byte, its first two ...
        comes_first: reasoning begins the output or does not come; what looks like its opening
            later on is text.
    """

    opening: bytes
    close: bytes
    pieces: dict[int, bytes] = field(repr=False)
    half_ids: tuple[tuple[int, ...], ...]
    comes_first: bool = False


@dataclass(frozen=True, slots=True)
class ReasoningBudget:
    """Closes reasoning by force.

    Attributes:
        max_tokens: output tokens (>= 0) after which open reasoning is closed.
        starts_open: the prompt ends inside reasoning.
        open_ids: tokens that open it.
        close_ids: tokens that close it; output that holds them has closed it by itself.
        forced_ids: what is put in place of sampled tokens to close it; holds `close_ids`.
    """

    max_tokens: int
    starts_open: bool
    open_ids: tuple[int, ...]
    close_ids: tuple[int, ...]
    forced_ids: tuple[int, ...]
    texts: ReasoningTexts | None = None
    """Where the tags are no control tokens: what to look for instead of ids."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the probabilities a token was chosen with.

    Of the raw logits: before penalties, bias, grammar and temperature.

    Attributes:
        logprob: of the token itself.
        top_ids: the likeliest tokens, likeliest first, as many as were asked for.
        top_logprobs: theirs.
    """

    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class HiddenRead:
    """Reads the residual stream while a prompt is computed; nothing is generated.

    Attributes:
        layers: after which blocks, counted from 0; negative ones from the end. The worker makes
            them what they stand for, in this order.
        wants_mean: the mean over all tokens is wanted beside the last token's.
        keeps_prefix: what is computed may be found by later prompts that begin with this one.
    """

    layers: tuple[int, ...]
    wants_mean: bool = False
    keeps_prefix: bool = False


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """What was read.

    Attributes:
        last: of the prompt's last token, float32 little-endian [layers, hidden].
        mean: over all its tokens, likewise; empty if it was not wanted.
        cached_tokens: leading tokens of the prompt that later ones find, in whole blocks.
    """

    last: bytes
    mean: bytes = b""
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling of one sequence; validated by the listener, immutable afterwards.

    The chain is: repetition penalty (once per distinct token of the window) → frequency and
    presence penalties → logit bias → grammar → stop tokens barred while the output is shorter
    than `min_tokens` → greedy if `temperature` is 0, else top-k → temperature softmax → min-p →
    top-p → draw.
    """

    max_tokens: int
    """Most tokens to generate (> 0). The worker lowers it to the room its context leaves."""
    temperature: float = 0.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    """1 is off."""
    min_p: float = 0.0
    """0 is off; else drops tokens less likely than `min_p` times the likeliest."""
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    rep_window: int = 256
    """How many of the last tokens (prompt and output) the three penalties look at."""
    logit_bias: dict[int, float] = field(default_factory=dict)
    """Token id → value added to its logit."""
    seed: int | None = None
    """0 is a seed; None draws one from the system's entropy."""
    stop_token_ids: tuple[int, ...] = ()
    """Any of these ends the sequence and is not part of the text."""
    min_tokens: int = 0
    """Stop tokens are not sampled before this many output tokens."""
    logprobs: int | None = None
    """How many of the likeliest tokens (0 to 20) are reported with each token; None: no report."""
    grammar: GrammarSpec | None = None
    """None: anything may come."""
    reasoning: ReasoningBudget | None = None
    """None: reasoning is never closed by force."""
    hidden: HiddenRead | None = None
    """The prompt is read instead of answered; `max_tokens` is 1 then, and nothing is sampled."""
