"""DeepSeek V3, R1 and V3.1: a call between `<｜tool▁call▁begin｜>` and `<｜tool▁call▁end｜>`.

V3 and R1 write `function<｜tool▁sep｜>f`, a line end and the arguments in a fenced block; V3.1
writes `f<｜tool▁sep｜>{...}`.
"""

from __future__ import annotations

import re

from luce.text.tools.named_call import NameForm
from luce.text.tools.syntax import ToolSyntax, Wrapper

_SEPARATOR = "<｜tool▁sep｜>"
_HEAD = re.compile(
    rf"\s*(?:function{_SEPARATOR})?(?P<name>[\w.:\-/]+)(?:{_SEPARATOR})?\s*(?:```(?:json)?\s*)?"
)

DEEPSEEK = ToolSyntax(
    "deepseek",
    wrappers=(
        Wrapper("<｜tool▁calls▁begin｜>", takes_json=False, in_reasoning=True),
        Wrapper(
            "<｜tool▁call▁begin｜>",
            takes_json=False,
            named=NameForm(starts=("{",), head=_HEAD, is_strict=False),
            in_reasoning=True,
        ),
    ),
    closers=("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    control_texts=(_SEPARATOR,),
)
