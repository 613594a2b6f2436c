"""ToolSyntax: one way models write tool calls, as the parser needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from luce.text.tools.call_form import CallForm
from luce.text.tools.element import CallSink, Element
from luce.text.tools.named_call import NameForm

ElementFactory = Callable[[CallSink], Element]


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A tag that announces calls without being part of one.

    Attributes:
        opener: its text.
        takes_json: a JSON object or a list of them may follow.
        is_bare: see `JsonCall`.
        named: how a call that begins with the tool's name may follow.
        in_reasoning: it announces calls in reasoning, too.
    """

    opener: str
    takes_json: bool = True
    is_bare: bool = False
    named: NameForm | None = None
    in_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class ToolSyntax:
    """One way of writing calls.

    Attributes:
        name: for logs.
        wrappers: what announces calls; other tags may stand between it and the call.
        closers: what may follow a call and is left out there.
        elements: what begins a call, and its reader.
        control_texts: further texts that must reach the parser where they are control tokens.
        form: how a grammar forces calls; None: this is never a model's own syntax.
    """

    name: str
    wrappers: tuple[Wrapper, ...] = ()
    closers: tuple[str, ...] = ()
    elements: Mapping[str, ElementFactory] = field(default_factory=dict)
    control_texts: tuple[str, ...] = ()
    form: CallForm | None = None

    @property
    def texts(self) -> frozenset[str]:
        """All texts of the syntax that may be control tokens."""
        openers = (wrapper.opener for wrapper in self.wrappers)
        return frozenset((*openers, *self.closers, *self.elements, *self.control_texts))
