from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf as oracle
import numpy as np
import pytest
from tokenizers import Tokenizer

from luce.loaders.hparams import RopeScaling
from luce.loaders.opening import open_checkpoint
from luce.loaders.quants import dequantize
from luce.testing.tiny_gguf import gguf_name, interleave_rows
from luce.testing.tiny_models import LLAMA, tiny_llama, tiny_qwen2, tiny_qwen3
from luce.testing.tiny_tokenizer import (
    CHATML_TEMPLATE,
    IM_END_ID,
    IM_START_ID,
    NUM_TOKENS,
    tokenizer_json,
)
from luce.testing.tiny_weights import llama3_factors, random_weights

BUILDERS = [tiny_llama, tiny_qwen2, tiny_qwen3]


def _values(path: Path) -> dict[str, np.ndarray]:
    tensors = open_checkpoint(path).tensors
    metas = {name: tensors.meta(name) for name in tensors.names()}
    return {
        name: dequantize(meta.type, tensors.raw(name), meta.shape) for name, meta in metas.items()
    }


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("quant", ["F32", "BF16", "Q8_0", "Q4_1"])
def test_both_containers_hold_the_same_weights(
    tmp_path: Path, builder: Callable[..., Path], quant: str
) -> None:
    folder = _values(builder(tmp_path / "s", container="safetensors", quant=quant))
    file = _values(builder(tmp_path / "g", quant=quant))
    assert {gguf_name(name) for name in folder} == set(file)
    for name, values in folder.items():
        if builder is tiny_llama and ".q_proj." in name:
            values = interleave_rows(values, LLAMA.num_heads)
        if builder is tiny_llama and ".k_proj." in name:
            values = interleave_rows(values, LLAMA.num_kv_heads)
        assert np.array_equal(values, file[gguf_name(name)]), name


def test_rows_are_interleaved_head_by_head() -> None:
    rows = np.arange(8, dtype=np.float32).reshape(8, 1)
    assert interleave_rows(rows, 2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_weights_depend_on_seed_and_name_only() -> None:
    first, again, other = (random_weights(LLAMA, seed) for seed in (1, 1, 2))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert np.array_equal(first[name], again[name])
    assert not np.array_equal(first[name], other[name])
    assert not np.array_equal(first[name], first[name.replace("layers.0", "layers.1")])
    norm = first["model.norm.weight"]
    assert norm.std() > 0.05
    assert abs(norm.mean() - 1.0) < 0.1


def test_the_quantised_file_is_quantised(tmp_path: Path) -> None:
    types = {tensor.tensor_type for tensor in oracle.GGUFReader(tiny_llama(tmp_path)).tensors}
    assert types == {oracle.GGMLQuantizationType.F32}
    reader = oracle.GGUFReader(tiny_llama(tmp_path, quant="Q5_1"))
    types = {tensor.tensor_type for tensor in reader.tensors}
    assert types == {oracle.GGMLQuantizationType.F32, oracle.GGMLQuantizationType.Q5_1}


def test_llama3_factors_leave_short_waves_alone() -> None:
    factors = llama3_factors(LLAMA, RopeScaling("llama3", 8.0, 128))
    assert factors[0] == 1.0
    assert factors[-1] == pytest.approx(8.0)
    assert (np.diff(factors) >= 0).all()


@pytest.mark.parametrize("pre", ["smollm", "qwen2"])
def test_the_tokenizer_works(pre: str) -> None:
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json(pre)))
    text = "<|im_start|>user\nWhat is the capital of 12 Ländern? 🌍<|im_end|>\n"
    encoded = tokenizer.encode(text)
    assert encoded.ids[0] == IM_START_ID
    assert IM_END_ID in encoded.ids
    assert "Ġcapital" in encoded.tokens
    assert {"1", "2"} <= set(encoded.tokens)
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text
    assert tokenizer.get_vocab_size() == NUM_TOKENS


@pytest.mark.parametrize("builder", BUILDERS)
def test_padding_rows_are_unused_tokens(tmp_path: Path, builder: Callable[..., Path]) -> None:
    reader = oracle.GGUFReader(builder(tmp_path, vocab_size=NUM_TOKENS + 5))
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    assert tokens[NUM_TOKENS] == f"[PAD{NUM_TOKENS}]"
    assert types[-5:] == [int(oracle.TokenType.UNUSED)] * 5
    assert types[:3] == [int(oracle.TokenType.CONTROL)] * 3
    assert reader.fields["tokenizer.chat_template"].contents() == CHATML_TEMPLATE


@pytest.mark.parametrize("builder", BUILDERS)
def test_transformers_loads_the_folder(tmp_path: Path, builder: Callable[..., Path]) -> None:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = builder(tmp_path, container="safetensors", rope_form="theta")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    stored = _values(folder)
    for name, parameter in model.named_parameters():
        assert np.array_equal(parameter.detach().numpy(), stored[name]), name
    with torch.no_grad():
        logits = model(torch.arange(40)[None]).logits
    assert 0.2 < logits.std() < 1.0
