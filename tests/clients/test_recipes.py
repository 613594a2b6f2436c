"""The recipes of docs/clients.md are there, whole and well-formed; `make clients` runs them."""

from __future__ import annotations

import json
import re
import shlex
import tomllib

import pytest
from recipes import KEY, PAGE, URL, blocks, recipe_files
from roster import CLIENTS, ROOT, Client

from luce.cli.launch import read_launch
from luce.cli.resolve import resolve

OTHER_URL, OTHER_PORT = "http://127.0.0.1:45678", 34567

each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.slug)


@each_client
def test_a_recipe_is_pointed_at_the_server_of_the_test(client: Client) -> None:
    text = "".join(recipe_files(client, OTHER_URL, OTHER_PORT).values())
    assert OTHER_URL in text
    assert KEY in text
    assert URL not in text


@each_client
def test_a_recipe_can_be_read_by_what_reads_it(client: Client) -> None:
    for path, text in recipe_files(client, OTHER_URL, OTHER_PORT).items():
        if path.endswith(".toml"):
            assert tomllib.loads(text)
        elif path.endswith(".json"):
            assert json.loads(text)
        elif path.endswith(".py"):
            compile(text, path, "exec")
        elif path.endswith(".sh"):
            *exports, command = [shlex.split(line) for line in text.splitlines()]
            assert all(words[0] == "export" for words in exports)
            assert command[0] == "exec"


@each_client
def test_a_recipe_shows_nothing_that_is_not_run(client: Client) -> None:
    assert set(blocks(client.name)) == set(client.files.values())


def test_every_recipe_of_the_page_is_run() -> None:
    headings = re.findall(r"^## (.+)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert headings == [client.name for client in CLIENTS]


def test_the_pages_server_starts_as_the_recipes_need_it() -> None:
    (command,) = re.findall(r"^```sh\n(luce_server .*)\n```$", PAGE.read_text("utf-8"), re.M)
    config = resolve(read_launch(shlex.split(command)[1:])).config
    (model,) = config.models
    assert model.name == "my-model"
    assert model.max_ctx == 131072
    assert config.listener.api_key == (KEY,)
    assert f"http://{config.listener.host}:{config.listener.port}" == URL


def pinned_version(client: Client) -> str:
    if client.place == "node":
        manifest = json.loads((ROOT / "tools" / "clients" / "package.json").read_text("utf-8"))
        return str(manifest["dependencies"][client.package])
    pins = (ROOT / "requirements" / f"clients-{client.place}.txt").read_text("utf-8")
    (version,) = re.findall(rf"^{client.package}==(.+)$", pins, re.MULTILINE)
    return str(version)


@each_client
def test_the_page_names_the_version_that_is_pinned(client: Client) -> None:
    version = pinned_version(client)
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    rows = re.findall(r"^\| \[(.+)\]\(.+\) \| (\S+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert dict(rows)[client.name] == version
