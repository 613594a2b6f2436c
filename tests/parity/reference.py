"""transformers as the oracle, on the CPU in float32."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


def reference_model(folder: Path) -> Any:
    """A model loaded by transformers from a Hugging Face folder, computing in float32."""
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.train(False)
    return model


def reference_logits(model: Any, token_ids: Sequence[int]) -> torch.Tensor:
    """f32 [len(token_ids), V]."""
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logits: torch.Tensor = model(torch.tensor([list(token_ids)]), use_cache=False).logits[0]
    return logits


def reference_greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """`count` greedy ids, end tokens not heeded; uses the model's own cache."""
    cache = None
    ids, fresh = [], torch.tensor([list(prompt)])
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(count):
            out = model(fresh, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            ids.append(int(out.logits[0, -1].argmax()))
            fresh = torch.tensor([[ids[-1]]])
    return ids
