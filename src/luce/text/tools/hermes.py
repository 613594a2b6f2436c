"""`<tool_call>{"name": "f", "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3, and many.

The tag is shared with Qwen's XML and GLM's pairs; what stands in it decides.
"""

from __future__ import annotations

from luce.text.tools.arg_pairs import CALL_CLOSE, KEY_OPEN
from luce.text.tools.named_call import NameForm
from luce.text.tools.syntax import ToolSyntax, Wrapper

TOOL_CALL = Wrapper(
    "<tool_call>",
    named=NameForm(starts=("{", "(", KEY_OPEN), ends=(CALL_CLOSE,)),
    in_reasoning=True,
)

HERMES = ToolSyntax("hermes", wrappers=(TOOL_CALL,), closers=(CALL_CLOSE,))
GLM = ToolSyntax(
    "glm",
    wrappers=(TOOL_CALL,),
    closers=(CALL_CLOSE,),
    control_texts=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
