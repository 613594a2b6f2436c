"""`<tool_call>{"name": "f", "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3, and many.

The tag is shared with Qwen's XML and GLM's pairs; what stands in it decides.
"""

from __future__ import annotations

from luce.text.tools.arg_pairs import CALL_CLOSE, KEY_OPEN
from luce.text.tools.call_form import CallForm
from luce.text.tools.named_call import NameForm
from luce.text.tools.syntax import ToolSyntax, Wrapper
from luce.text.tools.text_arguments import TextArguments

_PAIR_TAGS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

TOOL_CALL = Wrapper(
    "<tool_call>",
    named=NameForm(starts=("{", "(", KEY_OPEN), ends=(CALL_CLOSE,)),
    in_reasoning=True,
)

HERMES = ToolSyntax(
    "hermes",
    wrappers=(TOOL_CALL,),
    closers=(CALL_CLOSE,),
    form=CallForm(
        trigger="<tool_call>",
        before_name='<tool_call>\n{"name": ',
        after_name=', "arguments": ',
        end="}\n</tool_call>",
        between="\n",
        quotes_name=True,
    ),
)
GLM = ToolSyntax(
    "glm",
    wrappers=(TOOL_CALL,),
    closers=(CALL_CLOSE,),
    control_texts=_PAIR_TAGS,
    form=CallForm(
        trigger="<tool_call>",
        before_name="<tool_call>",
        after_name="\n",
        end="</tool_call>",
        between="\n",
        arguments=TextArguments(
            "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", (*_PAIR_TAGS, CALL_CLOSE)
        ),
    ),
)
