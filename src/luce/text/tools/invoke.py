"""`<invoke name="f"><parameter name="k">v</parameter></invoke>`, and DeepSeek's dialect of it.

DeepSeek (DSML, from V3.2 on) writes `｜DSML｜` in front of every tag name and says with
`string="true|false"` whether a value is a string or JSON.
"""

from __future__ import annotations

from functools import partial

from luce.text.tools.call_form import CallForm
from luce.text.tools.syntax import ToolSyntax, Wrapper
from luce.text.tools.tagged_call import TagForm, TaggedCall
from luce.text.tools.text_arguments import TextArguments

_BLOCKS = ("function_calls", "tool_calls")


def _syntax(
    name: str, prefix: str, control_texts: tuple[str, ...] = (), block: str = _BLOCKS[0]
) -> ToolSyntax:
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
        form=_call_form(prefix, block, (form.parameter_open, form.parameter_close, *form.outer)),
    )


def _call_form(prefix: str, block: str, tags: tuple[str, ...]) -> CallForm:
    says_type = bool(prefix)
    return CallForm(
        trigger=f"<{prefix}{block}>",
        before_name=f'<{prefix}invoke name="',
        after_name='">\n',
        end=f"</{prefix}invoke>\n",
        opening=f"<{prefix}{block}>\n",
        closing=f"</{prefix}{block}>",
        arguments=TextArguments(
            f'<{prefix}parameter name="',
            '"' if says_type else '">',
            f"</{prefix}parameter>\n",
            tags,
            as_text=' string="true">' if says_type else "",
            as_json=' string="false">' if says_type else "",
        ),
    )


INVOKE = _syntax("invoke", "")
DSML = _syntax("dsml", "｜DSML｜", ("｜DSML｜",), _BLOCKS[1])
DSML_V32 = _syntax("dsml", "｜DSML｜", ("｜DSML｜",))
