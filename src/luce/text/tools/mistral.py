"""`[TOOL_CALLS]`: a JSON list of calls in older models, `f[ARGS]{...}` in newer ones."""

from __future__ import annotations

import re

from luce.text.tools.named_call import NameForm
from luce.text.tools.syntax import ToolSyntax, Wrapper

_HEAD = re.compile(r"\s*(?P<name>[\w.:\-/]+)\s*(?:\[CALL_ID\]\s*[\w\-]+\s*)?(?:\[ARGS\]\s*)?")

MISTRAL = ToolSyntax(
    "mistral",
    wrappers=(
        Wrapper(
            "[TOOL_CALLS]",
            named=NameForm(starts=("{",), head=_HEAD, is_strict=False),
            in_reasoning=True,
        ),
    ),
    control_texts=("[ARGS]", "[CALL_ID]"),
)
