"""What the listener needs of a GGUF model: vocabulary, template, end tokens."""

from __future__ import annotations

from typing import Any

from luce.errors import ModelFileError
from luce.loaders.checkpoint import TextMetadata
from luce.loaders.gguf_split import GgufModel
from luce.loaders.hparams import HParams

_PREFIX = "tokenizer.ggml."
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Splits whose models begin with the begin token although the file does not say so.
# Source: llama.cpp's vocabulary loader.
_PRES_WITH_BOS = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral"})


def gguf_text_metadata(model: GgufModel, hparams: HParams) -> TextMetadata:
    """Gather a GGUF model's text metadata; nothing in it refers to the map.

    Raises:
        ModelFileError: the vocabulary is missing, or a token id lies outside of it.
    """
    metadata = model.metadata
    vocab = {key: metadata[key] for key in metadata if key.startswith(_PREFIX)}
    tokens = vocab.get(f"{_PREFIX}tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise ModelFileError(f"{model.path}: {_PREFIX}tokens, the vocabulary, is missing")
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ModelFileError(f"{model.path}: tokenizer.chat_template is not a string")
    end_ids = [_token_id(model, vocab, key, len(tokens)) for key in _END_KEYS]
    bos_id = _token_id(model, vocab, "bos_token_id", len(tokens))
    return TextMetadata(
        container="gguf",
        architecture=hparams.architecture,
        name=gguf_name(model),
        context_length=hparams.context_length,
        vocab_size=hparams.vocab_size,
        chat_template=template,
        eos_token_ids=tuple(dict.fromkeys(index for index in end_ids if index is not None)),
        bos_token=None if bos_id is None else tokens[bos_id],
        eos_token=None if end_ids[0] is None else tokens[end_ids[0]],
        add_bos=_adds_bos(model, vocab),
        gguf_vocab=vocab,
    )


def gguf_name(model: GgufModel) -> str:
    """The model's name by its metadata, or the file's stem."""
    name = model.metadata.get("general.name")
    return name if isinstance(name, str) and name.strip() else model.path.stem


def _token_id(model: GgufModel, vocab: dict[str, Any], key: str, num_tokens: int) -> int | None:
    value = vocab.get(_PREFIX + key)
    # Converters write 2^32 - 1 for "none".
    if value is None or value == 0xFFFFFFFF:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < num_tokens:
        raise ModelFileError(
            f"{model.path}: {_PREFIX}{key} is {value!r:.80}, outside the vocabulary of "
            f"{num_tokens} tokens"
        )
    return value


def _adds_bos(model: GgufModel, vocab: dict[str, Any]) -> bool:
    stated = vocab.get(f"{_PREFIX}add_bos_token")
    if stated is None:
        is_sentence_piece = vocab.get(f"{_PREFIX}model") == "llama"
        return is_sentence_piece or vocab.get(f"{_PREFIX}pre") in _PRES_WITH_BOS
    if not isinstance(stated, bool):
        raise ModelFileError(
            f"{model.path}: {_PREFIX}add_bos_token is {stated!r:.80}: it must be true or false"
        )
    return stated
