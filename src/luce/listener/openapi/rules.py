"""What the decoders check beyond types, as far as a schema can say it; tests hold both together."""

from __future__ import annotations

from typing import Any

from luce.listener.dialects import (
    anthropic_wire,
    hidden_states,
    openai_completions_wire,
    openai_wire,
    responses_wire,
)
from luce.listener.routes.tokens import TokenizeRequest
from luce.listener.routes.unload import UnloadRequest

Schema = dict[str, Any]

FIELD_RULES: dict[tuple[type, str], Schema] = {
    (openai_wire.ChatRequest, "messages"): {"minItems": 1},
    (hidden_states.HiddenStatesRequest, "messages"): {"minItems": 1},
    (hidden_states.HiddenStatesRequest, "layers"): {
        "minItems": 1,
        "maxItems": hidden_states.MAX_LAYERS,
        "uniqueItems": True,
    },
    (openai_wire.Message, "role"): {"enum": ["system", "developer", "user", "assistant", "tool"]},
    (anthropic_wire.Message, "role"): {"enum": ["user", "assistant", "system"]},
}
"""(struct, field) → what its schema says besides."""

MESSAGE_RULES: Schema = {
    "required": ["max_tokens"],
    "properties": {"messages": {"minItems": 1}},
}
"""What a message needs and a count of its tokens does not."""

LOGIT_BIAS_NAMES: Schema = {"pattern": "^[0-9]+$"}
"""Names of the object are token ids."""

EXAMPLES: dict[type, Schema] = {
    openai_wire.ChatRequest: {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 100,
    },
    openai_completions_wire.CompletionRequest: {
        "prompt": "The capital of France is",
        "max_tokens": 20,
    },
    anthropic_wire.MessagesRequest: {
        "max_tokens": 100,
        "system": "Answer in one sentence.",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    },
    responses_wire.ResponsesRequest: {
        "instructions": "Answer in one sentence.",
        "input": "What is the capital of France?",
        "stream": True,
    },
    hidden_states.HiddenStatesRequest: {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "layers": [-1],
        "pooling": "both",
    },
    TokenizeRequest: {"content": "What is the capital of France?", "with_pieces": True},
    UnloadRequest: {"model": "big"},
}
"""Type of a request → a body that is served as it is."""
