"""The demo model: greedy ids against transformers on our dequantised float32 weights."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_harness import Driver, Request, load_engine, random_ids
from reference import reference_logits

from luce.engine.engine import Engine
from luce.loaders.checkpoint import Checkpoint
from luce.loaders.opening import open_checkpoint
from luce.loaders.quants import dequantize
from luce.loaders.tensor_names import gguf_name
from luce.protocol.sampling import SamplingParams
from luce.text.bundle import TextBundle

TOKENS = 48
SAMPLED = SamplingParams(
    max_tokens=100, temperature=0.9, top_k=50, top_p=0.95, min_p=0.02, repetition_penalty=1.1
)
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
TEXTS = [
    CHAT.format(QUESTION),
    CHAT.format("Write a haiku about rain."),
    CHAT.format("Explain in two sentences why the sky is blue."),
    CHAT.format("List three prime numbers."),
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "The three laws of motion are",
    "Dear Sir or Madam,\n\nI am writing to",
    "2 + 2 = 4\n3 + 3 = 6\n4 + 4 =",
    "Zürich liegt in der Schweiz. Die Stadt",
    "SELECT name, COUNT(*) FROM orders",
]


def _half_split(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo the converter's order of q and k rows: [a0 b0 a1 b1 ..] → [a0 a1 .. b0 b1 ..]."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _state(checkpoint: Checkpoint, names: list[str]) -> dict[str, torch.Tensor]:
    hparams = checkpoint.hparams
    state = {}
    for name in names:
        meta = checkpoint.tensors.meta(gguf_name(name.removeprefix("model.")))
        values = dequantize(meta.type, checkpoint.tensors.raw(meta.name), meta.shape)
        if ".q_proj." in name:
            values = _half_split(values, hparams.num_heads)
        elif ".k_proj." in name:
            values = _half_split(values, hparams.num_kv_heads)
        state[name] = torch.from_numpy(values)
    return state


@pytest.fixture(scope="module")
def reference(demo_model: Path) -> Any:
    """LlamaForCausalLM with the file's weights, dequantised by our loader."""
    from transformers import LlamaConfig, LlamaForCausalLM

    checkpoint = open_checkpoint(demo_model)
    hparams = checkpoint.hparams
    config = LlamaConfig(
        vocab_size=hparams.vocab_size,
        hidden_size=hparams.hidden_size,
        intermediate_size=hparams.intermediate_size,
        num_hidden_layers=hparams.num_layers,
        num_attention_heads=hparams.num_heads,
        num_key_value_heads=hparams.num_kv_heads,
        head_dim=hparams.head_dim,
        rms_norm_eps=hparams.rms_norm_eps,
        max_position_embeddings=hparams.context_length,
        rope_parameters={"rope_type": "default", "rope_theta": hparams.rope_theta},
        tie_word_embeddings=hparams.tie_word_embeddings,
        attention_bias=hparams.attention_bias,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.device("meta"):
            model = LlamaForCausalLM(config)
        names = [name for name in model.state_dict() if name != "lm_head.weight"]
        model.load_state_dict(_state(checkpoint, names), strict=False, assign=True)
        model.tie_weights()
        # Buffers made on the meta device hold nothing; the rotary module is built again.
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
    assert not any(parameter.is_meta for parameter in model.parameters())
    model.train(False)
    return model


@pytest.fixture(scope="module", params=["rounded", "exact"])
def engine(request: pytest.FixtureRequest, demo_model: Path) -> Engine:
    """With activations rounded for native kernels, and in float32."""
    is_exact = request.param == "exact"
    return load_engine(demo_model, max_ctx=512, threads=None, cpu_exact=is_exact)


@pytest.fixture(scope="module")
def text(demo_model: Path) -> TextBundle:
    return TextBundle.load(demo_model)


def test_greedy_ids_equal_the_reference(reference: Any, engine: Engine, text: TextBundle) -> None:
    prompts = [text.tokenizer.encode_with_specials(prompt) for prompt in TEXTS]
    found = Driver(engine).run([Request(prompt, max_tokens=TOKENS) for prompt in prompts])
    for prompt, ids in zip(prompts, found, strict=True):
        # One pass over our own ids: if each is the reference's best after those before it, then
        # the reference would have generated them, one by one.
        logits = reference_logits(reference, [*prompt, *ids[:-1]])
        assert ids == logits[len(prompt) - 1 :].argmax(-1).tolist()


def test_the_capital_of_france(engine: Engine, text: TextBundle) -> None:
    prompt = text.tokenizer.encode_with_specials(CHAT.format(QUESTION))
    ids = Driver(engine).run([Request(prompt, max_tokens=12)])[0]
    end = text.tokenizer.control_id("<|im_end|>")
    assert end in ids
    answer = b"".join(text.tokenizer.token_bytes(each) for each in ids[: ids.index(end)])
    assert answer.decode() == ANSWER


def test_a_seed_gives_the_same_text_alone_and_among_sixteen(engine: Engine) -> None:
    def request(index: int) -> Request:
        prompt = random_ids(3 + 2 * index, 49_000, seed=index)
        wild = replace(SAMPLED, temperature=1.5, top_k=0, top_p=1.0) if index % 4 == 3 else SAMPLED
        return Request(prompt, max_tokens=10, sampling=wild, seed=index)

    alone = {index: Driver(engine).run([request(index)])[0] for index in (1, 15)}
    together = Driver(engine).run([request(index) for index in range(16)])
    assert {index: together[index] for index in alone} == alone
    assert len(set(map(tuple, together))) == 16
