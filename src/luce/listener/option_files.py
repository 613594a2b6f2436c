"""Files that options of models name: looked at before an address is taken or a model is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from luce.config.model import ModelConfig
from luce.errors import ModelFileError
from luce.listener.startup import thinking_options
from luce.loaders.opening import model_name
from luce.text.model_card import check_cards_folder
from luce.text.template_source import check_template_file
from luce.text.thinking import ThinkingOptions, budgets_and_card


def check_option_files(models: Iterable[ModelConfig]) -> None:
    """See that templates and model cards are there and make sense.

    What loads a model reads them again; a file that changes in between is refused then.

    Raises:
        ModelFileError: one is missing or damaged, or a model of whom a card is wanted is.
        UsageError: budgets that do not go together with the model's card.
    """
    for model in models:
        _check("--chat-template-file", model.chat_template_file, check_template_file)
        _check("--model-cards", model.model_cards, check_cards_folder)
        options = thinking_options(model)
        if options != ThinkingOptions():
            budgets_and_card(model_name(model.path), "", options)


def _check(flag: str, path: Path | None, check: Callable[[Path], None]) -> None:
    if path is None:
        return
    try:
        check(path)
    except ModelFileError as error:
        raise ModelFileError(f"{flag}: {error}") from error
