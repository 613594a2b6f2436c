"""`<invoke name="f"><parameter name="k">v</parameter></invoke>`, and DeepSeek's dialect of it.

DeepSeek (DSML, from V3.2 on) writes `｜DSML｜` in front of every tag name and says with
`string="true|false"` whether a value is a string or JSON.
"""

from __future__ import annotations

from functools import partial

from luce.text.tools.syntax import ToolSyntax, Wrapper
from luce.text.tools.tagged_call import TagForm, TaggedCall

_BLOCKS = ("function_calls", "tool_calls")


def _syntax(name: str, prefix: str, control_texts: tuple[str, ...] = ()) -> ToolSyntax:
    openers = tuple(f"<{prefix}{block}>" for block in _BLOCKS)
    closers = tuple(f"</{prefix}{block}>" for block in _BLOCKS)
    invoke = f"<{prefix}invoke "
    form = TagForm(
        f"<{prefix}parameter ",
        f"</{prefix}parameter>",
        f"</{prefix}invoke>",
        (*closers, invoke),
        has_attributes=True,
    )
    return ToolSyntax(
        name,
        wrappers=tuple(Wrapper(opener, takes_json=False, in_reasoning=True) for opener in openers),
        closers=(*closers, form.call_close),
        elements={invoke: partial(TaggedCall, form=form)},
        control_texts=control_texts,
    )


INVOKE = _syntax("invoke", "")
DSML = _syntax("dsml", "｜DSML｜", ("｜DSML｜",))
