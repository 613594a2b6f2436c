"""Gemma: `call:f{k:<|"|>v<|"|>}`, in Gemma 4 between `<|tool_call>` and `<tool_call|>`.

Keys have no quotes; strings stand in `<|"|>`, or in quotes of any kind where the vocabulary
lacks that token. A name may have a name space in front: `call:ns:f`.
"""

from __future__ import annotations

from luce.text.tools.call_form import CallForm
from luce.text.tools.gemma_arguments import QUOTE, gemma_arguments
from luce.text.tools.named_call import NameForm
from luce.text.tools.syntax import ToolSyntax, Wrapper

_CALL = NameForm(starts=("{",), raw_quote=QUOTE)

GEMMA = ToolSyntax(
    "gemma",
    wrappers=(
        Wrapper("<|tool_call>", named=_CALL, in_reasoning=True),
        Wrapper("call:", takes_json=False, named=_CALL),
        Wrapper("_call:", takes_json=False, named=_CALL),
    ),
    closers=("<tool_call|>",),
    control_texts=(QUOTE,),
    form=CallForm(
        trigger="<|tool_call>",
        before_name="<|tool_call>call:",
        after_name="",
        end="<tool_call|>",
        arguments=gemma_arguments,
    ),
)
