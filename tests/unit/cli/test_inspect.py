from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from luce.cli.inspect import inspect, summarize
from luce.errors import ModelFileError
from luce.testing import gguf_bytes as gb
from luce.testing.gguf_bytes import GgufBytes, entry, tensor
from luce.testing.tiny_models import tiny_llama, tiny_qwen3, tiny_qwen35, tiny_qwen35moe


def _as_json(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert inspect(path, as_json=True) == 0
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


def test_the_demo_model_as_json(demo_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _as_json(demo_model, capsys)
    assert found["architecture"] == "llama"
    assert found["problem"] is None
    assert found["num_tensors"] == 272
    assert found["parameters"] == 134_515_008
    assert found["file_bytes"] == demo_model.stat().st_size
    assert found["types"]["Q4_1"] == {
        "tensors": 210,
        "elements": 106_168_320,
        "nbytes": 106_168_320 // 32 * 20,
    }
    assert (found["tokenizer"], found["vocab_tokens"]) == ("gpt2 / smollm", 49152)
    assert found["chat_template"] is True
    assert found["context_length"] == 8192
    assert found["hparams"]["num_kv_heads"] == 3


def test_the_demo_model_as_a_table(demo_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(demo_model, as_json=False) == 0
    output = capsys.readouterr().out
    for expected in (
        str(demo_model),
        "134,515,008 in 272 tensors",
        "93.8 MiB",
        "8,192 tokens",
        "gpt2 / smollm, 49,152 tokens",
        "Q4_1",
        "rope_theta",
        "servable       yes",
    ):
        assert expected in output


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny_qwen3(tmp_path / "small", container="safetensors", quant="BF16", split=2)
    found = _as_json(folder, capsys)
    assert (found["container"], found["architecture"], found["name"]) == (
        "safetensors",
        "qwen3",
        "small",
    )
    assert set(found["types"]) == {"BF16", "F32"}
    assert found["tokenizer"] == "tokenizer.json / BPE"
    assert found["chat_template"] is True
    assert found["hparams"]["qk_norm"] is True


def test_a_model_luce_cannot_serve_is_described_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.gguf"
    built = GgufBytes(
        entries=[
            entry("general.architecture", gb.STRING, "mamba[bold]"),
            entry("mamba[bold].context_length", gb.UINT32, 77),
            entry("mamba[bold].ssm.state_size", gb.UINT32, 16),
            entry("mamba[bold].scale", gb.FLOAT32, float("nan")),
        ],
        tensors=[tensor("w", (256,), 16, 0)],
        data=bytes(66),
    )
    path.write_bytes(built.build())
    found = _as_json(path, capsys)
    assert "'mamba[bold]' is not supported" in found["problem"]
    assert found["types"] == {"IQ2_XXS": {"tensors": 1, "elements": 256, "nbytes": 66}}
    assert found["context_length"] == 77
    assert found["hparams"] == {"context_length": 77, "ssm.state_size": 16}
    assert (found["tokenizer"], found["vocab_tokens"]) == (None, None)
    inspect(path, as_json=False)
    output = capsys.readouterr().out
    assert "servable       no: " in output
    assert "mamba[bold]" in output


def test_a_folder_luce_cannot_serve(tmp_path: Path) -> None:
    folder = tiny_qwen3(tmp_path, container="safetensors")
    (folder / "tokenizer.json").unlink()
    summary = summarize(folder)
    assert summary.problem is not None
    assert "tokenizer.json" in summary.problem
    assert (summary.tokenizer, summary.chat_template) == (None, False)
    assert summary.hparams["num_layers"] == 3


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"smollm", b"smullm", "tokenizer.ggml.pre is 'smullm'; supported"),
        (b"gpt2", b"gpt9", "tokenizer.ggml.model is 'gpt9'; supported"),
        (b"{% for", b"{% fur", "chat template: syntax error"),
    ],
)
def test_what_does_not_load_is_not_servable(
    tmp_path: Path, old: bytes, new: bytes, says: str
) -> None:
    path = tiny_llama(tmp_path)
    assert summarize(path).problem is None
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    problem = summarize(path).problem
    assert problem is not None
    assert says in problem


def test_a_folder_whose_tokenizer_is_damaged_is_not_servable(tmp_path: Path) -> None:
    folder = tiny_qwen3(tmp_path, container="safetensors")
    assert summarize(folder).problem is None
    (folder / "tokenizer.json").write_text('{"model": 1}')
    problem = summarize(folder).problem
    assert problem is not None
    assert "not a tokenizer" in problem


def test_names_cannot_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny_llama(tmp_path).rename(tmp_path / "a\x1b[2J.gguf")
    inspect(path, as_json=False)
    output = capsys.readouterr().out
    assert "a\\x1b[2J.gguf" in output
    assert "\x1b[2J" not in output


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(b"GGUF\3\0\0\0")
    with pytest.raises(ModelFileError, match="the tensor count needs 8 bytes"):
        inspect(path, as_json=True)


def test_what_layers_are_and_keep(tmp_path: Path) -> None:
    dense = summarize(tiny_qwen3(tmp_path / "dense")).layers
    assert dense is not None
    # Keys and values of 3 layers with 2 heads of 32 numbers of 2 bytes.
    assert dataclasses.astuple(dense) == ("3 full attention", 2 * 3 * 2 * 32 * 2, 0)
    hybrid = summarize(tiny_qwen35(tmp_path / "hybrid")).layers
    assert hybrid is not None
    state = 3 * (3 * (2 * 2 * 16 + 6 * 32) * 2 + 6 * 16 * 32 * 4)
    assert dataclasses.astuple(hybrid) == (
        "3 linear attention + 1 full attention",
        2 * 2 * 32 * 2,
        state,
    )


@pytest.mark.parametrize("container", ["gguf", "safetensors"])
def test_what_is_not_loaded_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], container: str
) -> None:
    path = tiny_qwen35moe(tmp_path, container=container, num_mtp_layers=1, has_vision=True)
    assert inspect(path, as_json=False) == 0
    output = capsys.readouterr().out
    assert "multi-token prediction (" in output
    assert ("vision tower (1 tensors)" in output) is (container == "safetensors")
    assert "servable       yes" in output
    assert "context        512 tokens" in output
    assert "keeps          256 B a token, 40.5 KiB a sequence (16 bit)" in output
