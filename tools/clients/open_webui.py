"""Open WebUI, driven as its own page drives it: a chat with a tool, or the stop button.

Arguments: `turn` or `cancel`, the recipe as a shell script, and the port it serves on. It runs on
the standard library alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import URLError

START_S = 240
ANSWER_S = 60
TOOL = '''\
class Tools:
    def add(self, a: int, b: int) -> str:
        """
        Adds two numbers.
        :param a: The first.
        :param b: The second.
        """
        return f"luce-{a + b}"
'''


def main() -> int:
    mode, recipe, port = sys.argv[1:]
    with running(recipe, WebUI(f"http://127.0.0.1:{port}")) as webui:
        webui.sign_in()
        if mode == "cancel":
            return cancel(webui)
        webui.post("/api/v1/tools/create", id="sums", name="sums", content=TOOL, meta={})
        chat_id, _ = webui.ask("What is 40+2?", tool_ids=["sums"])
        print(eventually(lambda: webui.answer_in(chat_id), "the answer"), flush=True)
    return 0


def cancel(webui: WebUI) -> int:
    _, task_id = webui.ask("Tell me a long story.")
    print("streaming", flush=True)
    sys.stdin.readline()
    webui.post(f"/api/tasks/stop/{task_id}")
    print("closed", flush=True)
    sys.stdin.readline()
    return 0


class WebUI:
    """The server's own API, as its page uses it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._token = ""

    def is_up(self) -> bool:
        try:
            return bool(self.call("GET", "/health")["status"])
        except URLError:
            return False

    def sign_in(self) -> None:
        """As the one user of a server without log-in."""
        self._token = self.post("/api/v1/auths/signin", email="", password="")["token"]

    def ask(self, question: str, **fields: Any) -> tuple[str, str]:
        """A new chat; its id and that of the task which answers."""
        (model,) = self.call("GET", "/api/models")["data"]
        answer = self.post(
            "/api/chat/completions",
            model=model["id"],
            stream=True,
            messages=[{"role": "user", "content": question}],
            session_id=str(uuid.uuid4()),
            parent_id=None,
            user_message={"id": str(uuid.uuid4()), "role": "user", "content": question},
            message_ids=[{"model_id": model["id"], "message_id": str(uuid.uuid4())}],
            background_tasks={"title_generation": True},
            **fields,
        )
        return answer["chat_id"], answer["task_ids"][0]

    def answer_in(self, chat_id: str) -> str:
        """What the model said in a chat, once it is done."""
        messages = self.call("GET", f"/api/v1/chats/{chat_id}")["chat"]["history"]["messages"]
        done = [m for m in messages.values() if m["role"] == "assistant" and m.get("done")]
        return str(done[0]["content"]) if done else ""

    def post(self, path: str, **body: Any) -> Any:
        return self.call("POST", path, body)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            self._url + path,
            None if body is None else json.dumps(body).encode(),
            {"content-type": "application/json", "authorization": f"Bearer {self._token}"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return json.load(answer)


@contextmanager
def running(recipe: str, webui: WebUI) -> Iterator[WebUI]:
    with open("server.log", "wb") as log:
        server = subprocess.Popen(["/bin/sh", recipe], stdout=log, stderr=log)
        try:
            eventually(webui.is_up, "the server", START_S)
            yield webui
        finally:
            server.terminate()
            server.wait()


def eventually(ask: Callable[[], Any], what: str, timeout_s: float = ANSWER_S) -> Any:
    """The first answer that is not empty."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if found := ask():
            return found
        time.sleep(0.2)
    raise TimeoutError(f"{what} did not come within {timeout_s} s; see server.log")


if __name__ == "__main__":
    sys.exit(main())
