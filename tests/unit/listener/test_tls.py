from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from luce.errors import UsageError
from luce.listener.tls import tls_context

FILES = Path(__file__).parents[2] / "data" / "tls"
CERT, KEY = FILES / "cert.pem", FILES / "key.pem"


def test_certificate_and_key() -> None:
    context = tls_context(CERT, KEY)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_both_in_one_file(tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(KEY.read_bytes() + CERT.read_bytes())
    assert isinstance(tls_context(both, None), ssl.SSLContext)


@pytest.mark.parametrize(
    ("cert", "key", "says"),
    [
        (
            "cert.pem",
            "other_key.pem",
            "--tls-key: .*other_key.pem: the private key does not belong",
        ),
        ("cert.pem", "encrypted_key.pem", "--tls-key: .*encrypted_key.pem: .*is encrypted"),
        ("cert.pem", "none.pem", "--tls-key: cannot read .*none.pem: No such file"),
        ("none.pem", "key.pem", "--tls-cert: cannot read .*none.pem: No such file"),
        ("cert.pem", "cert.pem", "--tls-key: .*no usable private key"),
        ("cert.pem", None, "--tls-cert: .*no usable private key"),
        ("key.pem", "key.pem", "--tls-cert: there is no certificate .*key.pem"),
        ("", "key.pem", "--tls-cert: cannot read"),
    ],
)
def test_files_that_are_refused(cert: str, key: str | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        tls_context(FILES / cert, None if key is None else FILES / key)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00\xff" * 100, CERT.read_bytes()[:200]])
def test_damaged_files(tmp_path: Path, content: bytes) -> None:
    damaged = tmp_path / "damaged.pem"
    damaged.write_bytes(content)
    with pytest.raises(UsageError, match="no certificate"):
        tls_context(damaged, KEY)
    with pytest.raises(UsageError, match="no usable private key"):
        tls_context(CERT, damaged)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.pem"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match=r"--tls-cert: .*pipe\.pem is a pipe; write a file"):
        tls_context(pipe, None)
    with pytest.raises(UsageError, match=r"--tls-key: .*pipe\.pem is a pipe; write a file"):
        tls_context(CERT, pipe)
