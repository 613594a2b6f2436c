"""A JSON call object, or a list of them, as the first thing of an answer; nothing announces it."""

from __future__ import annotations

from luce.text.tools.syntax import Wrapper

BARE_JSON = Wrapper("", is_bare=True)
