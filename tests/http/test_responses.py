"""OpenAI's Responses over a real socket: answers, streams, tools, what is kept."""

from __future__ import annotations

import json
import logging
from array import array
from typing import Any

import pytest
from http_harness import Harness, Rules
from messages_client import CALL, CALL_2, call, named_events
from responses_client import CODEX, PATCH, RESPONSES, TEXT, F, ask, both, response_of, serving

from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio


def prompts(server: Harness) -> list[str]:
    asked = (array("i", submit.prompt) for submit in server.models[0].submits())
    return [b"".join(map(TEXT.tokenizer.token_bytes, ids)).decode() for ids in asked]


# --- answers -----------------------------------------------------------------------------


async def test_a_plain_answer() -> None:
    async with Harness(FakeScript(cached_tokens=2)) as server:
        response = await both(server, input="hello", metadata={"a": "b"}, temperature=0.5)
        assert response["id"].startswith("resp_")
        message = response["output"][0]
        assert message.pop("id").startswith("msg_")
        assert response["output"] == [
            {
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}
                ],
            }
        ]
        assert (response["object"], response["status"]) == ("response", "completed")
        assert (response["model"], response["error"]) == ("big", None)
        assert (response["metadata"], response["temperature"]) == ({"a": "b"}, 0.5)
        assert response["usage"] == {
            "input_tokens": 5,
            "input_tokens_details": {"cached_tokens": 2},
            "output_tokens": 6,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 11,
        }
        await server.idle()


async def test_an_empty_answer_has_no_item() -> None:
    async with serving("") as server:
        response = await both(server)
    assert (response["output"], response["status"]) == ([], "completed")


@pytest.mark.parametrize(
    ("reasoning", "key", "kind"),
    [
        ({"effort": "medium"}, "content", "reasoning_text"),
        ({"effort": "medium", "summary": "auto"}, "summary", "summary_text"),
        ({"effort": "medium", "summary": "none"}, "content", "reasoning_text"),
    ],
)
async def test_reasoning_is_an_item(reasoning: dict[str, Any], key: str, kind: str) -> None:
    async with serving("<think>\nhm\n</think>\n\nIt is 4.") as server:
        response = await both(server, reasoning=reasoning)
    thought, message = response["output"]
    assert thought["type"] == "reasoning"
    assert thought[key] == [{"type": kind, "text": "hm"}]
    assert message["content"][0]["text"] == "It is 4."
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert response["reasoning"] == reasoning


@pytest.mark.parametrize(
    ("fields", "is_on"),
    [
        ({}, False),
        ({"reasoning": None}, False),
        ({"reasoning": {"effort": "none"}}, False),
        ({"reasoning": {"effort": "medium", "summary": "auto"}}, True),
        ({"reasoning": {"summary": "auto"}}, True),
        ({"thinking": {"type": "enabled"}}, True),
    ],
)
async def test_the_template_is_told_of_reasoning(fields: dict[str, Any], is_on: bool) -> None:
    async with serving("x") as server:
        assert (await ask(server, **fields)).status_code == 200
        assert prompts(server)[0].endswith("</think>\n\n") is not is_on


async def test_reasoning_comes_back_sealed() -> None:
    include = ["reasoning.encrypted_content"]
    async with serving("<think>\nsecret plan\n</think>\n\nFine.") as server:
        fields = {"reasoning": {"effort": "low"}, "include": include, "store": False}
        thought = (await both(server, **fields))["output"][0]
        assert "secret" not in thought["encrypted_content"]
        seal = thought["encrypted_content"]
        sent = {"type": "reasoning", "summary": [], "encrypted_content": seal}
        call_items = [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c", "output": "done"},
        ]
        user = {"role": "user", "content": "go"}
        await ask(server, input=[user, sent, *call_items], tools=[F])
        assert "secret plan" in prompts(server)[-1]


