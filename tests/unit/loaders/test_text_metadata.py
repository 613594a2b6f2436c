from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luce.errors import ModelFileError
from luce.loaders.opening import read_text_metadata
from luce.testing import gguf_bytes as gb
from luce.testing.tiny_models import tiny_llama
from luce.testing.tiny_tokenizer import CHATML_TEMPLATE

GgufWith = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny", container="safetensors")


def _change(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text()) if path.exists() else {}
    merged = {key: value for key, value in (values | changes).items() if value != "REMOVED"}
    path.write_text(json.dumps(merged))


def test_gguf(gguf_with: GgufWith) -> None:
    text = read_text_metadata(gguf_with())
    assert (text.container, text.architecture, text.name) == ("gguf", "llama", "One layer")
    assert (text.bos_token, text.eos_token, text.eos_token_ids) == ("<s>", "</s>", (1,))
    assert text.chat_template == "{{ messages }}"
    assert text.gguf_vocab is not None
    assert text.gguf_vocab["tokenizer.ggml.tokens"] == ["<s>", "</s>", "a", "b"]
    assert "tokenizer.chat_template" not in text.gguf_vocab
    assert text.generation_defaults == {}


def test_gguf_end_tokens_are_collected(gguf_with: GgufWith) -> None:
    path = gguf_with(
        entries={
            "tokenizer.ggml.eot_token_id": (gb.UINT32, 3),
            "tokenizer.ggml.eom_token_id": (gb.UINT32, 1),
            "tokenizer.ggml.bos_token_id": (gb.UINT32, 2**32 - 1),
        }
    )
    text = read_text_metadata(path)
    assert text.eos_token_ids == (1, 3)
    assert text.bos_token is None


def test_gguf_without_extras(gguf_with: GgufWith) -> None:
    keys = ("general.name", "tokenizer.chat_template", "tokenizer.ggml.eos_token_id")
    text = read_text_metadata(gguf_with(entries=dict.fromkeys(keys)))
    assert text.name == "model"
    assert text.chat_template is None
    assert (text.eos_token, text.eos_token_ids) == (None, ())


@pytest.mark.parametrize(
    ("model", "pre", "stated", "expected"),
    [
        ("gpt2", "smollm", None, False),
        ("gpt2", "llama-bpe", None, True),
        ("gpt2", "llama-bpe", False, False),
        ("gpt2", "smollm", True, True),
        ("llama", "default", None, True),
    ],
)
def test_gguf_begin_token(
    gguf_with: GgufWith, model: str, pre: str, stated: bool | None, expected: bool
) -> None:
    entries: dict[str, tuple[int, object] | None] = {
        "tokenizer.ggml.model": (gb.STRING, model),
        "tokenizer.ggml.pre": (gb.STRING, pre),
        "tokenizer.ggml.add_bos_token": None if stated is None else (gb.BOOL, stated),
    }
    assert read_text_metadata(gguf_with(entries=entries)).add_bos is expected


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("tokenizer.ggml.tokens", None, "tokens is missing"),
        ("tokenizer.ggml.tokens", (gb.ARRAY, (gb.INT32, [1])), "it must be a list of strings"),
        (
            "tokenizer.ggml.eos_token_id",
            (gb.UINT32, 4),
            "is 4: it lies outside .* of 4",
        ),
        ("tokenizer.ggml.eos_token_id", (gb.INT32, -1), "is -1: it lies outside"),
        ("tokenizer.ggml.add_bos_token", (gb.UINT32, 1), "must be true or false"),
        ("tokenizer.chat_template", (gb.UINT32, 1), "is 1: it must be a string"),
    ],
)
def test_gguf_damage(
    gguf_with: GgufWith, key: str, value: tuple[int, object] | None, problem: str
) -> None:
    with pytest.raises(ModelFileError, match=rf"model.gguf: .*{problem}"):
        read_text_metadata(gguf_with(entries={key: value}))


def test_folder(folder: Path) -> None:
    text = read_text_metadata(folder)
    assert (text.container, text.name) == ("safetensors", "tiny")
    assert (text.bos_token, text.eos_token) == ("<|endoftext|>", "<|im_end|>")
    assert text.eos_token_ids == (2, 0)
    assert text.tokenizer_json == str(folder / "tokenizer.json")
    assert text.gguf_vocab is None
    assert text.chat_template == CHATML_TEMPLATE


