"""Which chat template a model is served with."""

from __future__ import annotations

import logging
from pathlib import Path

from luce.errors import ModelFileError
from luce.loaders.checkpoint import TextMetadata
from luce.loaders.template_file import read_template_file
from luce.text.template import CHATML_TEMPLATE, ChatTemplate
from luce.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


def template_source(
    meta: TextMetadata, tokenizer: Tokenizer, path: Path, chat_template_file: Path | None
) -> tuple[str, str]:
    """The template to use, and where it is from, for messages.

    Args:
        meta: of the model.
        tokenizer: of the model; one that knows ChatML's tokens may do without a template.
        path: the model, for messages.
        chat_template_file: wins over the model's own, unless it is empty.

    Raises:
        ModelFileError: the file cannot be read, or there is no template.
    """
    source, origin = meta.chat_template, f"{path}: chat template"
    given = None if chat_template_file is None else _read_template(chat_template_file)
    if given is not None:
        source, origin = given, str(chat_template_file)
    elif source is None and tokenizer.control_id("<|im_start|>") is not None:
        source = CHATML_TEMPLATE
    if source is None:
        raise ModelFileError(
            f"{path}: the model has no chat template; give one with --chat-template-file"
        )
    return source, origin


def check_template_file(path: Path) -> None:
    """See that a template could be used, whatever the model.

    Raises:
        ModelFileError: the file cannot be read, or has a syntax error.
    """
    ChatTemplate(read_template_file(path, may_be_empty=True), origin=str(path))


def _read_template(path: Path) -> str | None:
    source = read_template_file(path, may_be_empty=True)
    if not source.strip():
        _log.warning(
            "chat template file is empty, using the model's own", extra={"path": str(path)}
        )
        return None
    return source