async def test_several_calls_after_text() -> None:
    async with serving(f"Both:\n{CALL}\n{CALL_2}") as server:
        response = await both(server, tools=[F])
    message, *calls = response["output"]
    assert message["content"][0]["text"] == "Both:"
    assert [item["type"] for item in calls] == ["function_call", "function_call"]
    assert [json.loads(item["arguments"]) for item in calls] == [{"a": 1}, {"a": 22}]
    assert {item["status"] for item in response["output"]} == {"completed"}


async def test_one_call_only_when_asked() -> None:
    async with serving(CALL + CALL_2) as server:
        response = await both(server, tools=[F], parallel_tool_calls=False)
    assert len(response["output"]) == 1
    assert response["parallel_tool_calls"] is False


async def test_a_custom_tool_is_called_with_its_input() -> None:
    patch = "*** Begin Patch\n+é"
    answer = call(json.dumps({"input": patch}), "apply_patch")
    async with serving(answer) as server:
        response = await both(server, tools=[F, PATCH])
        prompt = prompts(server)[0]
    (item,) = response["output"]
    assert (item["type"], item["name"], item["input"]) == (
        "custom_tool_call",
        "apply_patch",
        patch,
    )
    assert "start: /.+/s" in prompt


async def test_a_tool_of_a_namespace_is_called_by_both_names() -> None:
    group = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [F, PATCH]}
    patched = call('{"input": "x"}', "crm__apply_patch")
    async with serving(call('{"a": 1}', "crm__f") + patched) as server:
        response = await both(server, tools=[F, group])
        taken = ("type", "name", "namespace")
        assert [tuple(item[key] for key in taken) for item in response["output"]] == [
            ("function_call", "f", "crm"),
            ("custom_tool_call", "apply_patch", "crm"),
        ]
        assert response["tools"][1]["tools"][0]["name"] == "f"
        results = [
            {"type": f"{kind}_output", "call_id": item["call_id"], "output": "done"}
            for item, kind in zip(
                response["output"], ("function_call", "custom_tool_call"), strict=True
            )
        ]
        items = [{"role": "user", "content": "hi"}, *response["output"], *results]
        await ask(server, input=items, tools=[F, group])
        before, after = prompts(server)[0], prompts(server)[-1]
    assert '"name": "crm__f", "description": "Customers.' in before
    assert after.count('{"name": "crm__f", "arguments": {"a": 1}}') == 1
    assert after.count('{"name": "crm__apply_patch", "arguments": {"input": "x"}}') == 1


async def test_a_call_of_no_namespace_does_not_mention_any() -> None:
    async with serving(CALL) as server:
        response = await both(server, tools=[F])
    assert "namespace" not in response["output"][0]


async def test_max_output_tokens_makes_it_incomplete() -> None:
    async with Harness() as server:
        response = await both(server, input="abcdef", max_output_tokens=3)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert response["output"][0]["content"][0]["text"] == "abc"


async def test_a_call_that_was_cut_off() -> None:
    async with serving(call('{"a": 12345678}')) as server:
        reply = server.models[0].worker.script.reply
        assert reply is not None
        response = await both(server, tools=[F], max_output_tokens=len(reply) - 10)
    assert response["status"] == "incomplete"
    assert response["output"][-1]["status"] == "incomplete"
    assert response["output"][-1]["arguments"] == '{"a":'


async def test_stop_strings_end_it() -> None:
    async with Harness() as server:
        response = await both(server, input="alpha beta gamma", stop=["beta gam"])
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == "alpha "


# --- what Codex sends --------------------------------------------------------------------


async def test_codexs_request() -> None:
    async with serving("Fine.") as server:
        response = await both(server, **CODEX)
        prompt = prompts(server)[0]
    assert response["output"][0]["content"][0]["text"] == "Fine."
    assert prompt.startswith("<|im_start|>system\nYou are an agent.\n\nrules\n\n# Tools")
    assert prompt.index("fix it") < prompt.index("ok") < prompt.index("a.py")
    assert prompt.index("a.py") < prompt.index("*** Begin") < prompt.index("patched")
    assert "web_search" not in prompt
    assert "opaque" not in prompt


