"""Tokenizers from GGUF keys, against other people's builders of the same tokenizers."""

from __future__ import annotations

import inspect
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

from luce.errors import ModelFileError
from luce.testing.tiny_tokenizer import MERGES, TOKENS
from luce.text.gguf_vocab import TokenType, build_tokenizer
from luce.text.tokenizer import Tokenizer

BORDERS = "abS'tLL 0129½٣\n\r\t.,!|<é́ाñ日😀Ǆǅ_\u3000\u200d"


def ids_and_merges(vocab: dict[str, Any]) -> dict[str, Any]:
    return {
        "vocab": {text: index for index, text in enumerate(vocab["tokens"])},
        "merges": [tuple(merge.split(" ")) for merge in vocab["merges"]],
    }


def llama_3_backend(vocab: dict[str, Any]) -> Backend:
    pattern = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
    backend = Backend(models.BPE(**ids_and_merges(vocab), ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return backend


ORACLES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "llama-bpe": llama_3_backend,
    "qwen2": lambda vocab: Qwen2Tokenizer(**ids_and_merges(vocab))._tokenizer,
    "qwen35": lambda vocab: Qwen3_5Tokenizer(**ids_and_merges(vocab))._tokenizer,
}


Pair = tuple[Tokenizer, Backend]


@pytest.fixture(scope="session")
def pairs(demo_vocab: dict[str, Any]) -> dict[str, Pair]:
    """The demo vocabulary under each split, so that real merges are at work; ours and theirs."""
    return {
        pre: (build_tokenizer({**demo_vocab, "pre": pre}), oracle(demo_vocab))
        for pre, oracle in ORACLES.items()
    }


@pytest.mark.parametrize("pre", ORACLES)
@given(text=st.text(alphabet=BORDERS, max_size=80) | st.text())
def test_splits_against_the_reference(pairs: dict[str, Pair], pre: str, text: str) -> None:
    ours, oracle = pairs[pre]
    if "<|" not in text:  # the oracles read their special tokens out of plain text
        assert ours.encode(text) == oracle.encode(text).ids


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_bytes(index).decode() for index in tokenizer.encode(text)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "12345", ["1", "2", "3", "4", "5"]),
        ("qwen2", "12345", ["1", "2", "3", "4", "5"]),
        ("llama-bpe", "12345", ["123", "45"]),
        # A combining mark ends the word for Qwen 2 and belongs to it for Qwen 3.5.
        ("qwen2", "aXa", ["a", "X", "a"]),
        ("qwen35", "aXa", ["aXa"]),
    ],
)
def test_what_the_splits_keep_together(pre: str, text: str, expected: list[str]) -> None:
    text = text.replace("X", "\u0338")  # a mark that NFC composes with no letter
    expected = [piece.replace("X", "\u0338") for piece in expected]
    mark = ["Ì", "¸"]
    digits = [*"12345", "12", "123", "45"]
    letters = ["a", "aÌ", "aÌ¸", "aÌ¸a", *mark, "Ì¸"]
    merges = ["1 2", "12 3", "4 5", "Ì ¸", "a Ì¸", "aÌ¸ a"]
    tokenizer = build_tokenizer(
        {"model": "gpt2", "pre": pre, "tokens": [*digits, *letters], "merges": merges}
    )
    assert pieces(tokenizer, text) == expected


def test_qwen_normalises_and_others_do_not(tiny_vocab: dict[str, Any]) -> None:
    qwen = build_tokenizer({**tiny_vocab, "pre": "qwen2"})
    llama = build_tokenizer({**tiny_vocab, "pre": "llama-bpe"})
    assert b"".join(map(qwen.token_bytes, qwen.encode("e\u0301"))).decode() == "é"
    assert b"".join(map(llama.token_bytes, llama.encode("e\u0301"))).decode() == "e\u0301"


@pytest.fixture(scope="session")
def with_every_byte() -> dict[str, Tokenizer]:
    merges = [f"{left} {right}" for left, right in MERGES]
    vocab = {"model": "gpt2", "tokens": TOKENS, "merges": merges}
    return {
        pre: build_tokenizer({**vocab, "pre": pre}) for pre in ("smollm", "llama-bpe", "qwen35")
    }


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen35"])
@given(text=st.text(st.characters(exclude_categories=["Cs", "Cn"])))
def test_decoding_gives_the_text_back(
    with_every_byte: dict[str, Tokenizer], pre: str, text: str
) -> None:
    tokenizer = with_every_byte[pre]
    data = b"".join(map(tokenizer.token_bytes, tokenizer.encode(text)))
    assert data.decode() == (unicodedata.normalize("NFC", text) if pre == "qwen35" else text)


