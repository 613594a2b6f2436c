"""Grammars inside JSON strings: the same texts, escaped, and no others."""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.grammar import GrammarVocabulary
from luce.text.json_insides import slashed
from luce.text.lark_in_json import _COMMON, in_json
from luce.text.schema_error import SchemaError

VOCABULARY = GrammarVocabulary([bytes([byte]) for byte in range(256)], [], [])

PATCH = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""What a coding agent sends for its patches."""


def accepts(grammar: str, text: str) -> bool:
    matcher = VOCABULARY.compile(grammar)
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and bool(matcher.is_accepting())


def quoted(grammar: str) -> str:
    """As calls have it: between quotes, behind and before text of their own."""
    return f'start: "\\"" r "\\""\nr: %lark {{\n{in_json(grammar)}\n}}\n'


def check(grammar: str, text: str) -> bool:
    """Whether a text is of the grammar, the same inside JSON and outside."""
    outside = accepts(grammar, text)
    assert accepts(quoted(grammar), json.dumps(text, ensure_ascii=False)) == outside
    return outside


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('start: "a\\"b\\n" "\\\\"', ['a"b\n\\'], ['a"b\n', "ab"]),
        ('start: "Ab\\n"i', ["ab\n", "AB\n"], ["ab", "abN"]),
        ('start: "a".."f" "\\x00".."~"', ["a\n", 'b"', "f\\", "cz"], ["g\n", "aé"]),
        ("start: /[^x]/", ['"', "\\", "\n", "é", "\t", "/"], ["x", "", "ab"]),
        ('start: /[a\\]"\\\\]+/', ['a]"\\'], ["n", "\n"]),
        ("start: /[]a]+/", ["]a"], ["["]),
        ("start: /[^]a]/", ["[", "\n"], ["]", "a"]),
        ("start: /[[:alpha:]\\n]+/", ["ab\nc"], ["1"]),
        ("start: /./ /(?s:.)/", ["a\n", '""'], ["\na", "a"]),
        ("start: /(?s)a.|(?-s:b.)/", ["a\n", "bx"], ["b\n"]),
        ("start: /a.b/s", ["a\nb"], ["ab"]),
        ("start: /[A-Z]\\n/i", ["a\n", "Z\n"], ["1\n", "aN"]),
        ("start: /\\d+\\s\\w/", ["12\tx", "1\nx"], ["1x"]),
        ("start: /\\//", ["/"], ["\\/"]),
        ("start: /a\\/b\\\\c/", ["a/b\\c"], ["a/b/c"]),
        ("start: /\\x22\\u{5c}\\n/", ['"\\\n'], ["\\n"]),
        ("start: /\\p{L}+\\P{L}/", ["abé\n", 'a"'], ["ab1c"]),
        ('start: /a{2,3}/ /[\\n\\t]{2}/ "x"', ["aa\n\tx"], ["aa\nx"]),
        (
            "start: line+\nline: /[^\\n]+/ LF\n%import common.LF",
            ["a\n", 'x"\\\n\ty\n'],
            ["a", "\n"],
        ),
        ('start: LINE (LF LINE)*\nLINE: /[^\\n]+/\nLF: "\\n"', ['a"\nb', "a\\"], ["a\n", "\n"]),
        ('start: KEY ":" STRING\nKEY: /[a-z]+/\nSTRING: "\\"" /[^"]*/ "\\""', ['a:"b\n"'], ["a:b"]),
        (
            "start: INT (WS INT)* NEWLINE?\n%import common.WS\n%import common (INT, NEWLINE)",
            ["1", "1 2\t\n3", "1\r\n"],
            ["1,2", "a"],
        ),
        ("start: A+\nA: /[a-z]/\n%ignore /[ \\n]+/\n", ["ab", "a\nb", "a \n b"], ["a\tb"]),
        ("start: /[^x\\n]{1,3}/ LF\nLF: /\\n/", ['a"\\\n', "é\n"], ["\n", "aaaa\n"]),
        ('start: /[^x]{2}/ /\\n?/ "\\t"', ['a"\t', "\n\n\n\t"], ["a\t", "aaaa\t"]),
        ("start: A+\nA: /[a-z]/\n%ignore WS\n%import common.WS\n", ["ab", "a\n\tb"], ["a-b"]),
        ("start: Q\n%import common.ESCAPED_STRING -> Q\n", ['"a\\"b"', '""'], ['"', "a"]),
        ("start: C\n%import common.C_COMMENT -> C\n", ["/* a\n*b **/"], ["/* a", "/**/x"]),
        ('start: a\na: b | "x" // no "b" here: /x/\nb: "y" # none: "z"\n', ["x", "y"], ["z"]),
        ('start: w~2\nw: /\\w/ "\\n"', ["a\nb\n"], ["a\n"]),
        # Texts that begin others, and go on where JSON writes a backslash.
        ('start: "x" "\\n" | "x\\t"', ["x\n", "x\t"], ["x", "x\n\t"]),
        ('start: A B | C\nA: "x"\nB: "\\n" // no "\nC: "x\\t"\n', ["x\n", "x\t"], ["x\\"]),
        ('start: /[^x]*/ | "\\"ax"', ['"ab', '"ax', '"a'], ["ax"]),
        ("start: A+ B | B\nA: /[b-z]{2}/\nB: /\\n?/ // x: /y/\n", ["bc\n", "\n"], ["b\n"]),
        # Those that are never looked for at the same place take nothing of each other.
        (
            'start: "<p>\\n" l+ e?\nl: ("+" | "</p>") /[^\\n]{0,5}/ LF\ne: "\\\\" /["<>\\n]/ "}"\n'
            "%import common.LF\n",
            ["<p>\n+</p>\n", '<p>\n+a"\n</p>\\\n', "<p>\n+\n\\\n}"],
            ["<p>\n+aaaaaa\n", "<p>\n", "<p>\n+a\n\\\\}"],
        ),
        # Nothing is ignored inside a terminal.
        ("start: A A?\nA: /[^z]{2}/\n%ignore /z/", ["a\n", "a\nzzb\n"], ["az\n", "a\nbz\n"]),
        ('start: "a" NEWLINE "b"\n%import common.NEWLINE\n%ignore " "', ["a \n b"], ["a\n \nb"]),
        (PATCH, ["*** Begin Patch\n*** Delete File: a\n*** End Patch"], ["*** Begin Patch\n"]),
    ],
)
def test_the_same_texts(grammar: str, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not check(grammar, text)] == []
    assert [text for text in bad if check(grammar, text)] == []


def test_a_patch() -> None:
    patch = (
        '*** Begin Patch\n*** Update File: a/b "c".py\n@@ def f():\n-\tprint("a\\n")\n'
        "+  </parameter></tool_call>é\n*** Add File: c\\d\n+\n*** End Patch\n"
    )
    assert check(PATCH, patch)
    assert not check(PATCH, patch.replace("@@ ", "@ "))


@settings(max_examples=150, deadline=None)
@given(
    pattern=st.sampled_from(
        [
            r"[^\n]*",
            r'"(?:[^"\\]|\\.)*"',
            r"(?:[a-c]|\n\t|\\)*[^a-c]?1",
            r"(?:(?s:a.)+|[\s\S]{3})1",
            r"[\W&&[^a\\]]+",
            r"\s*[\d\"]+b",
            r"((?:\r?\n|\t)+)",
        ]
    ),
    text=st.text(st.sampled_from('abc1"\\\n\t /é'), max_size=6),
)
def test_expressions_match_the_same(pattern: str, text: str) -> None:
    check(f"start: /{pattern}/\n", text)


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ("start: A\nA: /[a-z]+/ & ~/abc/", "operator ~"),
        ("start: <[12]>", "control token"),
        ("start: /a b/x", "flags"),
        ("start: /(?m)a/", "flags"),
        ("start: /a[^b]*/ LF\nLF: /\\n/", "/a[^b]*/ ends in something that JSON escapes"),
        ("start: " + " ".join(f"/[{chr(200 + i)}-ɏ]/" for i in range(101)), "100 different sets"),
        (
            "start: A0\n" + "".join(f'A{i}: "a"\n' for i in range(201)),
            "more than 200 terminals",
        ),
        ("start: " + " ".join(f"/{chr(200 + i)}/" for i in range(201)), "200 different regular"),
        (
            "start: A0\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(30)) + "A30: /x/\n",
            "is too large",
        ),
        ('start: (W | S | "\\n")+\nW: /[a-z]+/\nS: /[a-z]+"/\n', "begins another one"),
        ('start: /[^x\\n]{1,3}/ | "ab;"', "begins another one"),
        # What was one lexeme would end early, and let in what it takes all of outside.
        (
            'start: s | /[^b]*/ ("b\\"" | "b") /b?/\ns: "a\\n" "ab" /["\\n]/\n'
            'r: "\\n" /[^\\n]{0,3}/ "a"\n',
            "begins another one",
        ),
        ('start: "ab" /[^b]*/ "a\\n" | r\nr: /[a"]{2}/ "\\n"\n', "begins another one"),
        # Rules that have options are not looked into.
        (
            'start: l+\nl: ("+" | "</p>") r LF\nr[capture]: /[^\\n]{0,5}/\nLF: /\\n/\n',
            "begins another one",
        ),
        ("start: L LF\nL: /a[^\\n]*/\nLF: /\\n/", "L ends in something that JSON escapes"),
    ],
)
def test_what_cannot_be_written(grammar: str, why: str) -> None:
    with pytest.raises(SchemaError) as refused:
        in_json(grammar)
    assert why in refused.value.why


def test_only_one_spelling_of_an_escape() -> None:
    grammar = quoted("start: /[^x]/")
    assert accepts(grammar, '"\\n"')
    for text in ('"\\u000a"', '"\\N"', '"\n"', '"\\/"', '"x"', '"\\x"'):
        assert not accepts(grammar, text)


@pytest.mark.parametrize("name", sorted(_COMMON))
def test_lark_s_own_terminals_are_written_as_they_are_in_it(name: str) -> None:
    ours, theirs = (
        VOCABULARY.compile(f"start: {name}\n{source}\n")
        for source in (f"{name}: {slashed(_COMMON[name])}", f"%import common.{name}")
    )
    for size in range(5):
        for text in map(bytes, product(b'"\\\n\r\t/*-#a', repeat=size)):
            accepting = []
            for matcher in (ours.deep_copy(), theirs.deep_copy()):
                taken = matcher.try_consume_tokens(list(text))
                accepting.append((taken, bool(matcher.is_accepting())))
            assert accepting[0] == accepting[1], text
