from __future__ import annotations

import pytest

from luce.protocol.messages import LoadSpec
from luce.testing.fake_script import FakeScript
from luce.testing.scripted_launcher import ScriptedLauncher
from luce.workers.supervisor import Supervisor

pytestmark = pytest.mark.anyio


async def test_each_model_follows_its_own_script() -> None:
    launcher = ScriptedLauncher({"a": FakeScript(max_ctx=32), "b": FakeScript(max_ctx=64)})
    supervisors = [Supervisor(LoadSpec(name=name, path=""), launcher) for name in "ab"]
    for supervisor in supervisors:
        supervisor.start()
    for supervisor in supervisors:
        await supervisor.wait_first_load()
    limits = [supervisor.handle.limits for supervisor in supervisors]
    assert [limit.max_ctx for limit in limits if limit is not None] == [32, 64]
    for supervisor in supervisors:
        await supervisor.stop(0)
