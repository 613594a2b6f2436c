"""Claude Code keeps most of its tools back; the model asks for one and is told how to call it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from client_process import running
from client_server import serving
from recipes import KEY
from roster import CLAUDE_CODE
from shapes import record_shape

pytestmark = [pytest.mark.anyio, pytest.mark.clients, pytest.mark.timeout(400)]

WANTED = "NotebookEdit"


async def test_a_tool_that_was_kept_back_is_found_and_declared(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert CLAUDE_CODE.version, f"{CLAUDE_CODE.package} is not installed: run `make clients`"
    asked = {"query": f"select:{WANTED}", "max_results": 5}
    client = replace(CLAUDE_CODE, tool="ToolSearch", arguments=asked)
    async with serving(client.call, "Found it.", (KEY,), tokens_per_step=8) as server:
        async with running(client, "turn", server.url, tmp_path / "home") as process:
            assert await process.end() == 0
            exchanges = server.asked(client.path)
            if request.config.getoption("--record-shapes", default=False):
                record_shape(client, "tool-search", exchanges[1], tmp_path)
            assert server.unhappy() == [], process.output
        assert len(exchanges) == 2
        first, second = server.prompts()
        assert f'"name": "{WANTED}"' not in first
        assert f'"name": "{WANTED}"' in second
