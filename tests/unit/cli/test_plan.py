"""`luce plan`: tables, JSON and exit codes (spec swap-and-admission B8), from a file of devices."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from luce.cli.main import main
from luce.cli.plan import DOES_NOT_FIT, FITS, UNKNOWN

INVENTORY = """
[[device]]
id = "cuda:0"
uuid = "GPU-1"
name = "RTX 3090"
total_mib = 24564
free_mib = {free_mib}
[[device]]
id = "cuda:1"
[[device]]
id = "cpu:0"
total_mib = 65536
"""


@pytest.fixture
def words(tmp_path: Path, demo_model: Path) -> list[str]:
    """The demo model on an idle GPU."""
    write(tmp_path)
    inventory = ["--device-inventory", str(tmp_path / "devices.toml")]
    return [str(demo_model), "--target-device", "cuda:0", *inventory]


def write(folder: Path, free_mib: int = 24000) -> None:
    text = INVENTORY.format(free_mib=free_mib)
    (folder / "devices.toml").write_text(text, encoding="ascii")


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    out = capsys.readouterr().out
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_json_has_the_whole_plan(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words, "--json", "--max-ctx", "1024"]) == 0
    found = document(capsys)
    assert (found["schema_version"], found["verdict"]) == (1, "fits")
    (model,) = found["models"]
    assert (model["name"], model["result"], model["warnings"]) == ("luce", "ok", [])
    assert (model["max_ctx"], model["kv_pool_tokens"]) == (1024, 4096)
    assert model["identity"]["device_uuids"] == ["GPU-1"]
    (device,) = model["devices"]
    assert (device["uuid"], device["id"], device["name"]) == ("GPU-1", "cuda:0", "RTX 3090")
    names = ("weights", "kv", "state", "compute", "overhead")
    assert device["total_bytes"] == sum(device[f"{name}_bytes"] for name in names)
    # 30 layers of 3 heads of 64 numbers, keys and values, bfloat16; one null block.
    assert device["kv_bytes"] == (4096 + 16) * 30 * 2 * 3 * 64 * 2
    assert model["total_bytes"] == device["total_bytes"] + model["host"]["total_bytes"]


def test_the_table(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 0
    out = capsys.readouterr().out
    for part in ("cuda:0", "host", "weights", "RTX 3090", "context 8192 tokens", "verdict: fits"):
        assert part in out


def test_what_does_not_fit_now(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, free_mib=1800)
    assert main(["plan", *words, "--json", "--max-ctx", "8192"]) == 1
    found = document(capsys)
    assert (found["verdict"], found["models"][0]["result"]) == ("does not fit", "ok")


def test_what_can_never_fit(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words, "--json", "--device-memory", "cuda:0=1GiB"]) == 1
    (model,) = document(capsys)["models"]
    assert (model["result"], model["max_ctx"]) == ("cannot_fit", None)
    assert "which has 1.0 GiB for models" in model["problem"]


def test_unknown_memory(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words, "--target-device", "cuda:1", "--json"]) == 3
    (model,) = document(capsys)["models"]
    assert (model["result"], model["devices"]) == ("unknown", [])


def test_models_are_judged_together(
    words: list[str], demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [*words, "--model-name", "a", "--max-ctx", "512", "--load-balancing"]
    both += ["--model", str(demo_model), "--model-name", "b", "--max-ctx", "512"]
    both += ["--target-device", "cuda:0"]
    assert main(["plan", *both]) == 0
    assert "together: fits" in capsys.readouterr().out
    assert main(["plan", *both, "--device-memory", "cuda:0=3GiB", "--json"]) == 1
    found = document(capsys)
    assert [model["verdict"] for model in found["models"]] == ["fits", "fits"]
    assert found["verdict"] == "does not fit"


def test_those_that_take_turns_need_the_room_of_one(
    words: list[str], demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--max-ctx", "512", "--kv-pool-tokens", "2048"]
    both = [*words, "--model-name", "a", *sizes, "--model-routing", "name"]
    both += ["--model", str(demo_model), "--model-name", "b", *sizes, "--target-device", "cuda:0"]
    assert main(["plan", *both, "--device-memory", "cuda:0=3GiB"]) == 1
    assert "together: does not fit" in capsys.readouterr().out
    assert main(["plan", *both, "--device-memory", "cuda:0=3GiB", "--swap-residency"]) == 0
    assert "together: fits" in capsys.readouterr().out
    # What the other one keeps there counts.
    (kept,) = {m["kept_bytes"] for m in turns(both, capsys)["models"]}
    taken = turns(both, capsys)["models"][0]["devices"][0]["total_bytes"]
    for spare, code in ((0, 0), (-1, 1)):
        budget = ["--device-memory", f"cuda:0={kept + taken + spare}"]
        assert main(["plan", *both, "--swap-residency", *budget]) == code
        capsys.readouterr()


def turns(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["plan", *words, "--swap-residency", "--json"]) == 0
    return document(capsys)


def test_a_budget_for_models_is_not_that_of_their_processes(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*words, "--target-device", "cpu:0", "--max-ctx", "512", "--max-concurrency", "1"]
    assert main(["plan", *asked, "--json"]) == 0
    taken = document(capsys)["models"][0]["devices"][0]["total_bytes"]
    assert main(["plan", *asked, "--device-memory", f"cpu:0={taken}"]) == 0
    # Without one, what stands on the host beside it has to fit as well.
    inventory = Path(words[words.index("--device-inventory") + 1])
    text = f"[[device]]\nid = 'cpu:0'\ntotal_mib = 65536\nfree_mib = {taken // 2**20 + 2000}\n"
    inventory.write_text(text, encoding="ascii")
    assert main(["plan", *asked]) == 1
    out = capsys.readouterr().out
    assert "verdict: fits\nwith what it keeps on the host: does not fit\n" in out


def test_auto_goes_where_the_server_would_put_it(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words, "--target-device", "auto", "--json"]) == 0
    assert document(capsys)["models"][0]["devices"][0]["id"] == "cuda:0"
    (tmp_path / "devices.toml").write_text("[[device]]\nid='cuda:0'\ntotal_mib=600\n", "ascii")
    assert main(["plan", *words, "--target-device", "auto", "--json"]) == 1
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "--target-device auto: luce: no device holds the model" in streams.err


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--nonsense"], 2),
        (["--max-ctx", "999999"], 2),
        (["--print-config"], 2),
        (["--device-memory", "hip:0=1GiB"], 2),
    ],
)
def test_usage(
    words: list[str], more: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words, *more, "--json"]) == code
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("luce: ")


def test_a_model_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "missing.gguf"]) == 3
    assert "no such file" in capsys.readouterr().err


def test_help_says_it_is_for_debugging(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: luce plan MODEL")
    assert "debug" in out
    assert {"--json", "--explain"} <= set(out.split())
    for code in (FITS, DOES_NOT_FIT, UNKNOWN):
        assert re.search(rf"\b{code} [a-z(]", out)


def device_row(**bytes_: int) -> dict[str, Any]:
    """A GPU of 4 GiB, all of it taken by an idle model."""
    gib = 1 << 30
    row: dict[str, Any] = {
        "device": "GPU-1",
        "total_bytes": 4 * gib,
        "free_bytes": 0,
        "ours_bytes": 4 * gib,
        "pending_bytes": 0,
        "returning_bytes": 0,
        "margin_bytes": 0,
        "pinned_bytes": 0,
        "planned_bytes": {"old": 4 * gib},
        "held_bytes": {"old": 4 * gib},
    }
    return row | bytes_


OLD = {"id": "old", "in_flight": 0, "residency_state": "ready", "idle_ms": 5000}


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, Any]]]:
    """Answers with a status; its address, and what to change in it."""
    status: dict[str, Any] = {"devices": [device_row()], "models": [OLD]}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keyed = status.get("key") in (None, self.headers["Authorization"])
            self.send_response(200 if self.path == "/status/json" and keyed else 401)
            self.end_headers()
            self.wfile.write(json.dumps(status).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", status
        http.shutdown()
        thread.join()


def decision(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found = document(capsys)["models"][0]["decision"]
    assert isinstance(found, dict)
    return found


def test_the_servers_decision(
    words: list[str],
    server: tuple[str, dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, status = server
    asked = ["plan", *words, "--max-ctx", "512", "--explain", url, "--json"]
    assert main(asked) == 0
    found = decision(capsys)
    assert (found["verdict"], found["victims"]) == ("make room", ["old"])
    assert "are missing on GPU-1" in found["reason"]
    status["devices"] = [device_row(free_bytes=4 << 30, ours_bytes=0) | {"held_bytes": {}}]
    assert main(asked) == 0
    assert decision(capsys)["verdict"] == "load"
    status["models_max"] = 1  # The server's own options count, whatever is said here.
    assert main(asked) == 0
    assert decision(capsys)["verdict"] == "make room"
    del status["models_max"]
    # A server that had nothing to decide yet has asked no driver; the tool does.
    status["devices"] = [device_row(ours_bytes=0) | {"held_bytes": {}, "free_bytes": None}]
    assert main(asked) == 0
    assert decision(capsys)["verdict"] == "load"
    status["devices"] = [device_row(pinned_bytes=4 << 30)]
    status["models"] = [OLD | {"pinned": True}]
    assert main(asked) == 1
    assert decision(capsys)["verdict"] == "refuse"


def test_the_decision_in_words(
    words: list[str],
    server: tuple[str, dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, status = server
    status["key"] = "Bearer sk-1"
    assert main(["plan", *words, "--max-ctx", "512", f"--explain={url}"]) == 3
    assert "401" in capsys.readouterr().err
    assert main(["plan", *words, "--api-key", "sk-1", "--max-ctx", "512", f"--explain={url}"]) == 0
    assert "the server would make room: old (luce: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("ready", "luce is resident: it serves"),
        ("draining", "luce is resident: it serves what it has, and gives way"),
        ("loading", "luce is loading: it is being brought in"),
        ("sleeping", "the server would make room: old"),
    ],
)
def test_a_model_that_is_in_is_not_loaded_again(
    words: list[str],
    server: tuple[str, dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    state: str,
    said: str,
) -> None:
    url, status = server
    status["models"] = [OLD, OLD | {"id": "luce", "residency_state": state}]
    asked = ["plan", *words, "--max-ctx", "512", "--explain", url]
    assert main(asked) == 0
    assert said in capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    verdict = decision(capsys)["verdict"]
    assert verdict == (said.split()[2].rstrip(":") if "would" not in said else "make room")


def test_a_model_that_cools_down_is_refused(
    words: list[str],
    server: tuple[str, dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, status = server
    failed = {"id": "luce", "residency_state": "cooldown", "failed_retry_in_ms": 12_100}
    status["models"] = [OLD, OLD | failed]
    assert main(["plan", *words, "--max-ctx", "512", "--explain", url]) == 1
    assert "refuse (luce: it failed, and is not tried again for 13 s)" in capsys.readouterr().out


def test_a_server_that_does_not_decide_by_bytes(
    words: list[str],
    server: tuple[str, dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, status = server
    status["devices"] = []
    assert main(["plan", *words, "--explain", url]) == 3
    assert "decides nothing by bytes" in capsys.readouterr().err
    status["devices"] = [device_row() | {"device": "GPU-9"}]
    assert main(["plan", *words, "--explain", url]) == 3
    assert "the server says nothing of cuda:0 (GPU-1)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "code", "problem"),
    [
        (["--explain"], 2, "--explain needs the address of a server"),
        (["--explain="], 2, "--explain needs the address"),
        (["--explain", "--json"], 2, "--explain needs the address"),
        (["--explain", "localhost:80"], 2, "'localhost:80' is no address of a server"),
        (["--explain", "file:///etc/passwd"], 2, "is no address of a server"),
        (["--explain", "http://127.0.0.1:1"], 3, "no status of a server: "),
    ],
)
def test_addresses_that_help_nobody(
    words: list[str],
    more: list[str],
    code: int,
    problem: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", *words, *more]) == code
    assert problem in capsys.readouterr().err
