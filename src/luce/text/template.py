"""ChatTemplate: the model's own Jinja template, from messages to the prompt's text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2

from luce.errors import ModelFileError, TemplateError
from luce.text.message_forms import Message, fallback_forms
from luce.text.sandbox import (
    MAX_RENDERED_CHARS,
    BudgetExhausted,
    compile_template,
    fresh_budget,
    make_environment,
)

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""For models with ChatML's tokens whose file holds no template."""


class ChatTemplate:
    """A compiled chat template. Immutable and safe to share between threads.

    A plain conversation renders byte for byte as transformers' `apply_chat_template`. One that
    the template refuses is tried in the forms of `message_forms`.

    Args:
        source: the Jinja source.
        bos_token: text of the begin token, as the variable `bos_token`; None leaves it undefined.
        eos_token: the same of the end token.
        origin: where the source is from, for error messages.
        now: local time.

    Raises:
        ModelFileError: the source has a syntax error; the message names the line.
    """

    def __init__(
        self,
        source: str,
        bos_token: str | None = None,
        eos_token: str | None = None,
        *,
        origin: str = "chat template",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        try:
            self._template = compile_template(make_environment(now), source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelFileError(
                f"{origin}: syntax error on line {error.lineno}: {error.message}"
            ) from error
        except (RecursionError, SyntaxError) as error:
            raise ModelFileError(f"{origin}: nested too deeply: {error}") from error
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._tokens = {name: text for name, text in tokens.items() if text is not None}

    def render(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        """Render a conversation, with the opening of the assistant's turn at the end.

        Args:
            messages: dicts with `role`, `content` and whatever else the template reads.
            variables: further variables (`tools`, `enable_thinking`, ...); they win over the
                defaults, `messages` excepted.

        Raises:
            TemplateError: the template refuses the messages in every form; the message is what
                it says about the client's own form.
        """
        try:
            return self._render_form(messages, variables)
        except TemplateError as refusal:
            if isinstance(refusal.__cause__, BudgetExhausted):
                raise
            return self._render_fallback(messages, variables, refusal)

    def _render_fallback(
        self, messages: Sequence[Message], variables: Mapping[str, Any], refusal: TemplateError
    ) -> str:
        for form in fallback_forms(messages):
            try:
                return self._render_form(form, variables)
            except TemplateError:
                continue
        raise refusal

    def _render_form(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        context = {
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
            **self._tokens,
            **variables,
            "messages": messages,
        }
        try:
            with fresh_budget():
                return self._collect(context)
        except jinja2.TemplateError as error:
            raise TemplateError(_in_words(error), param="messages") from error
        except Exception as error:  # a template can fail in any way Python can
            raise TemplateError(_in_words(error), param="messages") from error

    def _collect(self, context: dict[str, Any]) -> str:
        parts: list[str] = []
        length = 0
        for part in self._template.generate(context):
            parts.append(part)
            length += len(part)
            if length > MAX_RENDERED_CHARS:
                raise BudgetExhausted(f"The prompt is longer than {MAX_RENDERED_CHARS} characters")
        return "".join(parts)


def _in_words(error: Exception) -> str:
    """What the template says about the messages, or what broke in it."""
    if type(error) in (jinja2.TemplateError, BudgetExhausted) and str(error):
        return str(error)
    return f"The chat template failed: {type(error).__name__}: {error}"