# --- cases -------------------------------------------------------------------------------


async def test_b01_null_is_absent() -> None:
    names = ("instructions", "tools", "tool_choice", "reasoning", "text", "include", "store")
    names += ("metadata", "stream", "temperature", "top_p", "max_output_tokens", "model", "user")
    names += ("previous_response_id", "parallel_tool_calls", "truncation", "background", "prompt")
    async with Harness() as server:
        assert (await ask(server, **dict.fromkeys(names))).status_code == 200


async def test_b13_tools_of_other_types_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    tools = [F, {"type": "web_search"}, PATCH, {"type": "namespace", "name": "mcp", "tools": []}]
    asked = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    async with serving("ok") as server:
        with caplog.at_level(logging.INFO):
            await both(server, input=asked, tools=tools, store=False, max_output_tokens=8)
        refused = await ask(server, tools=[{"type": "function", "parameters": {}}])
        prompt = prompts(server)[0]
    (record, _) = [record for record in caplog.records if record.message == "tools left out"]
    assert record.types == "web_search"  # type: ignore[attr-defined]
    assert '"name": "f"' in prompt
    assert "mcp" not in prompt
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "tools[0].name")


async def test_b21_a_silent_stream_repeats_in_progress() -> None:
    rules = Rules(keep_alive_interval_s=0.05)
    async with Harness(FakeScript(hold_after=0), rules=rules) as server:
        mark = "event: response.in_progress"
        text = await server.stream_held_until(RESPONSES, {"input": "hi"}, mark)
        events = named_events(text)
    assert sum(event["type"] == "response.in_progress" for event in events) >= 3
    assert response_of(events)["output"][0]["content"][0]["text"] == "hi"


async def test_b33_calls_only_where_tools_may_be_called() -> None:
    async with serving(CALL) as server:
        silent = await both(server, tools=[F], tool_choice="none")
        called = await both(server, tools=[F], tool_choice="auto")
    assert [item["type"] for item in silent["output"]] == ["message"]
    assert [item["type"] for item in called["output"]] == ["function_call"]
    assert silent["status"] == called["status"] == "completed"


# --- what is kept ------------------------------------------------------------------------


async def test_a_response_is_gone_on_with() -> None:
    async with serving("<think>\nhm\n</think>\n\nOne.") as server:
        asked = {"reasoning": {"effort": "low"}, "instructions": "Be brief."}
        first = (await ask(server, input="first", **asked)).json()
        more = await ask(server, input="second", previous_response_id=first["id"])
        second = more.json()
        third = await ask(server, input="third", previous_response_id=second["id"], stream=True)
        assert response_of(named_events(third.text))["previous_response_id"] == second["id"]
        prompt = prompts(server)[-1]
    order = [prompt.index(text) for text in ("first", "One.", "second", "third")]
    assert order == sorted(order)
    # Instructions are those of the request.
    assert "Be brief." not in prompt


async def test_kept_responses_are_shown_and_forgotten() -> None:
    async with Harness() as server:
        created = (await ask(server)).json()
        path = f"{RESPONSES}/{created['id']}"
        assert (await server.client.get(path)).json() == created
        assert (await server.client.get(f"{path}?stream=true")).status_code == 400
        gone = await server.client.delete(path)
        assert gone.json() == {"id": created["id"], "object": "response", "deleted": True}
        for response in (
            await server.client.get(path),
            await server.client.delete(path),
            await ask(server, previous_response_id=created["id"]),
            await ask(server, previous_response_id=created["id"], stream=True),
        ):
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "response_not_found"
        allowed = (await server.client.post(path)).headers["allow"]
        assert set(allowed.split(", ")) == {"GET", "HEAD", "DELETE"}


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_not_to_be_stored_is_not(stream: bool) -> None:
    async with Harness() as server:
        answer = (await ask(server, store=False, stream=stream)).text
        start = answer.index("resp_")
        path = f"{RESPONSES}/{answer[start : start + 53]}"
        assert (await server.client.get(path)).status_code == 404
