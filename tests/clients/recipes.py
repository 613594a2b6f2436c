"""The recipes of docs/clients.md: what the page tells people to write is what the tests run."""

from __future__ import annotations

import re

from roster import ROOT, Client

PAGE = ROOT / "docs" / "clients.md"
URL, KEY, PORT = "http://127.0.0.1:8080", "my-key", "3000"
"""What stands in the recipes for the server's address, its key, and Open WebUI's own port."""


def section(heading: str) -> str:
    """The page's text below a heading, up to the next of its rank.

    Raises:
        LookupError: there is no such heading.
    """
    parts = re.split(r"^## (.+)\n", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return found[heading]


def blocks(heading: str) -> dict[str, str]:
    """The code blocks below a heading, by language; fails where a language comes twice."""
    found: dict[str, str] = {}
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", section(heading), re.M | re.S):
        if language in found:
            raise ValueError(f"{heading}: two blocks of {language}")
        found[language] = text
    return found


def recipe_files(client: Client, url: str, port: int) -> dict[str, str]:
    """What to write where, below the home folder, to follow a client's recipe."""
    recipe = blocks(client.name)
    return {
        path: recipe[language].replace(URL, url).replace(f"--port {PORT}", f"--port {port}")
        for path, language in client.files.items()
    }
