"""ScriptedLauncher: a fake worker process for each model, each with a script of its own."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from luce.protocol.messages import LoadSpec
from luce.testing.fake_script import FakeScript
from luce.workers.spawn import ProcessLauncher, WorkerProcess

_MODULE = "luce.testing.fake_worker"


class ScriptedLauncher:
    """A `luce.workers.spawn.Launcher`."""

    def __init__(self, scripts: Mapping[str, FakeScript]) -> None:
        """Args:
        scripts: by model name.
        """
        self._launchers = {
            name: ProcessLauncher(
                arguments=("-m", _MODULE, "--script", msgspec.json.encode(script).decode())
            )
            for name, script in scripts.items()
        }

    async def launch(self, spec: LoadSpec) -> WorkerProcess:
        """Start the fake worker of this model; see `Launcher.launch`."""
        return await self._launchers[spec.name].launch(spec)
