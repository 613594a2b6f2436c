"""The size guide counts what it says it counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def guide(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("size_guide")


def found(
    guide: ModuleType, source: str, path: str = "src/luce/x.py"
) -> list[tuple[str, str, int]]:
    return [(o.place, o.measure, o.value) for o in guide.offences_of(source, path)]


def function(lines: int, head: str = "def f():") -> str:
    """A function of so many lines."""
    return "\n".join([head, *["    x = 1"] * (lines - 1)])


def test_small_code_passes(guide: ModuleType) -> None:
    assert found(guide, function(50)) == []


def test_long_function(guide: ModuleType) -> None:
    assert found(guide, function(51)) == [("src/luce/x.py:f", "lines of function", 51)]


def test_docstrings_do_not_count(guide: ModuleType) -> None:
    source = function(50, 'def f():\n    """One.\n\n    Two.\n    """')
    assert found(guide, source) == []


def test_kernels_may_be_longer(guide: ModuleType) -> None:
    assert found(guide, function(80, "@triton.jit\ndef f():")) == []
    assert found(guide, function(81, "@triton.jit\ndef f():"))[0][1:] == ("lines of kernel", 81)


def test_methods_are_named_by_their_class(guide: ModuleType) -> None:
    body = "\n".join("        x = 1" for _ in range(51))
    source = f"class A:\n    async def f(self):\n{body}"
    assert found(guide, source) == [("src/luce/x.py:A.f", "lines of function", 52)]


def test_long_module_and_model(guide: ModuleType) -> None:
    lines = "x = 1\n" * 350
    assert found(guide, lines) == []
    model = "src/luce/engine/models/llama.py"
    assert found(guide, lines, model) == [(model, "lines of model", 350)]
    assert found(guide, lines + lines)[0][1:] == ("lines of module", 700)


def test_public_methods_without_properties(guide: ModuleType) -> None:
    methods = [f"    def m{n}(self): ..." for n in range(12)]
    private = ["    def _p(self): ...", "    @property", "    def q(self): ..."]
    assert found(guide, "\n".join(["class A:", *methods, *private])) == []
    methods.append("    def more(self): ...")
    assert found(guide, "\n".join(["class A:", *methods])) == [
        ("src/luce/x.py:A", "public methods", 13)
    ]


def test_parameters_without_self(guide: ModuleType) -> None:
    assert found(guide, "def f(a, b, c, /, d, *, e, g, **k): ...") == []
    assert found(guide, "class A:\n    def f(self, a, b, c, d, e, g): ...") == []
    assert found(guide, "def f(a, b, c, /, d, *rest, e, g, h): ...") == [
        ("src/luce/x.py:f", "parameters", 7)
    ]


def test_nesting(guide: ModuleType) -> None:
    def nested(depth: int) -> str:
        ifs = [f"{'    ' * (level + 1)}if x:" for level in range(depth)]
        return "\n".join(["def f():", *ifs, f"{'    ' * (depth + 1)}y = 1"])

    assert found(guide, nested(4)) == []
    assert found(guide, nested(5)) == [("src/luce/x.py:f", "nesting", 5)]


def test_elif_is_no_deeper_than_if(guide: ModuleType) -> None:
    chain = "def f():\n    if a:\n        x = 1\n"
    chain += "".join(f"    elif b{n}:\n        x = 1\n" for n in range(8))
    assert found(guide, chain) == []


def test_inner_functions_are_measured_by_themselves(guide: ModuleType) -> None:
    source = (
        "def f():\n    if a:\n        if b:\n            if c:\n"
        "                def g():\n                    if d:\n                        if e: x = 1\n"
    )
    assert found(guide, source) == []


def test_reasons_excuse_the_guide_but_not_the_limit(guide: ModuleType) -> None:
    soft = guide.Offence("p:f", "lines of function", 60)
    hard = guide.Offence("p:g", "lines of function", 81)
    assert guide.judge([soft], {"p:f": "a table"}) == []
    assert guide.judge([soft], {}) == [
        "p:f: 60 lines of function (guide 50, limit 80): shorten it or give a reason"
    ]
    assert guide.judge([hard], {"p:g": "a table"}) == [
        "p:g: 81 lines of function (guide 50, limit 80): split it"
    ]


def test_exceptions_must_be_needed_and_explained(guide: ModuleType) -> None:
    soft = guide.Offence("p:f", "nesting", 5)
    assert guide.judge([], {"p:f": "once needed"}) == ["p:f: needs no exception"]
    assert guide.judge([soft], {"p:f": ""}) == ["p:f: the reason is empty"]


def test_main_reads_the_tree(
    guide: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "long.py").write_text(function(60))
    exceptions = tmp_path / "exceptions.toml"
    exceptions.write_text("")
    monkeypatch.setattr(guide, "ROOT", tmp_path)
    monkeypatch.setattr(guide, "EXCEPTIONS", exceptions)
    assert guide.main() == 1
    assert "src/long.py:f: 60 lines of function" in capsys.readouterr().err
    exceptions.write_text('"src/long.py:f" = "one long table"')
    assert guide.main() == 0
