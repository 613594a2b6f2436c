"""`luce_server --list-devices` and `luce devices`: lines for scripts, a table for people."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from luce.cli.main import main, server_main

INVENTORY = """
[[device]]
id = "hip:0"
name = "AMD Radeon AI PRO R9700"
arch = "gfx1201"
total_mib = 32624
free_mib = 32000
[[device]]
id = "hip:1"
type = "integrated"
arch = "gfx1151"
total_mib = 98304
busy = 1
[[device]]
id = "cpu:0"
name = "EPYC"
total_mib = 65536
"""


@pytest.fixture
def inventory(tmp_path: Path) -> list[str]:
    path = tmp_path / "devices.toml"
    path.write_text(INVENTORY, encoding="utf-8")
    return ["--device-inventory", str(path)]


def fields(line: str) -> dict[str, str]:
    """`key=value` words; free text comes last."""
    head, _, text = line.partition(" name=")
    return dict(word.split("=", 1) for word in head.split() if "=" in word) | {"name": text}


def test_a_line_for_each_device(inventory: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert server_main(["--list-devices", *inventory]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["device", "hip:0"],
        ["device", "hip:1"],
        ["device", "cpu:0"],
    ]
    assert fields(lines[0]) == {
        "arch": "gfx1201",
        "type": "discrete",
        "total_mib": "32624",
        "free_mib": "32000",
        "busy": "0",
        "uuid": "hip:0",
        "name": "AMD Radeon AI PRO R9700",
    }
    assert (fields(lines[1])["type"], fields(lines[1])["busy"]) == ("integrated", "1")
    assert (fields(lines[2])["type"], fields(lines[2])["arch"]) == ("cpu", "unknown")


def test_the_device_for_a_model(
    inventory: list[str], demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server_main(["--list-devices", str(demo_model), *inventory]) == 0
    model, choice = capsys.readouterr().out.splitlines()[-2:]
    assert re.fullmatch(
        rf"model arch=llama size_mib=\d+ kv_mib=\d+ path={re.escape(str(demo_model))}", model
    )
    assert re.fullmatch(r"auto hip:0 fits=yes total_mib=32624 reason=.*discrete GPU.*", choice)


def test_a_model_that_fits_nowhere(
    inventory: list[str], demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(inventory[1]).write_text("[[device]]\nid='cuda:0'\ntotal_mib=700\n", encoding="ascii")
    assert server_main(["--list-devices", str(demo_model), *inventory]) == 1
    choice = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"auto none reason=no device holds the model \(.* needed .* free\)", choice)


def test_no_devices(inventory: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path(inventory[1]).write_text("device = []\n", encoding="ascii")
    assert server_main(["--list-devices", *inventory]) == 1
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["a", "b"], "unexpected word 'b'"),
        (["--port", "1"], "unknown option --port; --help lists all options"),
        (["m.gguf", "--device-memry=cpu:0=1GiB"], "did you mean --device-memory?"),
        ([""], "the model's path is empty"),
    ],
)
def test_more_than_a_model_is_refused(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server_main(["--list-devices", *words]) == 2
    assert main(["devices", *words]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("luce_server: --list-devices: ")
    assert second.startswith("luce: devices: ")
    assert problem in first
    assert problem in second


def test_only_the_first_word_asks_for_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert server_main(["m.gguf", "--list-devices"]) == 2
    assert "unknown option --list-devices" in capsys.readouterr().err


def test_a_model_that_cannot_be_read(
    inventory: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert server_main(["--list-devices", "missing.gguf", *inventory]) == 3
    assert "missing.gguf: there is no such file or folder" in capsys.readouterr().err


def test_a_budget_shows(inventory: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert server_main(["--list-devices", "--device-memory", "hip:0=1GiB", *inventory]) == 0
    assert fields(capsys.readouterr().out.splitlines()[0])["total_mib"] == "1024"


def test_the_table_has_every_device_and_what_suits_a_model(
    inventory: list[str], demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["devices", str(demo_model), *inventory]) == 0
    out = capsys.readouterr().out
    for part in ("hip:0", "hip:1", "cpu:0", "31.9 GiB"):
        assert part in out
    assert f"{demo_model} goes to hip:0: the discrete GPU" in out


def test_what_others_have_taken(inventory: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path(inventory[1]).write_text(
        "[[device]]\nid='cuda:0'\ntotal_mib=4096\nfree_mib=1024\nbusy=2\n"
        "[[device]]\nid='cuda:1'\ntotal_mib=4096\nbusy=1\n"
        "[[device]]\nid='cuda:2'\n[[device]]\nid='cpu:0'\ntotal_mib=4096\nfree_mib=2048\n",
        encoding="ascii",
    )
    assert main(["devices", *inventory]) == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "cuda:0: 3.0 GiB in use, 2 processes on it",
        "cuda:1: 0 B in use, 1 process on it",
        "cuda:2: nobody says how much of it is in use",
        "cpu:0: 2.0 GiB in use",
    ]


def test_this_machine_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    # B43: no compute library in the process that looks around.
    import subprocess

    code = (
        "import sys; from luce.cli.main import server_main; code = server_main(['--list-devices']);"
        "print('torch' in sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[-1] == "False"
    assert any(line.startswith("device cpu:0 ") for line in lines)
