"""DeepSeek V3, R1 and V3.1: a call between `<｜tool▁call▁begin｜>` and `<｜tool▁call▁end｜>`.

V3 and R1 write `function<｜tool▁sep｜>f`, a line end and the arguments in a fenced block; V3.1
writes `f<｜tool▁sep｜>{...}`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from luce.text.tools.call_form import CallForm
from luce.text.tools.named_call import NameForm
from luce.text.tools.syntax import ToolSyntax, Wrapper

_OPEN, _CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_HEAD = re.compile(
    rf"\s*(?:function{_SEPARATOR})?(?P<name>[\w.:\-/]+)(?:{_SEPARATOR})?\s*(?:```(?:json)?\s*)?"
)

DEEPSEEK = ToolSyntax(
    "deepseek",
    wrappers=(
        Wrapper(_OPEN, takes_json=False, in_reasoning=True),
        Wrapper(
            "<｜tool▁call▁begin｜>",
            takes_json=False,
            named=NameForm(starts=("{",), head=_HEAD, is_strict=False),
            in_reasoning=True,
        ),
    ),
    closers=("<｜tool▁call▁end｜>", _CLOSE),
    control_texts=(_SEPARATOR,),
    form=CallForm(
        trigger=_OPEN,
        before_name=f"<｜tool▁call▁begin｜>function{_SEPARATOR}",
        after_name="\n```json\n",
        end="\n```<｜tool▁call▁end｜>",
        between="\n",
        opening=_OPEN,
        closing=_CLOSE,
    ),
)
DEEPSEEK_V31 = replace(
    DEEPSEEK,
    form=CallForm(
        trigger=_OPEN,
        before_name="<｜tool▁call▁begin｜>",
        after_name=_SEPARATOR,
        end="<｜tool▁call▁end｜>",
        opening=_OPEN,
        closing=_CLOSE,
    ),
)
