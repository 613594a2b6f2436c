"""Bug log, area security: B77, one key for every route."""

from __future__ import annotations

import logging

import pytest
from case_client import MESSAGES, ROUTES, anthropic_error_of, error_of, minimal
from http_harness import CHAT, Harness, Rules

from luce.listener.access import Access

pytestmark = pytest.mark.anyio

KEY = "sk-secret-K"
GETS = ("/v1/models", "/props", "/status/json", "/metrics", "/v1/responses/resp_1")
COUNT = f"{MESSAGES}/count_tokens"
POSTS = (*ROUTES, COUNT, "/tokenize")
WRONG = [{}, {"authorization": "Bearer other"}, {"x-api-key": "other"}, {"authorization": KEY}]
RIGHT = [{"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}]


def guarded() -> Harness:
    return Harness(rules=Rules(access=Access([KEY])))


def variants(path: str) -> list[str]:
    """Other spellings of a path."""
    return [
        path.removeprefix("/v1"),
        path.replace("/", "//"),
        f"{path}/",
        path.upper(),
        f"{path};x",
        f"{path}?beta=true",
    ]


@pytest.mark.parametrize("headers", WRONG)
async def test_case_b77_without_the_key_every_route_is_401(headers: dict[str, str]) -> None:
    async with guarded() as server:
        for path in POSTS:
            for spelled in (path, *variants(path)):
                answer = await server.client.post(
                    server.url + spelled, content=b"{no json", headers=headers
                )
                assert answer.status_code == 401, spelled
        for path in GETS:
            for spelled in (path, *variants(path)):
                answer = await server.client.get(server.url + spelled, headers=headers)
                assert answer.status_code == 401, spelled
        assert (await server.client.get("/health", headers=headers)).status_code == 200
        for path in (MESSAGES, COUNT):
            answer = await server.client.post(path, content=b"{no json", headers=headers)
            assert anthropic_error_of(answer)[1] == "authentication_error"
        refused = await server.client.post(CHAT, json=minimal(CHAT), headers=headers)
        assert error_of(refused)[0] == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert server.generator.num_started == 0


@pytest.mark.parametrize("headers", RIGHT)
async def test_case_b77_with_the_key_in_either_header(
    headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded() as server:
        answer = await server.client.post(CHAT, json=minimal(CHAT), headers=headers)
        assert answer.status_code == 200
        for path in GETS[:4]:
            assert (await server.client.get(path, headers=headers)).status_code == 200
        await server.client.post(CHAT, json=minimal(CHAT), headers={"x-api-key": f"{KEY}x"})
    assert caplog.records
    assert not any(KEY in str(vars(record)) for record in caplog.records)
