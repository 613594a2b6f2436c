"""Llama 3: a bare JSON object with `parameters`, or the same behind `<|python_tag|>`.

Several stand one after the other, with semicolons between. The bare form is everybody's
fallback, see `bare_json`.
"""

from __future__ import annotations

from luce.text.tools.call_form import CallForm
from luce.text.tools.named_call import NameForm
from luce.text.tools.syntax import ToolSyntax, Wrapper

LLAMA3 = ToolSyntax(
    "llama3",
    wrappers=(Wrapper("<|python_tag|>", named=NameForm(starts=("(", "{")), in_reasoning=True),),
    form=CallForm(trigger="", before_name="", after_name="", end="", between="; "),
)
