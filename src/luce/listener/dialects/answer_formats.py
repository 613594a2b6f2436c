"""What an answer must look like: OpenAI's formats, and our own fields beside every API's.

A schema is enforced whether or not the client calls it strict: a format that holds most of the
time is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from luce.errors import InvalidRequest, UnsupportedFeature
from luce.listener.dialects.formats_wire import ResponseFormat, TextFormat
from luce.listener.dialects.openai_wire import SamplingFields
from luce.text.call import AnswerFormat, JsonFormat, LarkFormat, RegexFormat
from luce.units import quoted


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A format, and the client's field that holds it.

    Attributes:
        format: None: anything.
        param: a JSON path.
    """

    format: AnswerFormat | None
    param: str

    @property
    def names(self) -> dict[str, str]:
        """Its part of `GenerationCall.client_names`."""
        return {} if self.format is None else {"answer_format": self.param}


def response_format(given: ResponseFormat | None) -> NamedFormat:
    """The format of a chat or legacy request.

    Raises:
        InvalidRequest: there is no schema where there should be.
        UnsupportedFeature: its type is unknown.
    """
    param = "response_format"
    if given is None:
        return NamedFormat(None, param)
    if given.type != "json_schema":
        return _plain_format(given.type, given.schema, param)
    if given.json_schema is None:
        raise InvalidRequest(f"{param}.json_schema is required.", param=f"{param}.json_schema")
    return _schema_format(given.json_schema.schema, f"{param}.json_schema.schema")


def text_format(given: TextFormat | None, param: str) -> NamedFormat:
    """A format whose schema stands beside its type.

    Args:
        given: the format.
        param: the client's field.

    Raises:
        InvalidRequest: there is no schema where there should be.
        UnsupportedFeature: its type is unknown.
    """
    if given is None:
        return NamedFormat(None, param)
    if given.type == "json_schema":
        return _schema_format(given.schema, f"{param}.schema")
    return _plain_format(given.type, given.schema, param)


def answer_format(request: SamplingFields, *own: NamedFormat) -> NamedFormat:
    """What the answer must look like, by whichever field of the request.

    Args:
        request: our fields `grammar` and `regex` are read.
        own: what the API's own fields say.

    Raises:
        InvalidRequest: two fields say something, `param` names the second; or one is empty.
    """
    wanted = [form for form in own if form.format is not None]
    if request.grammar is not None:
        wanted.append(NamedFormat(LarkFormat(_not_empty(request.grammar, "grammar")), "grammar"))
    if request.regex is not None:
        wanted.append(NamedFormat(RegexFormat(_not_empty(request.regex, "regex")), "regex"))
    if len(wanted) > 1:
        first, second = wanted[0].param, wanted[1].param
        raise InvalidRequest(
            f"{first} and {second} both say what the answer must look like; send one of them.",
            param=second,
        )
    return wanted[0] if wanted else NamedFormat(None, "grammar")


def _not_empty(source: str, param: str) -> str:
    if not source:
        raise InvalidRequest(f"{param} must not be empty; leave it out.", param=param)
    return source


def _plain_format(kind: str, schema: dict[str, Any] | None, param: str) -> NamedFormat:
    if kind == "text":
        return NamedFormat(None, param)
    if kind == "json_object":
        return NamedFormat(JsonFormat(schema or None), f"{param}.schema" if schema else param)
    raise UnsupportedFeature(
        f"{param}.type is not supported here: {quoted(kind)}; use text, json_object or "
        "json_schema.",
        param=f"{param}.type",
    )


def _schema_format(schema: dict[str, Any] | None, param: str) -> NamedFormat:
    if schema is None:
        raise InvalidRequest(f"{param} is required.", param=param)
    return NamedFormat(JsonFormat(schema), param)
