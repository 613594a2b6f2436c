"""`<function=f><parameter=k>v</parameter></function>`, mostly inside `<tool_call>`: Qwen Coder,
Qwen 3.5 and later; `<function=f>{...}</function>`: Llama 3's own; and the slips of both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial

from luce.text.tools.call_form import CallForm
from luce.text.tools.element import CallSink
from luce.text.tools.hermes import TOOL_CALL
from luce.text.tools.syntax import ElementFactory, ToolSyntax
from luce.text.tools.tagged_call import TagForm, TaggedCall
from luce.text.tools.text_arguments import TextArguments

_WORD = re.compile(r"[\w.\-]+")

FUNCTION_CLOSE = "</function>"

_OUTER = ("</tool_call>", "</function_call>", "<tool_call>", "<function=")
_PLAIN = TagForm("<parameter=", "</parameter>", FUNCTION_CLOSE, _OUTER)
_QUOTED = TagForm("<parameter name=", "</parameter>", FUNCTION_CLOSE, _OUTER)
_NAME_IN_TAGS = TagForm(
    "<parameter=", "</parameter>", FUNCTION_CLOSE, _OUTER, head_ends=("</funcname>", "\n")
)

QWEN_XML = ToolSyntax(
    "qwen_xml",
    wrappers=(TOOL_CALL,),
    closers=("</tool_call>", FUNCTION_CLOSE),
    elements={"<function=": partial(TaggedCall, form=_PLAIN)},
    control_texts=("<parameter=", "</parameter>"),
    form=CallForm(
        trigger="<tool_call>",
        before_name="<tool_call>\n<function=",
        after_name=">\n",
        end="</function>\n</tool_call>",
        between="\n",
        arguments=TextArguments(
            "<parameter=", ">\n", "\n</parameter>\n", ("<parameter=", "</parameter>", *_OUTER)
        ),
    ),
)

_SLIPS: dict[str, ElementFactory] = {
    "<function ": partial(TaggedCall, form=_PLAIN),
    "<function name=": partial(TaggedCall, form=_QUOTED),
    "<parameter name=": partial(TaggedCall, form=_PLAIN),
    "<funcname>": partial(TaggedCall, form=_NAME_IN_TAGS),
}


def slips(names: Iterable[str]) -> dict[str, ElementFactory]:
    """Openings that models write by mistake; `<f>` is one only if a parameter follows.

    Args:
        names: the declared tools; those that are no plain words are left out.
    """
    words = filter(_WORD.fullmatch, names)
    return _SLIPS | {f"<{word}>": partial(_read_named, word) for word in words}


def _read_named(name: str, sink: CallSink) -> TaggedCall:
    return TaggedCall(sink, _PLAIN, name)
