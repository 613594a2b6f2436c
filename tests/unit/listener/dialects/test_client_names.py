from __future__ import annotations

import pytest

from luce.errors import InvalidRequest
from luce.listener.dialects.client_names import client_param, in_clients_words
from luce.text.call import GenerationCall

NAMES = {
    "answer_format": "text.format.schema",
    "tools[1].parameters": "tools[3].function.parameters",
    "tools[1].parameters.properties.input": "tools[3].format",
    "messages": "input",
}


@pytest.mark.parametrize(
    ("ours", "clients"),
    [
        (None, None),
        ("answer_format", "text.format.schema"),
        ("answer_format.properties.a", "text.format.schema.properties.a"),
        ("tools[1].parameters.required[0]", "tools[3].function.parameters.required[0]"),
        ("tools[1].parameters.properties.input", "tools[3].format"),
        ("tools[1].parameters.properties.inputs", "tools[3].function.parameters.properties.inputs"),
        ("messages[2].content", "input[2].content"),
        ("messages_of_others", "messages_of_others"),
        ("logit_bias.5", "logit_bias.5"),
    ],
)
def test_paths(ours: str | None, clients: str | None) -> None:
    assert client_param(ours, NAMES) == clients


def test_errors_are_renamed_on_their_way() -> None:
    call = GenerationCall(None, (), client_names=NAMES)
    with pytest.raises(InvalidRequest) as caught, in_clients_words(call):
        raise InvalidRequest("no.", param="answer_format.pattern")
    assert caught.value.param == "text.format.schema.pattern"
