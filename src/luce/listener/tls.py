"""The server's certificate, opened before anything slow begins."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

from luce.errors import UsageError
from luce.option_file import read_option_file, reason_of

_ALPN = ["http/1.1"]
_MISMATCH = "KEY_VALUES_MISMATCH"


class _NeedsPassword(Exception):
    """The key is encrypted. Nobody is asked: a server starts unattended."""


def tls_context(cert: Path, key: Path | None) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate.

    Args:
        cert: PEM, the server's certificate first, intermediate ones behind it.
        key: PEM; None = it is in `cert`.

    Raises:
        UsageError: a file cannot be read or is not what it should be; names it.
    """
    for flag, path in (("--tls-cert", cert), ("--tls-key", key)):
        if path is not None:
            _check_readable(flag, path)
    _check_certificate(cert)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    where = f"--tls-cert: {cert}" if key is None else f"--tls-key: {key}"
    try:
        context.load_cert_chain(cert, key, password=_refuse)
    except _NeedsPassword as error:
        raise UsageError(f"{where}: the private key is encrypted; decrypt it first") from error
    except ssl.SSLError as error:
        raise UsageError(f"{where}: {_reason(error, cert)}") from error
    return context


def _refuse() -> str:
    raise _NeedsPassword


def _check_readable(flag: str, path: Path) -> None:
    """The library reads a file by its name and more than once, which a pipe does not bear."""
    try:
        if stat.S_ISFIFO(path.stat().st_mode):
            raise UsageError(f"{flag}: {path} is a pipe; write a file")
        read_option_file(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{flag}: cannot read {path}: {reason_of(error)}") from error


def _check_certificate(cert: Path) -> None:
    """The library's message for a bad certificate is the same as for a bad key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cert)
    except ssl.SSLError as error:
        raise UsageError(f"--tls-cert: there is no certificate (PEM) in {cert}") from error


def _reason(error: ssl.SSLError, cert: Path) -> str:
    if error.reason == _MISMATCH:
        return f"the private key does not belong to the certificate {cert}"
    return "there is no usable private key (PEM) in it"
