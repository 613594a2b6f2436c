"""The properties of one model, as `GET /props` shows them: what was resolved, what is supported.

The shape is schema 2 of the server whose clients read it. What does not apply is null, and
nothing is made up: what a worker has not said yet is null too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce import __version__
from luce.listener.dialects.logprobs import MAX_TOP_LOGPROBS
from luce.listener.dialects.openai_wire import SERVED
from luce.listener.sampling import sampling_defaults
from luce.listener.served import ServedModel
from luce.protocol.messages import Ready, WorkerStats
from luce.text.reasoning import supported_efforts

PROPS_SCHEMA = 2
"""Changes only when a client that reads the old shape would break."""

_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty", "rep_window"),
    *("seed", "stop", "logit_bias", "logprobs"),
)

_ANSWER_FORMATS = ("text", "json_object", "json_schema", "grammar", "regex")
_TOOL_CHOICES = ("auto", "none", "required", "named", "allowed_tools")
_LOGPROBS_ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


def model_props(model: ServedModel) -> dict[str, Any]:
    """The part of the answer that is about one model; JSON values."""
    config, ready = model.config, model.handle.ready
    return {
        "default_generation_settings": _generation_settings(model),
        "model_alias": model.name,
        "model_path": str(config.path),
        "build_info": f"luce-{__version__}",
        "speculative_mode": "off",
        "server": {"name": "luce", "version": __version__, "props_schema": PROPS_SCHEMA},
        "model": {
            "arch": ready.architecture if ready else None,
            "draft_path": None,
            "tokenizer_id": None,
            "layers": _layers(ready),
            "weight_types": model.text.weight_types if model.text else None,
        },
        "runtime": _runtime(model, ready),
        "reasoning": _reasoning(model),
        "model_card": _card(model),
        "budget_envelope": _budgets(model),
        "speculative": {"enabled": False, "ddtree_budget": None},
        "sampling": {"capabilities": {name: name in SERVED for name in _SAMPLING}},
        "pflash": None,
        "prefix_cache": _prefix_cache(model, ready),
        "full_cache": None,
        "tool_replay": None,
        "daemon": {"alive": model.is_up},
        "capabilities": {
            "reasoning_supported": _is_reasoning(model),
            "speculative_supported": False,
            "tools_supported": "tools" in SERVED,
            "image_input_supported": False,
            "answer_formats": _ANSWER_FORMATS,
            "tool_choices": _TOOL_CHOICES,
            "logprobs_endpoints": _LOGPROBS_ENDPOINTS,
            "max_top_logprobs": MAX_TOP_LOGPROBS,
        },
        "memory": _memory(model, ready),
    }


def _generation_settings(model: ServedModel) -> dict[str, Any]:
    defaults = sampling_defaults(model.text.generation_defaults if model.text else {})
    return {
        "n_ctx": model.context_length,
        "temperature": defaults["temperature"],
        "top_p": defaults["top_p"],
        "top_k": int(defaults["top_k"]),
        "min_p": defaults["min_p"],
        "repeat_penalty": defaults["repetition_penalty"],
    }


def _runtime(model: ServedModel, ready: Ready | None) -> dict[str, Any]:
    return {
        "backend": model.device.partition(":")[0],
        "target_device": model.device,
        "draft_device": None,
        "dtype": ready.dtype if ready else None,
        "fa_window": None,
        # Keys and values are kept in the type that is computed in.
        "kv_cache_k": ready.dtype if ready else None,
        "kv_cache_v": ready.dtype if ready else None,
        "lazy_draft": None,
        "draft_residency": None,
        "target_sharding": None,
        "chunk": model.config.chunk,
        "continuous_batching": {
            "max_concurrency": model.capacity or None,
            "admission_coalesce_ms": None,
            "decode_kv_offload_bytes": None,
        },
    }


def _is_reasoning(model: ServedModel) -> bool | None:
    """Whether its reasoning is told apart; null while it loads."""
    return model.text.thinking.close is not None if model.text else None


def _reasoning(model: ServedModel) -> dict[str, Any]:
    efforts: tuple[str, ...] = ()
    if model.text is not None and _is_reasoning(model):
        efforts = supported_efforts(model.text.architecture)
    return {
        "supported": _is_reasoning(model),
        "default": None,
        "supported_efforts": efforts,
    }


def _card(model: ServedModel) -> Mapping[str, Any] | None:
    card = model.text.thinking.card if model.text else None
    return card.document if card else None


def _budgets(model: ServedModel) -> dict[str, Any]:
    budgets = model.budgets
    return {
        "model_card_source": budgets.source if budgets else None,
        "default_max_tokens": budgets.default_max_tokens if budgets else model.config.output_cap,
        "hard_limit_reply_budget": budgets.hard_limit_reply_budget if budgets else None,
        "think_max_tokens": budgets.think_max_tokens if budgets else None,
        "effort_tiers": budgets.effort_tiers if budgets else None,
    }


def _prefix_cache(model: ServedModel, ready: Ready | None) -> dict[str, Any] | None:
    """Shares the KV pool with the running requests, so its capacity is the pool's."""
    if not model.config.prefix_cache:
        return None
    stats = model.handle.stats
    return {
        "unit": "tokens",
        "capacity": ready.limits.kv_pool_tokens if ready else None,
        "in_use": _tokens(stats.cached_blocks, ready),
        "lifetime_queries": stats.prefix_query_tokens,
        "lifetime_hits": stats.prefix_hit_tokens,
        "checkpoints": _checkpoints(stats),
        "host": {
            "in_use": _tokens(stats.prefix_host_blocks, ready),
            "lifetime_recalled": _tokens(stats.prefix_recalled_blocks, ready),
        },
    }


def _checkpoints(stats: WorkerStats) -> dict[str, Any] | None:
    """Saved states; a model without recurrent layers has none."""
    if not stats.total_checkpoints:
        return None
    return {
        "capacity": stats.total_checkpoints,
        "in_use": stats.used_checkpoints,
        "lifetime_restored": stats.restored_checkpoints,
    }


def _memory(model: ServedModel, ready: Ready | None) -> dict[str, Any]:
    stats = model.handle.stats
    return {
        "cache": _kv_cache(ready, stats) if ready else None,
        "snapshots": None,
        "weights_bytes": ready.weights_bytes if ready else None,
        "worker": {"rss_bytes": (stats.rss_bytes or None) if model.is_up else None},
    }


def _layers(ready: Ready | None) -> dict[str, Any] | None:
    layers = ready.layers if ready else None
    if layers is None:
        return None
    return {
        "pattern": layers.pattern,
        "kv_bytes_per_token": layers.kv_bytes_per_token,
        "state_bytes_per_sequence": layers.state_bytes_per_sequence,
        "state_checkpoints": layers.num_checkpoints,
    }


def _kv_cache(ready: Ready, stats: WorkerStats) -> dict[str, Any]:
    num_held = stats.total_blocks - stats.free_blocks - stats.cached_blocks
    return {
        "location": ready.device,
        "capacity_tokens": ready.limits.kv_pool_tokens,
        "live_tokens": _tokens(num_held, ready),
        "kv_bytes": ready.kv_bytes,
        "recurrent_bytes": ready.layers.state_bytes if ready.layers else None,
        "draft_feature_bytes": None,
        "other_bytes": None,
        "host_state_bytes": None,
    }


def _tokens(num_blocks: int, ready: Ready | None) -> int | None:
    return num_blocks * ready.limits.block_tokens if ready else None
