"""GrammarCompiler: says why a grammar cannot be followed, once."""

from __future__ import annotations

import re
import threading
import time

import pytest

from luce.text import grammar_compiler
from luce.text.grammar_compiler import GrammarCompiler
from luce.text.vocabulary import TokenVocabulary

TOKENS = [*(bytes([byte]) for byte in range(256)), b"<|end|>"]


def vocabulary() -> TokenVocabulary:
    return TokenVocabulary(TOKENS, (256,), (256,))


@pytest.fixture
def compiler() -> GrammarCompiler:
    return GrammarCompiler(vocabulary)


@pytest.mark.parametrize(
    "lark", ['start: "a"', "start: <[256]>", "start: <|end|>", 'start: %json {"type": "null"}']
)
def test_can_be_followed(compiler: GrammarCompiler, lark: str) -> None:
    assert compiler.fault(lark) is None


@pytest.mark.parametrize(
    ("lark", "says"),
    [
        ("start: missing", "missing"),
        ("start: <|unheard|>", "unheard"),
        ("start: <[257]>", "257"),
        ("start: start", "nothing at all|NoExtension"),
        ('start: %json {"type": "nonsense"}', "^Invalid type: nonsense$"),
        ("start: " + "(" * 5000 + '"a"' + ")" * 5000, "nested"),
        ("nothing", "."),
        ("start: A\nA: " + " & ".join(f"/.*a{i}.*b/" for i in range(14)), "fuel|too big"),
    ],
)
def test_says_why_in_one_line(compiler: GrammarCompiler, lark: str, says: str) -> None:
    fault = compiler.fault(lark)
    assert fault is not None
    assert re.search(says, fault), fault
    assert "\n" not in fault
    assert len(fault) <= 300


def test_the_vocabulary_is_listed_once_and_late() -> None:
    listed = []

    def listing() -> TokenVocabulary:
        listed.append(1)
        time.sleep(0.02)
        return vocabulary()

    compiler = GrammarCompiler(listing)
    assert not listed
    threads = [
        threading.Thread(target=compiler.fault, args=(f'start: "{number}"',)) for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert listed == [1]


def test_verdicts_are_kept_but_not_all(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_compiler, "MAX_KEPT", 2)
    compiled: list[str] = []
    real = compiler._compile
    monkeypatch.setattr(compiler, "_compile", lambda lark: (compiled.append(lark), real(lark))[1])
    grammars = [f'start: "{name}"' for name in "ab"]
    for lark in (*grammars, grammars[0], 'start: "c"', grammars[0], grammars[1]):
        assert compiler.fault(lark) is None
    assert compiled == [*grammars, 'start: "c"', grammars[1]]


def test_a_model_may_have_no_end_token() -> None:
    compiler = GrammarCompiler(lambda: TokenVocabulary(TOKENS[:256], (), ()))
    assert compiler.fault('start: "a"') is None
