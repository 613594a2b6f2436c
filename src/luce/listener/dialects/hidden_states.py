"""Our own API for a model's hidden states: request bodies in, answers out."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from luce.errors import InvalidRequest
from luce.listener.dialects import openai_wire as wire
from luce.listener.dialects.openai_chat import OpenAIChat
from luce.listener.dialects.wire_errors import decode_json
from luce.protocol.sampling import HiddenRead, HiddenStates
from luce.text.call import GenerationCall

MAX_LAYERS = 256
_LAYER_LIMIT = 2**31

Pooling = Literal["last", "mean", "both"]
PromptEnd = Literal["template", "bare"]


class HiddenStatesRequest(wire.ChatRequest, kw_only=True):
    """Body of `POST /v1/hidden_states`: a chat request's prompt, and what is read of it.

    Attributes:
        layers: after which blocks, counted from 0; negative ones from the end. At most 256, each
            once.
        pooling: last: at the last token. mean: over all tokens as well; both: the same.
        generation_prompt: bare: the prompt ends right behind the assistant's header.
        cache_prefix: later prompts that begin with this one may go on from what is computed.
    """

    layers: list[int]
    pooling: Pooling | None = None
    generation_prompt: PromptEnd | None = None
    cache_prefix: bool | None = None


class LayerStates(msgspec.Struct):
    """The states behind a block, float32."""

    last: list[float]
    mean: list[float] | msgspec.UnsetType = msgspec.UNSET


class PrefillTimings(msgspec.Struct):
    """How long it took the model."""

    prefill_ms: float


class KeptPrefix(msgspec.Struct):
    """Leading tokens that later prompts find, in whole blocks."""

    cached_tokens: int


class HiddenStatesAnswer(msgspec.Struct, kw_only=True):
    """The hidden states of a prompt.

    Attributes:
        layers: by layer, spelled as it was asked for.
        last_token: text of the prompt's last token.
        cache_prefix: only if it was asked for.
    """

    object: str = "hidden_states"
    model: str
    n_layers: int
    n_embd: int
    prompt_tokens: int
    pooling: Pooling
    generation_prompt: PromptEnd
    last_token: str
    layers: dict[str, LayerStates]
    timings: PrefillTimings
    cache_prefix: KeptPrefix | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class Reading:
    """A request, checked as far as no model is needed.

    Attributes:
        model: the name asked for.
        layers: as the client spelled them.
        call: the prompt, and what is read.
    """

    model: str | None
    layers: tuple[int, ...]
    pooling: Pooling
    prompt_end: PromptEnd
    keeps_prefix: bool
    call: GenerationCall


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """What a model found in a prompt.

    Attributes:
        model: its name.
        num_layers: its blocks.
        hidden_size: numbers of a state.
        num_tokens: of the prompt.
        last_token: what the prompt's last token stands for.
        prefill_ms: how long it took.
        states: in the order the layers were asked for.
    """

    model: str
    num_layers: int
    hidden_size: int
    num_tokens: int
    last_token: bytes
    prefill_ms: float
    states: HiddenStates


class HiddenStatesDialect:
    """Reads requests and writes answers."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(HiddenStatesRequest)
        self._chat = OpenAIChat()

    def decode(self, body: bytes) -> Reading:
        """Read and check a request.

        Raises:
            InvalidRequest: names the field in `param`.
            UnsupportedFeature: the messages have more than text.
        """
        request = decode_json(self._decoder, body)
        _check_layers(request.layers)
        layers = tuple(request.layers)
        pooling = request.pooling or "last"
        keeps_prefix = bool(request.cache_prefix)
        call = self._chat.call(request)
        # The tools are rendered; what they and the format would force is output, and there is none.
        call = replace(
            call,
            tools=tuple(replace(tool, is_strict=False) for tool in call.tools),
            tool_choice="none" if call.tool_choice == "none" else "auto",
            answer_format=None,
            max_tokens=1,
            stream=False,
            n=1,
            hidden_read=HiddenRead(layers, pooling != "last", keeps_prefix),
            ends_bare=request.generation_prompt == "bare",
        )
        end = request.generation_prompt or "template"
        return Reading(request.model or None, layers, pooling, end, keeps_prefix, call)

    def encode(self, reading: Reading, read: ReadPrompt) -> bytes:
        """The answer; takes milliseconds for many layers."""
        count, size = len(reading.layers), read.hidden_size
        last = _rows(read.states.last, count, size)
        mean = _rows(read.states.mean, count, size) if read.states.mean else None
        layers = {
            str(layer): LayerStates(last[index], msgspec.UNSET if mean is None else mean[index])
            for index, layer in enumerate(reading.layers)
        }
        return msgspec.json.encode(
            HiddenStatesAnswer(
                model=read.model,
                n_layers=read.num_layers,
                n_embd=size,
                prompt_tokens=read.num_tokens,
                pooling=reading.pooling,
                generation_prompt=reading.prompt_end,
                last_token=read.last_token.decode("utf-8", errors="replace"),
                layers=layers,
                timings=PrefillTimings(round(read.prefill_ms, 3)),
                cache_prefix=KeptPrefix(read.states.cached_tokens)
                if reading.keeps_prefix
                else msgspec.UNSET,
            )
        )


def check_range(layers: Sequence[int], num_layers: int, model: str) -> None:
    """Hold layers against a model.

    Raises:
        InvalidRequest: it does not have one of them.
    """
    for layer in layers:
        if not -num_layers <= layer < num_layers:
            raise InvalidRequest(
                f"layers has {layer}; model {model} has layers 0 to {num_layers - 1}, or "
                f"{-num_layers} to -1 from the end.",
                param="layers",
            )


def _check_layers(layers: list[int]) -> None:
    if not 1 <= len(layers) <= MAX_LAYERS:
        raise InvalidRequest(
            f"layers must have 1 to {MAX_LAYERS} entries, not {len(layers)}.", param="layers"
        )
    wide = next((each for each in layers if not -_LAYER_LIMIT <= each < _LAYER_LIMIT), None)
    if wide is not None:
        raise InvalidRequest(f"layers has {wide}, which no model has.", param="layers")
    if len(set(layers)) != len(layers):
        raise InvalidRequest("layers has an entry twice.", param="layers")


def _rows(stored: bytes, count: int, size: int) -> list[list[float]]:
    flat = array("f", stored)
    if sys.byteorder == "big":
        flat.byteswap()
    return [flat[start : start + size].tolist() for start in range(0, count * size, size)]