def test_the_newer_template_files_win(folder: Path) -> None:
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "from json"}))
    assert read_text_metadata(folder).chat_template == "from json"
    (folder / "chat_template.jinja").write_text("from jinja")
    assert read_text_metadata(folder).chat_template == "from jinja"


def test_named_templates(folder: Path) -> None:
    config = folder / "tokenizer_config.json"
    named = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    _change(config, chat_template=named)
    assert read_text_metadata(folder).chat_template == "D"
    _change(config, chat_template=named[:1])
    assert read_text_metadata(folder).chat_template == "R"
    _change(config, chat_template="REMOVED")
    assert read_text_metadata(folder).chat_template is None


@pytest.mark.parametrize("template", [3, {"a": "b"}, [1], [{"name": "x"}]])
def test_a_damaged_template(folder: Path, template: object) -> None:
    _change(folder / "tokenizer_config.json", chat_template=template)
    with pytest.raises(ModelFileError, match=r"tokenizer_config.json: chat_template must be"):
        read_text_metadata(folder)


def test_a_template_file_that_is_not_text(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xff")
    with pytest.raises(ModelFileError, match=r"chat_template.jinja: is not valid UTF-8"):
        read_text_metadata(folder)


def test_generation_defaults(folder: Path) -> None:
    path = folder / "generation_config.json"
    _change(path, temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.05, max_length=9)
    expected = {"temperature": 0.7, "top_k": 20.0, "top_p": 0.8, "repetition_penalty": 1.05}
    assert read_text_metadata(folder).generation_defaults == expected
    _change(path, do_sample=True, temperature=0, min_p=0.1)
    assert read_text_metadata(folder).generation_defaults == expected | {
        "temperature": 0.0,
        "min_p": 0.1,
    }
    _change(path, do_sample=False)
    assert read_text_metadata(folder).generation_defaults == {}


@pytest.mark.parametrize("value", ["0.7", True, False, -1, [0.5]])
def test_a_damaged_generation_default(folder: Path, value: object) -> None:
    _change(folder / "generation_config.json", temperature=value)
    with pytest.raises(ModelFileError, match=r"generation_config.json: temperature is "):
        read_text_metadata(folder)


def test_end_tokens_of_both_files(folder: Path) -> None:
    _change(folder / "generation_config.json", eos_token_id=5)
    _change(folder / "config.json", eos_token_id=[5, 7])
    assert read_text_metadata(folder).eos_token_ids == (5, 7)
    (folder / "generation_config.json").unlink()
    assert read_text_metadata(folder).eos_token_ids == (5, 7)
    _change(folder / "config.json", eos_token_id="two")
    with pytest.raises(ModelFileError, match=r"config.json: eos_token_id is 'two'"):
        read_text_metadata(folder)


def test_special_tokens_in_their_other_spellings(folder: Path) -> None:
    config = folder / "tokenizer_config.json"
    _change(config, bos_token={"content": "<b>", "lstrip": False}, eos_token=None)
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "<e>"}}')
    text = read_text_metadata(folder)
    assert (text.bos_token, text.eos_token) == ("<b>", "<e>")


def _template_processing(token: str) -> dict[str, Any]:
    single = [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A"}}]
    return {"type": "TemplateProcessing", "single": single}


@pytest.mark.parametrize(
    ("processor", "stated", "expected"),
    [
        (None, "REMOVED", False),
        (_template_processing("<|endoftext|>"), "REMOVED", True),
        (_template_processing("<|other|>"), "REMOVED", False),
        (
            {"processors": [{"type": "ByteLevel"}, _template_processing("<|endoftext|>")]},
            None,
            True,
        ),
        (_template_processing("<|endoftext|>"), False, False),
        (None, True, True),
    ],
)
def test_folder_begin_token(
    folder: Path, processor: object, stated: object, expected: bool
) -> None:
    _change(folder / "tokenizer.json", post_processor=processor)
    _change(folder / "tokenizer_config.json", add_bos_token=stated)
    assert read_text_metadata(folder).add_bos is expected


def test_a_folder_without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match=r"tokenizer.json: there is no such file"):
        read_text_metadata(folder)
    (folder / "tokenizer.json").mkdir()
    with pytest.raises(ModelFileError, match=r"tokenizer.json: is not a regular file"):
        read_text_metadata(folder)
