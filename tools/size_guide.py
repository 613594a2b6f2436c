"""Lists code that has grown past the size guide; fails when nobody gave a reason.

Each measure has a soft and a hard limit. Past the soft one an entry in `size_exceptions.toml`
with a reason is needed; past the hard one nothing helps but splitting. An entry that is no
longer needed fails too, so that the list stays true.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("src", "tools", "bench")
MODEL_FILES = "src/luce/engine/models/"
EXCEPTIONS = ROOT / "tools" / "size_exceptions.toml"

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Limit:
    """How large something may be: past `soft` with a reason, past `hard` never."""

    soft: int
    hard: int


LIMITS = {
    "lines of module": Limit(400, 600),
    "lines of model": Limit(300, 600),
    "lines of function": Limit(50, 80),
    "lines of kernel": Limit(80, 120),
    "public methods": Limit(12, 20),
    "parameters": Limit(6, 10),
    "nesting": Limit(4, 6),
}


@dataclass(frozen=True, slots=True)
class Offence:
    """Something larger than its soft limit.

    Attributes:
        place: `src/luce/x.py` or `src/luce/x.py:Class.method`.
        measure: a key of `LIMITS`.
        value: how large it is.
    """

    place: str
    measure: str
    value: int

    @property
    def is_hard(self) -> bool:
        """Whether no reason can excuse it."""
        return self.value > LIMITS[self.measure].hard

    def __str__(self) -> str:
        limit = LIMITS[self.measure]
        return f"{self.place}: {self.value} {self.measure} (guide {limit.soft}, limit {limit.hard})"


def offences_of(source: str, path: str) -> list[Offence]:
    """All offences of one module."""
    kind = "model" if path.startswith(MODEL_FILES) else "module"
    measured = [(path, f"lines of {kind}", len(source.splitlines()))]
    for name, node in _definitions(ast.parse(source)):
        place = f"{path}:{name}"
        if isinstance(node, ast.ClassDef):
            measured.append((place, "public methods", _public_methods(node)))
            continue
        kind = "kernel" if _is_kernel(node) else "function"
        measured.append((place, f"lines of {kind}", _lines(node)))
        measured.append((place, "nesting", _nesting(node)))
        if kind == "function":
            measured.append((place, "parameters", _parameters(node)))
    return [
        Offence(place, measure, value)
        for place, measure, value in measured
        if value > LIMITS[measure].soft
    ]


def _definitions(
    tree: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, Definition | ast.ClassDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield f"{prefix}{node.name}", node
            yield from _definitions(node, f"{prefix}{node.name}.")
        else:
            yield from _definitions(node, prefix)


def _lines(node: Definition) -> int:
    """Lines from `def` to the end, without the docstring: explaining is not growing."""
    end = node.end_lineno or node.lineno
    docstring = 0
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        docstring = (first.end_lineno or first.lineno) - first.lineno + 1
    return end - node.lineno + 1 - docstring


def _is_kernel(node: Definition) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)


def _public_methods(node: ast.ClassDef) -> int:
    methods = (child for child in node.body if isinstance(child, Definition))
    return sum(not m.name.startswith("_") and not _is_property(m) for m in methods)


def _is_property(node: Definition) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def _parameters(node: Definition) -> int:
    """Parameters without `self`, `cls`, `*args` and `**kwargs`."""
    arguments = node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


_BLOCKS = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.Match,
)


def _nesting(node: ast.AST) -> int:
    """Deepest nesting of blocks below `node`; an `elif` is as deep as its `if`."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition | ast.ClassDef):
            continue
        depth = _nesting(child)
        is_elif = isinstance(node, ast.If) and [child] == node.orelse and isinstance(child, ast.If)
        if isinstance(child, _BLOCKS) and not is_elif:
            depth += 1
        deepest = max(deepest, depth)
    return deepest


def judge(offences: list[Offence], reasons: dict[str, str]) -> list[str]:
    """What is wrong, one sentence each; empty when all is well.

    Args:
        offences: what is larger than the guide.
        reasons: place → why it may be.
    """
    problems = [
        f"{offence}: split it" if offence.is_hard else f"{offence}: shorten it or give a reason"
        for offence in offences
        if offence.is_hard or offence.place not in reasons
    ]
    places = {offence.place for offence in offences}
    problems += [f"{place}: needs no exception" for place in reasons if place not in places]
    problems += [f"{place}: the reason is empty" for place, text in reasons.items() if not text]
    return problems


def main() -> int:
    """Check the repository; print the offenders and return the exit code."""
    offences: list[Offence] = []
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            offences += offences_of(path.read_text(encoding="utf-8"), name)
    reasons: dict[str, str] = tomllib.loads(EXCEPTIONS.read_text(encoding="utf-8"))
    problems = judge(offences, reasons)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"size guide: {len(problems)} problems, {len(reasons)} exceptions")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
