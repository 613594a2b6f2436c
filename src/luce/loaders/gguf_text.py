"""What the listener needs of a GGUF model: vocabulary, template, end tokens."""

from __future__ import annotations

from luce.errors import ModelFileError
from luce.loaders.checkpoint import TextMetadata
from luce.loaders.gguf_split import GgufModel
from luce.loaders.hparams import HParams
from luce.loaders.vocab_keys import VocabKeys

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
    keys = VocabKeys(model.path, vocab, _PREFIX)
    tokens = keys.texts("tokens")
    if not tokens:
        raise ModelFileError(f"{model.path}: {_PREFIX}tokens, the vocabulary, is empty")
    end_ids = [keys.token_id(key, len(tokens)) for key in _END_KEYS]
    bos_id = keys.token_id("bos_token_id", len(tokens))
    return TextMetadata(
        container="gguf",
        architecture=hparams.architecture,
        name=gguf_name(model),
        context_length=hparams.context_length,
        vocab_size=hparams.vocab_size,
        chat_template=VocabKeys(model.path, metadata).optional_text("tokenizer.chat_template"),
        eos_token_ids=tuple(dict.fromkeys(index for index in end_ids if index is not None)),
        bos_token=None if bos_id is None else tokens[bos_id],
        eos_token=None if end_ids[0] is None else tokens[end_ids[0]],
        add_bos=_adds_bos(keys),
        gguf_vocab=vocab,
    )


def gguf_name(model: GgufModel) -> str:
    """The model's name by its metadata, or the file's stem."""
    name = model.metadata.get("general.name")
    return name if isinstance(name, str) and name.strip() else model.path.stem


def _adds_bos(keys: VocabKeys) -> bool:
    is_sentence_piece = keys.text("model", "") == "llama"
    return keys.flag("add_bos_token", is_sentence_piece or keys.text("pre", "") in _PRES_WITH_BOS)
