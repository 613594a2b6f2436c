from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from luce.observability.log import KeyValueFormatter, configure_logging, request_id_var


@pytest.fixture(autouse=True)
def restore_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    uvicorn_level = logging.getLogger("uvicorn").level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("uvicorn").setLevel(uvicorn_level)


def logged(message: str, **extra: object) -> str:
    stream = io.StringIO()
    configure_logging(stream=stream)
    logging.getLogger("luce.test").info(message, extra=extra)
    return stream.getvalue()


def test_one_line_of_fields() -> None:
    line = logged("request finished", model="big", ttft_ms=1.23456, tokens=3)
    assert line.endswith('INFO luce.test msg="request finished" model=big ttft_ms=1.235 tokens=3\n')
    assert line[:4].isdigit()
    assert line.split(" ")[0].endswith("Z")


def test_request_id_of_this_task() -> None:
    token = request_id_var.set("req-7")
    try:
        assert "request_id=req-7" in logged("x")
    finally:
        request_id_var.reset(token)
    assert "request_id" not in logged("x")


def test_values_can_neither_break_the_line_nor_forge_a_field() -> None:
    line = logged("x", value='a" model=other\nINFO fake', empty="", odd="\x1b[31m")
    assert line.count("\n") == 1
    assert r'value="a\" model=other\nINFO fake"' in line
    assert 'empty=""' in line
    assert r'odd="\x1b[31m"' in line


def test_exception_stays_on_the_line() -> None:
    record = logging.makeLogRecord({"msg": "broke", "levelname": "ERROR", "name": "n"})
    try:
        raise ValueError("inner")
    except ValueError:
        import sys

        record.exc_info = sys.exc_info()
    line = KeyValueFormatter().format(record)
    assert "\n" not in line
    assert "ValueError: inner" in line


def test_level_and_uvicorn() -> None:
    stream = io.StringIO()
    configure_logging(logging.WARNING, stream)
    logging.getLogger("luce.test").info("unseen")
    logging.getLogger("uvicorn.error").info("unseen")
    logging.getLogger("uvicorn.error").warning("seen")
    assert stream.getvalue().count("\n") == 1
