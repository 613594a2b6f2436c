"""Forms of names and addresses."""

from __future__ import annotations

import pytest

from luce.config.forms import check_host, check_model_name
from luce.config.option import BadValue


@pytest.mark.parametrize("name", ["a", "Zürich 7B", "org/model:tag", "automatic", "-x"])
def test_names(name: str) -> None:
    check_model_name(name)


@pytest.mark.parametrize("name", ["auto", "AUTO", "Auto"])
def test_reserved_name(name: str) -> None:
    with pytest.raises(BadValue, match=f"'{name}' is reserved"):
        check_model_name(name)


@pytest.mark.parametrize("name", [" ", "a ", "\ta", "a\nb", "a\x7f", "\ud800"])
def test_names_must_be_readable(name: str) -> None:
    with pytest.raises(BadValue, match="must be printable"):
        check_model_name(name)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::", "localhost", "my-host.org"])
def test_hosts(host: str) -> None:
    check_host(host)


@pytest.mark.parametrize("host", ["a b", "höst", "a\n", "\x00"])
def test_no_hosts(host: str) -> None:
    with pytest.raises(BadValue, match="is no address"):
        check_host(host)


@pytest.mark.parametrize("host", ["999.1.1.1", "1.2.3", "1", "...", "127.0.0.01"])
def test_numbers_that_are_no_address(host: str) -> None:
    with pytest.raises(BadValue, match="is no IPv4 address"):
        check_host(host)