class TestSentencePiece:
    def test_pieces(self, spm: Tokenizer) -> None:
        assert pieces(spm, "hello world") == [" hello", " world"]
        assert pieces(spm, "hello") == [" hello"]
        assert pieces(spm, " hello") == [" ", " hello"]

    def test_bytes_for_what_is_not_in_the_vocabulary(self, spm: Tokenizer) -> None:
        ids = spm.encode("é\n")
        assert ids == [259, 3 + 0xC3, 3 + 0xA9, 3 + 0x0A]

    def test_every_text_after_markup_gets_its_space(self, spm: Tokenizer) -> None:
        assert spm.encode_with_specials("<s>hello</s>hello") == [
            1,
            *spm.encode("hello"),
            2,
            *spm.encode("hello"),
        ]

    def test_without_prefix_space(self, spm_vocab: dict[str, Any]) -> None:
        tokenizer = build_tokenizer({**spm_vocab, "add_space_prefix": False})
        assert pieces(tokenizer, "hello world") == ["hello", " world"]
        assert not tokenizer.leading_space

    def test_byte_entries_are_not_reached_by_their_names(self, spm: Tokenizer) -> None:
        assert 3 + 0x41 not in spm.encode("<0x41>")
        assert pieces(spm, "<0x41>") == [" ", *"<0x41>"]

    def test_the_unknown_token_is_markup(self, spm: Tokenizer) -> None:
        assert 0 not in spm.encode("<unk>")
        assert 0 in spm.special_ids

    @given(text=st.text(alphabet="abcdehlortw é\n日", max_size=40))
    def test_against_greedy_merging_by_score(
        self, spm: Tokenizer, spm_vocab: dict[str, Any], text: str
    ) -> None:
        assert spm.encode(text) == merge_by_score(spm_vocab, "▁" + text if text else "")

    @given(text=st.text())
    def test_decoding_gives_the_text_back(self, spm: Tokenizer, text: str) -> None:
        text = text.replace("▁", "")
        data = b"".join(map(spm.token_bytes, spm.encode(text)))
        assert data.decode().removeprefix(" ") == text

    def test_stored_merges_are_used(self, spm_vocab: dict[str, Any]) -> None:
        vocab = {**spm_vocab, "merges": ["h e", "l l"]}
        assert pieces(build_tokenizer(vocab), "hello") == [" ", "he", "ll", "o"]

    @pytest.mark.parametrize("scores", [None, [0.0]])
    def test_scores_missing_or_short(self, spm_vocab: dict[str, Any], scores: Any) -> None:
        with pytest.raises(ModelFileError, match="scores"):
            build_tokenizer({**spm_vocab, "scores": scores})


def merge_by_score(vocab: dict[str, Any], text: str) -> list[int]:
    """SentencePiece's rule: of all neighbours that join to a piece, the best scored, leftmost."""
    index = {token: i for i, token in enumerate(vocab["tokens"])}
    symbols = list(text.replace(" ", "▁"))
    while True:
        candidates = [
            (-vocab["scores"][index[first + second]], at)
            for at, (first, second) in enumerate(pairwise(symbols))
            if first + second in index
        ]
        if not candidates:
            break
        at = min(candidates)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids: list[int] = []
    for symbol in symbols:
        ids += [index[symbol]] if symbol in index else [3 + byte for byte in symbol.encode()]
    return ids


class TestTypes:
    def test_markup_typed_as_normal_is_control_all_the_same(
        self, tiny_vocab: dict[str, Any]
    ) -> None:
        tiny_vocab["token_type"] = [TokenType.NORMAL] * len(tiny_vocab["tokens"])
        del tiny_vocab["bos_token_id"], tiny_vocab["eos_token_id"]
        assert build_tokenizer(tiny_vocab).special_ids == {0, 1, 2}

    def test_named_ids_are_control(self, tiny_vocab: dict[str, Any]) -> None:
        tiny_vocab["eot_token_id"] = 5
        assert 5 in build_tokenizer(tiny_vocab).special_ids

    def test_absent_ids(self, tiny_vocab: dict[str, Any]) -> None:
        tiny_vocab["eom_token_id"] = 2**32 - 1
        assert build_tokenizer(tiny_vocab).special_ids == {0, 1, 2}

    def test_without_types(self, tiny_vocab: dict[str, Any]) -> None:
        del tiny_vocab["token_type"]
        assert build_tokenizer(tiny_vocab).special_ids == {0, 1, 2}


def test_keys_as_stored_in_the_file(tiny_vocab: dict[str, Any]) -> None:
    stored = {f"tokenizer.ggml.{key}": value for key, value in tiny_vocab.items()}
    assert build_tokenizer(stored).special_ids == {0, 1, 2}


class TestDamage:
    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"model": "bert"}, r"'bert'; supported: gpt2 .*, llama"),
            ({"model": None}, "None; supported"),
            ({"pre": "tekken"}, "'tekken'; supported: smollm, llama-bpe, .*qwen2, .*qwen35"),
            ({"pre": None}, "supported: smollm"),
            ({"tokens": None}, "tokens is missing"),
            ({"tokens": []}, r"tokens is \[\]: it needs"),
            ({"tokens": [1, 2]}, r"tokens is \[1, 2\]: it must be a list of strings"),
            ({"token_type": [1, 1]}, "token_type has 2 entries"),
            ({"merges": None}, "merges is missing"),
            ({"merges": ["ab"]}, "'ab', not two parts"),
            ({"merges": ["a "]}, "'a ', not two parts"),
            ({"merges": ["a zzz"]}, "damaged: .*zzz"),
            ({"eos_token_id": 10**6}, "eos_token_id is 1000000: it lies outside the vocabulary"),
            ({"bos_token_id": -1}, "bos_token_id is -1"),
        ],
    )
    def test_each_is_named(
        self, tiny_vocab: dict[str, Any], change: dict[str, Any], says: str
    ) -> None:
        with pytest.raises(ModelFileError, match=says):
            build_tokenizer({**tiny_vocab, **change})
