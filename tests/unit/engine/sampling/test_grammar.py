"""Grammars: what is allowed, what does not compile, what goes over its limits."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from luce.engine.sampling.grammar import GrammarCompiler, Matcher
from luce.errors import InvalidGrammar
from luce.protocol.sampling import GrammarSpec

END, CONTROL, EMPTY, PAIR = 256, 257, 258, 259
TOKENS = [*(bytes([byte]) for byte in range(256)), b"<end>", b"<tool>", b"", b"ab"]


@pytest.fixture
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENS, [END, CONTROL], [END])


def allowed(compiler: GrammarCompiler, matcher: Matcher) -> set[int]:
    words = np.zeros((1, compiler.mask_words), dtype=np.int32)
    compiler.fill([matcher], words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def ids(text: str) -> list[int]:
    return list(text.encode())


def test_only_what_the_grammar_goes_on_with_is_allowed(compiler: GrammarCompiler) -> None:
    matcher = compiler.matcher(GrammarSpec("start: /[a-c]{2,3}/"))
    assert allowed(compiler, matcher) == {*ids("abc"), PAIR}
    assert matcher.consume([PAIR])
    assert allowed(compiler, matcher) == {*ids("abc"), END}
    assert matcher.consume(ids("c"))
    assert allowed(compiler, matcher) == {END}


def test_a_forced_text_may_be_spelled_in_any_way(compiler: GrammarCompiler) -> None:
    matcher = compiler.matcher(GrammarSpec('start: "abba"'))
    assert allowed(compiler, matcher) == {ord("a"), PAIR}


def test_a_control_token_is_allowed_by_name_only(compiler: GrammarCompiler) -> None:
    anything = compiler.matcher(GrammarSpec("start: /(?s:.*)/"))
    assert not {CONTROL, EMPTY} & allowed(compiler, anything)
    named = compiler.matcher(GrammarSpec("start: <tool> /x/"))
    assert allowed(compiler, named) == {CONTROL}
    assert named.consume([CONTROL])
    assert allowed(compiler, named) == {ord("x")}


def test_a_token_that_is_not_allowed_breaks_the_matcher_for_good(
    compiler: GrammarCompiler,
) -> None:
    matcher = compiler.matcher(GrammarSpec("start: /a+/"))
    assert not matcher.consume(ids("b"))
    assert matcher.is_broken
    assert not matcher.consume(ids("a"))


def test_matchers_of_one_grammar_are_independent(compiler: GrammarCompiler) -> None:
    grammar = GrammarSpec("start: /ab*/")
    first = compiler.matcher(grammar)
    first.consume(ids("ab"))
    second = compiler.matcher(grammar)
    assert allowed(compiler, second) == {ord("a"), PAIR}
    assert allowed(compiler, first) == {ord("b"), END}


def test_several_masks_at_once_are_those_of_each_alone(compiler: GrammarCompiler) -> None:
    grammars = [GrammarSpec(f"start: /[{first}-z]x?/") for first in "abcdefgh"]
    expected = [allowed(compiler, compiler.matcher(grammar)) for grammar in grammars]
    words = np.zeros((8, compiler.mask_words), dtype=np.int32)
    compiler.fill([compiler.matcher(grammar) for grammar in grammars], words)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    assert [set(np.flatnonzero(line).tolist()) for line in bits] == expected
    assert len({len(each) for each in expected}) == 8


def test_without_an_end_token_a_place_behind_the_vocabulary_says_complete() -> None:
    compiler = GrammarCompiler(TOKENS[:256], [], [])
    assert compiler.end_ids == (256,)
    matcher = compiler.matcher(GrammarSpec('start: "a"'))
    matcher.consume(ids("a"))
    assert allowed(compiler, matcher) == {256}


@pytest.mark.parametrize(
    "lark",
    [
        "start: (",
        "start: missing",
        'start: %json {"type": "no such type"}',
        "",
        "no start here",
        "start: /(?=look)ahead/",
        "start: /(((((/",
        "start: " + "(" * 50_000 + '"a"' + ")" * 50_000,
        'start: %json {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}',
    ],
)
def test_what_cannot_be_followed_is_refused_in_words(compiler: GrammarCompiler, lark: str) -> None:
    with pytest.raises(InvalidGrammar, match="schema or grammar") as caught:
        compiler.matcher(GrammarSpec(lark))
    assert len(str(caught.value)) < 500


def test_a_dead_end_breaks_the_matcher() -> None:
    """A vocabulary without the byte that must come."""
    compiler = GrammarCompiler([b"a", b"b", b"<end>"], [2], [2])
    matcher = compiler.matcher(GrammarSpec('start: "a" "c"'))
    assert matcher.consume([0])
    allowed(compiler, matcher)
    assert matcher.is_broken


@pytest.mark.parametrize(
    "lark",
    [
        "start: %json " + json.dumps({"enum": [f"value number {i}" for i in range(10_000)]}),
        "start: /" + "(a|b)*" * 12 + "a(a|b){1500}/",
        "start: /" + "(x+x+)+" * 10 + "y/",
        'start: ("a"{1,1000}){1,1000}',
    ],
    ids=["enum", "states", "nested", "repeated"],
)
def test_a_hostile_grammar_costs_bounded_time(compiler: GrammarCompiler, lark: str) -> None:
    """It compiles or does not, follows or breaks; either way in little time."""
    begun = time.process_time()
    try:
        matcher = compiler.matcher(GrammarSpec(lark))
    except InvalidGrammar:
        return
    for _ in range(12):
        open_ids = allowed(compiler, matcher) - {END}
        if matcher.is_broken or not open_ids:
            break
        matcher.consume([min(open_ids)])
    assert time.process_time() - begun < 10


def test_a_grammar_that_grows_too_ambiguous_breaks_its_own_matcher(
    compiler: GrammarCompiler,
) -> None:
    grammar = GrammarSpec('start: ("x"{1,1000}){1,1000}')
    matcher = compiler.matcher(grammar)
    while not matcher.is_broken:
        assert allowed(compiler, matcher)
        matcher.consume(ids("x"))
    assert ord("x") in allowed(compiler, compiler.matcher(grammar))


def test_what_was_compiled_is_kept_and_the_least_used_goes(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    compile_one = compiler._compile
    monkeypatch.setattr(
        compiler, "_compile", lambda lark: compiled.append(lark) or compile_one(lark)
    )
    kept = GrammarSpec("start: /kept/")
    for number in range(40):
        compiler.matcher(GrammarSpec(f"start: /a{{{number + 1}}}/"))
        compiler.matcher(kept)
    assert compiled.count(kept.lark) == 1
    compiler.matcher(GrammarSpec("start: /a{1}/"))
    assert compiled.count("start: /a{1}/") == 2
