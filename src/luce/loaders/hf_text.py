"""What the listener needs of a Hugging Face folder: template, end tokens, defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from luce.errors import ModelFileError
from luce.loaders.checkpoint import TextMetadata
from luce.loaders.hf_hparams import text_keys
from luce.loaders.hparams import HParams
from luce.loaders.json_file import MAX_JSON_BYTES, read_json_object, read_optional_json_object
from luce.loaders.keys import Keys
from luce.loaders.mapped import MappedFile, check_is_file
from luce.loaders.template_file import read_template_file

_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_POST_PROCESSOR = b'"post_processor"'
_POST_PROCESSOR_BYTES = 1 << 16


def hf_text_metadata(folder: Path, config: dict[str, Any], hparams: HParams) -> TextMetadata:
    """Gather a folder's text metadata.

    Raises:
        ModelFileError: tokenizer.json is missing, or a file is damaged.
    """
    tokenizer = folder / "tokenizer.json"
    check_is_file(tokenizer, limit=MAX_JSON_BYTES)
    settings = read_optional_json_object(folder / "tokenizer_config.json")
    special = read_optional_json_object(folder / "special_tokens_map.json")
    generation_path = folder / "generation_config.json"
    generation = read_optional_json_object(generation_path)
    bos_token = _token_text(settings, special, "bos_token")
    return TextMetadata(
        container="safetensors",
        architecture=hparams.architecture,
        name=folder.resolve().name,
        context_length=hparams.context_length,
        vocab_size=hparams.vocab_size,
        chat_template=_chat_template(folder, settings),
        eos_token_ids=_eos_token_ids(folder, generation, {**text_keys(config), **config}),
        bos_token=bos_token,
        eos_token=_token_text(settings, special, "eos_token"),
        add_bos=_adds_bos(tokenizer, settings, bos_token),
        tokenizer_json=str(tokenizer),
        generation_defaults=_generation_defaults(generation, generation_path),
    )


def _token_text(settings: dict[str, Any], special: dict[str, Any], key: str) -> str | None:
    """A special token's text; both files write it plainly or as `{"content": ...}`."""
    for values in (settings, special):
        value = values.get(key)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str) and value:
            return value
    return None


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    """The folder's chat template: the newer files win over tokenizer_config.json."""
    jinja = folder / "chat_template.jinja"
    if jinja.exists():
        return read_template_file(jinja)
    json_path = folder / "chat_template.json"
    source = json_path if json_path.exists() else folder / "tokenizer_config.json"
    if json_path.exists():
        settings = read_json_object(json_path)
    return _default_template(settings.get("chat_template"), source)


def _default_template(value: Any, source: Path) -> str | None:
    """One template, or the one named "default" (else the first) of a list of named ones."""
    if value is None or isinstance(value, str):
        return value
    templates: dict[str, str] = {}
    for item in value if isinstance(value, list) else [value]:
        named = item if isinstance(item, dict) else {}
        name, template = named.get("name"), named.get("template")
        if not isinstance(name, str) or not isinstance(template, str):
            raise ModelFileError(
                f"{source}: chat_template must be a string or a list of name and template"
            )
        templates[name] = template
    return templates.get("default", next(iter(templates.values()), None))


def _eos_token_ids(
    folder: Path, generation: dict[str, Any], config: dict[str, Any]
) -> tuple[int, ...]:
    """End tokens of generation_config.json, then those only config.json names."""
    found: dict[int, None] = {}
    for values, name in ((generation, "generation_config.json"), (config, "config.json")):
        value = values.get("eos_token_id")
        items = value if isinstance(value, list) else [] if value is None else [value]
        for item in items:
            if not isinstance(item, int) or isinstance(item, bool) or item < 0:
                raise ModelFileError(
                    f"{folder / name}: eos_token_id is {value!r:.80}: it must be a token id or a "
                    "list of them"
                )
            found.setdefault(item)
    return tuple(found)


def _generation_defaults(generation: dict[str, Any], path: Path) -> dict[str, float]:
    if generation.get("do_sample") is False:
        return {}
    keys = Keys(path, generation)
    # 0 is a legal "off" for some of these, which `number` would refuse.
    return {
        key: 0.0
        if generation[key] in (0, 0.0) and generation[key] is not False
        else keys.number(key)
        for key in _DEFAULTS
        if generation.get(key) is not None
    }


def _adds_bos(tokenizer: Path, settings: dict[str, Any], bos_token: str | None) -> bool:
    """Whether encoding puts the begin token first: said outright, or by the post-processor."""
    stated = settings.get("add_bos_token")
    if isinstance(stated, bool):
        return stated
    return bos_token is not None and bos_token in _leading_tokens(_post_processor(tokenizer))


def _post_processor(tokenizer: Path) -> Any:
    """The post-processor of a tokenizer.json, without parsing its vocabulary of many megabytes.

    Writers put it before the vocabulary; what cannot be found or parsed counts as none, and the
    tokenizer itself is validated when it is built.
    """
    file = MappedFile(tokenizer)
    try:
        start = file.data.find(_POST_PROCESSOR)
        if start < 0:
            return None
        window = file.data[start + len(_POST_PROCESSOR) : start + _POST_PROCESSOR_BYTES]
    finally:
        file.close()
    text = window.decode("utf-8", errors="replace").lstrip(" \t\r\n:")
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None


def _leading_tokens(processor: Any) -> set[str]:
    """Special tokens that a `TemplateProcessing`, alone or in a sequence, puts first."""
    if not isinstance(processor, dict):
        return set()
    parts = processor.get("processors")
    found: set[str] = set()
    for part in [processor, *(parts if isinstance(parts, list) else [])]:
        single = part.get("single") if isinstance(part, dict) else None
        first = single[0] if isinstance(single, list) and single else None
        token = first.get("SpecialToken") if isinstance(first, dict) else None
        if isinstance(token, dict) and isinstance(token.get("id"), str):
            found.add(token["id"])
    return found
