"""Web pages: whose may call, and what their browsers are told."""

from __future__ import annotations

import pytest
from http_harness import CHAT, Harness, Rules, chat_body

from luce.listener.access import Access
from luce.listener.cors import Cors

pytestmark = pytest.mark.anyio

LOCAL = "http://localhost:3000"
FOREIGN = "https://example.com"
ALLOW = "access-control-allow-origin"


def preflight(origin: str) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }


async def test_a_preflight_needs_no_key_and_no_path() -> None:
    rules = Rules(access=Access(["key"]), cors=Cors((LOCAL,)))
    async with Harness(rules=rules) as server:
        for path in (CHAT, "/v1/messages", "/nothing", "/"):
            answer = await server.client.options(path, headers=preflight(LOCAL))
            assert answer.status_code == 204
            assert answer.content == b""
            assert answer.headers[ALLOW] == LOCAL
            assert "x-stainless-os" in answer.headers["access-control-allow-headers"]
            assert "POST" in answer.headers["access-control-allow-methods"]
        plain = await server.client.options(CHAT)
        assert plain.status_code == 204
        assert ALLOW not in plain.headers


async def test_answers_errors_and_streams_carry_the_origin() -> None:
    async with Harness() as server:
        headers = {"origin": LOCAL}
        for body, status in [
            (chat_body(), 200),
            (chat_body(stream=True), 200),
            (chat_body(temperature=-1), 400),
        ]:
            answer = await server.client.post(CHAT, json=body, headers=headers)
            assert answer.status_code == status
            assert answer.headers[ALLOW] == LOCAL
            assert answer.headers["vary"] == "Origin"
            exposed = answer.headers["access-control-expose-headers"].split(", ")
            assert {"x-request-id", "request-id", "retry-after"} <= set(exposed)
            assert answer.headers["request-id"] == answer.headers["x-request-id"]
            assert "access-control-allow-credentials" not in answer.headers


async def test_a_page_of_elsewhere_cannot_use_a_server_without_a_key() -> None:
    async with Harness() as server:
        refused = await server.client.options(CHAT, headers=preflight(FOREIGN))
        assert ALLOW not in refused.headers
        assert "access-control-allow-headers" not in refused.headers
        # What a browser sends without asking first: no content type, or one of a form's.
        answer = await server.client.post(
            CHAT, content=b'{"messages":[]}', headers={"origin": FOREIGN}
        )
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "forbidden"
        assert "--cors-origin" in answer.json()["error"]["message"]
        anthropic = await server.client.post("/v1/messages", json={}, headers={"origin": FOREIGN})
        assert anthropic.json()["error"]["type"] == "permission_error"
        looked = await server.client.get("/v1/models", headers={"origin": FOREIGN})
        assert looked.status_code == 200
        assert ALLOW not in looked.headers
        assert server.generator.num_started == 0


async def test_its_own_page_can() -> None:
    async with Harness() as server:
        answer = await server.client.post(CHAT, json=chat_body(), headers={"origin": server.url})
        assert answer.status_code == 200


async def test_any_origin_may_be_allowed() -> None:
    async with Harness(rules=Rules(cors=Cors(("*",)))) as server:
        answer = await server.client.post(CHAT, json=chat_body(), headers={"origin": FOREIGN})
        assert (answer.status_code, answer.headers[ALLOW]) == (200, "*")


async def test_a_missing_key_can_be_read_by_the_page() -> None:
    rules = Rules(access=Access(["key"]), cors=Cors(("*",)))
    async with Harness(rules=rules) as server:
        answer = await server.client.post(CHAT, json=chat_body(), headers={"origin": FOREIGN})
        assert (answer.status_code, answer.headers[ALLOW]) == (401, "*")


async def test_switched_off() -> None:
    async with Harness(rules=Rules(cors=Cors(enabled=False))) as server:
        answer = await server.client.options(CHAT, headers=preflight(LOCAL))
        assert answer.status_code == 204
        posted = await server.client.post(CHAT, json=chat_body(), headers={"origin": LOCAL})
        assert posted.status_code == 403
        for headers in (answer.headers, posted.headers):
            assert not [name for name in headers if name.startswith("access-control")]
        assert (await server.ask()).status_code == 200
