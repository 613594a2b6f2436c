from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from luce.errors import BindError
from luce.listener.unix_socket import listen_on


def connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_it_is_there_for_owner_and_group_and_goes_with_us(tmp_path: Path) -> None:
    path = tmp_path / "luce.sock"
    before = os.umask(0)
    try:
        with listen_on(path):
            connect(path)
            mode = path.stat().st_mode
            assert stat.S_ISSOCK(mode)
            assert stat.S_IMODE(mode) == 0o660
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert not path.exists()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "luce.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with listen_on(path):
        connect(path)


def test_a_running_server_keeps_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "luce.sock"
    with listen_on(path):
        with pytest.raises(BindError, match=r"luce.sock: it is in use.*--uds"):
            with listen_on(path):
                pass
        connect(path)


def test_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(BindError, match="exists and is no socket"):
        with listen_on(path):
            pass
    assert path.read_text() == "mine"


def test_a_successors_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "luce.sock"
    with listen_on(path):
        path.rename(tmp_path / "old")
        path.write_text("successor")
    assert path.read_text() == "successor"


def test_places_that_cannot_be_had(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "folder", tmp_path / ("x" * 120)):
        with pytest.raises(BindError, match="cannot listen on"):
            with listen_on(path):
                pass
    with pytest.raises(BindError, match="longer than 107 bytes"):
        with listen_on(tmp_path / ("x" * 120)):
            pass
