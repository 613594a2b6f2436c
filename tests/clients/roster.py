"""The clients: which recipe of docs/clients.md each follows, and what drives it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ROOT / ".clients"
"""Where `make clients` installs; one folder per `Place`."""
DRIVERS = ROOT / "tools" / "clients"

Place = Literal["node", "python", "open-webui"]

SHELL_CALL = {"command": "echo luce-$((40+2))", "description": "adds"}
ADD_CALL = {"a": 40, "b": 2}
RESULT = "luce-42"
"""What the tool gives back; it is written nowhere, so somebody has run the tool."""


@dataclass(frozen=True, kw_only=True)
class Client:
    """One program that speaks to luce.

    Attributes:
        name: also the heading of its recipe.
        package: the one whose version counts.
        place: where it is installed.
        path: the endpoint it generates with.
        tool: the tool that the model calls.
        arguments: what it calls it with.
        files: the recipe's files, below the home folder or (`project/`) in the working
            folder: each is the recipe's block of a language.
        driver: the program that uses the recipe; None: the recipe's shell block is it.
        environment: what a test needs besides the recipe.
    """

    name: str
    package: str
    place: Place
    path: str
    tool: str
    arguments: Mapping[str, Any]
    files: Mapping[str, str]
    driver: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        return self.name.lower().replace(" ", "-").replace(",", "")

    @property
    def call(self) -> str:
        """The tool call as the scripted model writes it."""
        arguments = json.dumps(self.arguments)
        return f'<tool_call>\n{{"name": "{self.tool}", "arguments": {arguments}}}\n</tool_call>'

    @property
    def version(self) -> str:
        """The installed one; "" if it is not installed."""
        folder = INSTALLED / self.place
        if self.place == "node":
            manifest = folder / "node_modules" / self.package / "package.json"
            return str(json.loads(manifest.read_text())["version"]) if manifest.exists() else ""
        packages = [str(path) for path in folder.glob("lib/python*/site-packages")]
        found = [d.version for d in distributions(path=packages) if d.name == self.package]
        return found[0] if found else ""

    def command(self, mode: str, port: int) -> list[str]:
        """What is run in the project folder."""
        if self.driver is None:
            return ["/bin/sh", "recipe.sh"]
        arguments = [self.driver, mode]
        if self.place == "node":
            return ["node", *arguments]
        if self.place == "open-webui":
            arguments += ["recipe.sh", str(port)]
        return [str(INSTALLED / self.place / "bin" / "python"), *arguments]

    def search_path(self) -> str:
        """The PATH: this client's programs, node, and the system's."""
        node = shutil.which("node")
        folders = [
            INSTALLED / "node" / "node_modules" / ".bin",
            INSTALLED / self.place / "bin",
            *([Path(node).resolve().parent] if node else []),
            Path("/usr/bin"),
            Path("/bin"),
        ]
        return os.pathsep.join(map(str, folders))


CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"

CODEX = Client(
    name="Codex CLI",
    package="@openai/codex",
    place="node",
    path=RESPONSES,
    tool="exec_command",
    arguments={"cmd": SHELL_CALL["command"]},
    files={".codex/config.toml": "toml", "project/recipe.sh": "sh"},
)

CLAUDE_CODE = Client(
    name="Claude Code",
    package="@anthropic-ai/claude-code",
    place="node",
    path=MESSAGES,
    tool="Bash",
    arguments=SHELL_CALL,
    files={"project/recipe.sh": "sh"},
)

CLIENTS = (
    CODEX,
    CLAUDE_CODE,
    Client(
        name="opencode",
        package="opencode-ai",
        place="node",
        path=CHAT,
        tool="bash",
        arguments=SHELL_CALL,
        files={".config/opencode/opencode.json": "json", "project/recipe.sh": "sh"},
    ),
    Client(
        name="Open WebUI",
        package="open-webui",
        place="open-webui",
        path=CHAT,
        tool="add",
        arguments=ADD_CALL,
        files={"project/recipe.sh": "sh"},
        driver="open_webui.py",
        # It would fetch a model for searching documents when it starts for the first time.
        environment={"OFFLINE_MODE": "True", "RAG_EMBEDDING_ENGINE": "openai"},
    ),
    Client(
        name="OpenAI SDK, Chat Completions",
        package="openai",
        place="python",
        path=CHAT,
        tool="add",
        arguments=ADD_CALL,
        files={"project/recipe.py": "python"},
        driver="openai_chat.py",
    ),
    Client(
        name="OpenAI SDK, Responses",
        package="openai",
        place="python",
        path=RESPONSES,
        tool="add",
        arguments=ADD_CALL,
        files={"project/recipe.py": "python"},
        driver="openai_responses.py",
    ),
    Client(
        name="Anthropic SDK",
        package="anthropic",
        place="python",
        path=MESSAGES,
        tool="add",
        arguments=ADD_CALL,
        files={"project/recipe.py": "python"},
        driver="anthropic_messages.py",
    ),
    Client(
        name="LangChain",
        package="langchain-openai",
        place="python",
        path=CHAT,
        tool="add",
        arguments=ADD_CALL,
        files={"project/recipe.py": "python"},
        driver="langchain_chat.py",
    ),
    Client(
        name="AI SDK",
        package="@ai-sdk/openai-compatible",
        place="node",
        path=CHAT,
        tool="add",
        arguments=ADD_CALL,
        files={"project/recipe.mjs": "js"},
        driver="ai_sdk.mjs",
    ),
)
