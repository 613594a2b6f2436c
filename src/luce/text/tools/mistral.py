"""`[TOOL_CALLS]`: a JSON list of calls in older models, `f[ARGS]{...}` in newer ones."""

from __future__ import annotations

import re
from dataclasses import replace

from luce.text.tools.call_form import CallForm
from luce.text.tools.named_call import NameForm
from luce.text.tools.syntax import ToolSyntax, Wrapper

_OPENER = "[TOOL_CALLS]"
_HEAD = re.compile(r"\s*(?P<name>[\w.:\-/]+)\s*(?:\[CALL_ID\]\s*[\w\-]+\s*)?(?:\[ARGS\]\s*)?")

MISTRAL = ToolSyntax(
    "mistral",
    wrappers=(
        Wrapper(
            _OPENER,
            named=NameForm(starts=("{",), head=_HEAD, is_strict=False),
            in_reasoning=True,
        ),
    ),
    control_texts=("[ARGS]", "[CALL_ID]"),
    form=CallForm(
        trigger=_OPENER,
        before_name='{"name": ',
        after_name=', "arguments": ',
        end="}",
        between=", ",
        opening=f"{_OPENER} [",
        closing="]",
        quotes_name=True,
    ),
)
MISTRAL_ARGS = replace(
    MISTRAL,
    form=CallForm(trigger=_OPENER, before_name=_OPENER, after_name="[ARGS]", end=""),
)
