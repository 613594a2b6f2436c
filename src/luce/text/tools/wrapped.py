"""Tags around calls of any other syntax: `<tool_code>`, `<function_call>`, `<function>`."""

from __future__ import annotations

from luce.text.tools.named_call import NameForm
from luce.text.tools.syntax import ToolSyntax, Wrapper

_NAMES = ("tool_code", "function_call", "function")
_CALL = NameForm(starts=("(", "{"))

WRAPPED = ToolSyntax(
    "wrapped",
    wrappers=tuple(Wrapper(f"<{name}>", named=_CALL) for name in _NAMES),
    closers=tuple(f"</{name}>" for name in _NAMES),
)
