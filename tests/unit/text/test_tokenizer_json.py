"""Tokenizers from tokenizer.json files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.models.llama.tokenization_llama import LlamaTokenizer

from luce.errors import ModelFileError
from luce.testing.tiny_tokenizer import IM_END_ID, IM_START_ID, NUM_TOKENS, tokenizer_json
from luce.text.detokenizer import Detokenizer
from luce.text.tokenizer import Tokenizer
from luce.text.tokenizer_json import load_tokenizer


def save(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def added(index: int, content: str, **flags: bool) -> dict[str, Any]:
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": index, "content": content, **{name: flags.get(name, False) for name in names}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    content = tokenizer_json("qwen2")
    content["added_tokens"] += [added(NUM_TOKENS, "<think>"), added(NUM_TOKENS + 1, "<|x|>")]
    content["added_tokens"][-1]["special"] = True
    return save(tmp_path, content)


@pytest.fixture
def tokenizer(path: Path) -> Tokenizer:
    return load_tokenizer(path)


def test_special_tokens_are_control_and_the_others_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_ids == {0, 1, 2, NUM_TOKENS + 1}
    assert tokenizer.vocab_size == NUM_TOKENS + 2
    assert tokenizer.control_id("<|x|>") == NUM_TOKENS + 1
    assert tokenizer.control_id("<think>") is None
    assert tokenizer.token_bytes(NUM_TOKENS) == b"<think>"
    assert tokenizer.token_bytes(IM_END_ID) == b"<|im_end|>"


def test_plain_text_does_not_reach_special_tokens(tokenizer: Tokenizer) -> None:
    text = "a<|im_end|><|x|><think>"
    ids = tokenizer.encode(text)
    assert not tokenizer.special_ids.intersection(ids)
    assert NUM_TOKENS in ids
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text


def test_rendered_text_encodes_as_the_library_does(path: Path, tokenizer: Tokenizer) -> None:
    rendered = "<|im_start|>user\nWhat is the capital?<|x|><think>é<|im_end|>\n"
    library = tokenizers.Tokenizer.from_file(str(path))
    assert tokenizer.encode_with_specials(rendered) == library.encode(rendered).ids


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json("smollm")))
    backend.enable_truncation(3)
    backend.enable_padding(length=20)
    tokenizer = load_tokenizer(save(tmp_path, json.loads(backend.to_str())))
    assert len(tokenizer.encode("xyzxyz")) == 6


def test_white_space_beside_markup(tmp_path: Path) -> None:
    content = tokenizer_json("smollm")
    content["added_tokens"][IM_START_ID]["rstrip"] = True
    content["added_tokens"][IM_END_ID]["lstrip"] = True
    path = save(tmp_path, content)
    rendered = "a <|im_start|> \n b <|im_end|> c"
    library = tokenizers.Tokenizer.from_file(str(path))
    assert load_tokenizer(path).encode_with_specials(rendered) == library.encode(rendered).ids


class TestMetaspace:
    """Llama 2's kind, where only the beginning of a text gets a space."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        pieces += ["▁", *"abh", "▁a", "ab", "▁ab"]
        merges = [("▁", "a"), ("a", "b"), ("▁", "ab"), ("▁a", "b")]
        vocab = {piece: index for index, piece in enumerate(pieces)}
        backend: Any = LlamaTokenizer(vocab=vocab, merges=merges)._tokenizer
        backend.add_special_tokens(["<unk>", "<s>", "</s>"])
        path = tmp_path / "tokenizer.json"
        backend.save(str(path))
        return path

    @given(
        parts=st.lists(
            st.sampled_from(["<s>", "</s>", "ab", " ", "a", "é", "h\n"]), min_size=1, max_size=8
        )
    )
    @settings(
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        max_examples=50,
    )
    def test_rendered_text_encodes_as_the_library_does(self, path: Path, parts: list[str]) -> None:
        rendered = "".join(parts)
        library = tokenizers.Tokenizer.from_file(str(path))
        expected = library.encode(rendered, add_special_tokens=False).ids
        assert load_tokenizer(path).encode_with_specials(rendered) == expected

    def test_text_comes_back_without_the_space(self, path: Path) -> None:
        tokenizer = load_tokenizer(path)
        assert tokenizer.leading_space
        assert Detokenizer(tokenizer).feed(tokenizer.encode("ab aé\n")) == "ab aé\n"


class TestDamage:
    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(ModelFileError, match=r"tokenizer\.json: there is no such file"):
            load_tokenizer(tmp_path / "tokenizer.json")

    @pytest.mark.parametrize("content", ["{", "[]", '{"model": 1}', '{"version": "1.0"}'])
    def test_not_a_tokenizer(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "tokenizer.json"
        path.write_text(content)
        with pytest.raises(ModelFileError, match=r"tokenizer\.json: not a tokenizer"):
            load_tokenizer(path)

    def test_files_that_are_not_even_opened(self, tmp_path: Path) -> None:
        path = tmp_path / "tokenizer.json"
        path.touch()
        with pytest.raises(ModelFileError, match=r"tokenizer\.json: the file is empty"):
            load_tokenizer(path)
        with path.open("wb") as stream:
            stream.truncate(1 << 30)
        with pytest.raises(ModelFileError, match=r"has 1073741824 bytes, more than the 67108864"):
            load_tokenizer(path)
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(ModelFileError, match=r"tokenizer\.json: is not a regular file"):
            load_tokenizer(path)

    def test_a_file_that_is_not_text(self, tmp_path: Path) -> None:
        path = tmp_path / "tokenizer.json"
        path.write_bytes(bytes(range(256)))
        with pytest.raises(ModelFileError, match="not a tokenizer"):
            load_tokenizer(path)

    @pytest.mark.parametrize("decoder", [None, {"type": "BPEDecoder", "suffix": "</w>"}])
    def test_a_decoder_we_do_not_serve(self, tmp_path: Path, decoder: Any) -> None:
        content = {**tokenizer_json("smollm"), "decoder": decoder}
        with pytest.raises(ModelFileError, match="neither ByteLevel nor SentencePiece"):
            load_tokenizer(save(tmp_path, content))
