"""ToolOffer: the tools of a request of any API, and which of them should be called."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from luce.errors import InvalidRequest
from luce.text.call import NamedTool, ToolChoice, ToolSpec
from luce.units import quoted

PARAM = "tool_choice"


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """Tools by name, in order.

    Attributes:
        tools: each with the client's path of its schema.
        choice: which should be called, if any.
    """

    tools: Mapping[str, tuple[ToolSpec, str]] = field(default_factory=dict)
    choice: ToolChoice = "auto"

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools."""
        return tuple(spec for spec, _ in self.tools.values())

    @property
    def names(self) -> dict[str, str]:
        """Their part of `GenerationCall.client_names`."""
        paths = (path for _, path in self.tools.values())
        return {f"tools[{index}].parameters": path for index, path in enumerate(paths)}

    def choosing(self, choice: Literal["auto", "none", "required"]) -> ToolOffer:
        """The same with this choice.

        Raises:
            InvalidRequest: it wants a call of no tool.
        """
        if choice == "required" and not self.tools:
            raise InvalidRequest(f"{PARAM} wants a tool; there are no tools.", param=PARAM)
        return replace(self, choice=choice)

    def naming(self, name: str, param: str = PARAM) -> ToolOffer:
        """The same with a choice that leaves one tool.

        Raises:
            InvalidRequest: it is not among the tools; names `param`.
        """
        self._check(name, param)
        return replace(self, choice=NamedTool(name))

    def allowing(
        self, names: Collection[str], mode: Literal["auto", "required"], param: str
    ) -> ToolOffer:
        """Only some of the tools; the model is not told of the others.

        Raises:
            InvalidRequest: there are none, or one is not among the tools; names `param`.
        """
        if not names:
            raise InvalidRequest(f"{param} must not be empty.", param=param)
        for name in names:
            self._check(name, param)
        tools = {name: tool for name, tool in self.tools.items() if name in names}
        return ToolOffer(tools, mode)

    def _check(self, name: str, param: str) -> None:
        if name not in self.tools:
            raise InvalidRequest(
                f"{param} names {quoted(name)}, which is not among the tools.", param=param
            )
