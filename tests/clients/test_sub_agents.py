"""Codex groups its tools for sub-agents in a namespace; it must know the call as one of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from client_process import running
from client_server import serving
from recipes import KEY
from roster import CODEX

pytestmark = [pytest.mark.anyio, pytest.mark.clients, pytest.mark.timeout(400)]

NAMESPACE, TOOL, NOBODY = "multi_agent_v1", "close_agent", "nobody-of-this-name"


async def test_a_tool_of_a_namespace_is_run(tmp_path: Path) -> None:
    assert CODEX.version, f"{CODEX.package} is not installed: run `make clients`"
    client = replace(CODEX, tool=f"{NAMESPACE}__{TOOL}", arguments={"target": NOBODY})
    async with serving(client.call, "Closed.", (KEY,), tokens_per_step=8) as server:
        async with running(client, "turn", server.url, tmp_path / "home") as process:
            assert await process.end() == 0
        assert server.unhappy() == [], process.output
        _, second = server.asked(client.path)
        call, result = second.json["input"][-2:]
        assert (call["namespace"], call["name"]) == (NAMESPACE, TOOL)
        assert call["call_id"] == result["call_id"]
        assert NOBODY in result["output"]  # it looked for the agent
