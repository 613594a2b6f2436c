"""JsonStream: relaxed JSON to strict JSON."""

from __future__ import annotations

import json

import pytest

from luce.text.tools.json_stream import MAX_DEPTH, MAX_WORD_CHARS, JsonStream, strict_json


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, -2.5e+3, true, false, null, "x\\n\\u00e9\\"", {}], "b": {"c": []}}',
        '"text"',
        " [ ] ",
        "0",
        '"\\ud83d\\ude00"',
        "-0",
    ],
)
def test_strict_json_is_kept(text: str) -> None:
    strict = strict_json(text)
    assert strict is not None
    assert strict == text.rstrip()
    assert json.loads(strict) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{a: 1, b_c: 2}", '{"a": 1, "b_c": 2}'),
        ("{'a': 'it\"s'}", '{"a": "it\\"s"}'),
        ("{`a`: `x`}", '{"a": "x"}'),
        ('{"a": True, "b": None, "c": False}', '{"a": true, "b": null, "c": false}'),
        ('{"a": 1,}', '{"a": 1}'),
        ("[1, 2, ]", "[1, 2 ]"),
        ('{"a": "x\ny\tz"}', '{"a": "x\\ny\\tz"}'),
        (r'{"a": "\d\'"}', r'{"a": "\\d' + "'\"}"),
        (r'"\u12"', r'"\\u12"'),
        (r'"\ud83d."', r'"\ufffd."'),
        (r'"\ude00"', r'"\ufffd"'),
        (r'"\ud83d\ud83d\ude00"', r'"\ufffd\ud83d\ude00"'),
        (r'"\ud83d\n"', r'"\ufffd\n"'),
        (r'"\ud83d\u12"', r'"\ufffd\\u12"'),
        (r'"\ud83d"', r'"\ufffd"'),
        ("\u00a0{}", " {}"),
        ('{"a": [1, {"b": 2', '{"a": [1, {"b": 2}]}'),
        ('{"a": 1, ', '{"a": 1 }'),
        ("{", "{}"),
        ("[", "[]"),
    ],
)
def test_slips_with_one_reading_are_put_right(text: str, expected: str) -> None:
    strict = strict_json(text)
    assert strict == expected
    json.loads(strict)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "x",
        "NaN",
        "Infinity",
        "01",
        "1.",
        "+1",
        '{"a"}',
        '{"a": }',
        '{"a": 1 "b": 2}',
        '{"a": 1, , "b": 2}',
        "[,]",
        '{"a": 1]',
        '{"a": "open',
        '{"a": "open\\',
        '{"a":',
        '{"a',
        "{} {}",
        "(a=1)",
        "{a = 1}",
        '{"a": paris}',
        "[" * (MAX_DEPTH + 1),
        "1" * (MAX_WORD_CHARS + 1),
    ],
)
def test_no_json(text: str) -> None:
    assert strict_json(text) is None


def test_nesting_and_numbers_up_to_the_limit() -> None:
    assert strict_json("[" * MAX_DEPTH + "]" * MAX_DEPTH) == "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert strict_json("1" * MAX_WORD_CHARS) == "1" * MAX_WORD_CHARS


def test_a_python_call() -> None:
    stream = JsonStream(is_call=True)
    text = "(a=1, b='x', c={'d': [True]}) rest"
    assert text[stream.feed(text) :] == " rest"
    assert stream.is_done
    assert stream.take() == '{"a":1, "b":"x", "c":{"d": [true]}}'


def test_an_equals_sign_counts_in_a_call_only_outside() -> None:
    stream = JsonStream(is_call=True)
    stream.feed("(c={d=1})")
    assert stream.has_failed


def test_what_is_given_out_is_the_beginning_of_valid_json() -> None:
    text = '{"a": 1, "b": [true, "x\\u00e9y"], }'
    stream = JsonStream()
    given = ""
    for character in text:
        assert stream.feed(character) == 1
        given += stream.take()
    assert stream.is_done
    assert given == '{"a": 1, "b": [true, "x\\u00e9y"] }'


def test_where_it_failed() -> None:
    stream = JsonStream()
    assert stream.feed('{"a": 1} tail') == 8
    assert stream.feed("more") == 0
    broken = JsonStream()
    assert broken.feed('{"a": 1 <') == 8
    assert broken.has_failed
    assert broken.close()
    assert broken.take() == '{"a": 1 }'


def test_what_was_stopped_stays_so() -> None:
    stream = JsonStream()
    stream.feed('{"a": 1')
    stream.stop()
    assert not stream.close()
    assert stream.feed("}") == 0


def test_strings_from_outside() -> None:
    stream = JsonStream()
    stream.feed("{a:")
    assert stream.open_string()
    stream.add_to_string('q"\\{\n')
    assert not stream.open_string()
    stream.close_string()
    stream.feed(",")
    assert stream.open_string()  # a key
    stream.add_to_string("b")
    stream.close_string()
    stream.feed(":2}")
    assert json.loads(stream.take()) == {"a": 'q"\\{\n', "b": 2}


class Recorder:
    """Notes what a stream tells."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def on_key(self, depth: int, key: str) -> None:
        self.told.append(("key", depth, key))

    def on_value_start(self, depth: int, first: str) -> None:
        self.told.append(("start", depth, first))

    def on_value_end(self, depth: int) -> None:
        self.told.append(("end", depth))


def test_what_a_listener_is_told() -> None:
    recorder = Recorder()
    stream = JsonStream(recorder)
    for character in '{"a\\n": [1], b: {"c": {"d": {"deep": 1}}}}':
        stream.feed(character)
    assert recorder.told == [
        ("start", 0, "{"),
        ("key", 1, "a\n"),
        ("start", 1, "["),
        ("start", 2, "0"),
        ("end", 2),
        ("end", 1),
        ("key", 1, "b"),
        ("start", 1, "{"),
        ("key", 2, "c"),
        ("start", 2, "{"),
        ("key", 3, "d"),
        ("start", 3, "{"),
        ("end", 3),
        ("end", 2),
        ("end", 1),
        ("end", 0),
    ]
    assert stream.num_values == 7


class Doubter(Recorder):
    """Holds each text back, and changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = JsonStream(self)

    def on_value_start(self, depth: int, first: str) -> None:
        if first == '"':
            self.stream.hold()

    def on_value_end(self, depth: int) -> None:
        if self.stream.is_holding:
            self.stream.release(lambda text: f"[{text}]")


def test_values_can_be_held_back_and_changed() -> None:
    stream = Doubter().stream
    out = []
    for character in '{"a": "xy", "b": 1, "c": "z"}':
        stream.feed(character)
        out.append(stream.take())
    assert "".join(out) == '{"a": ["xy"], "b": 1, "c": ["z"]}'
    assert '["xy"]' in out


def test_what_is_held_when_the_text_ends_is_not_given_out() -> None:
    stream = Doubter().stream
    stream.feed('{"a": "xy')
    assert stream.take() == '{"a": '
    assert stream.take() == ""
