"""Any kind of value under any key of a GGUF file gives a result or `ModelFileError`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.cli.inspect import inspect, summarize
from luce.errors import ModelFileError
from luce.loaders.gguf import GgufFile
from luce.loaders.opening import open_checkpoint, read_text_metadata
from luce.testing import gguf_bytes as gb
from luce.testing.gguf_bytes import GgufBytes, entry
from luce.testing.tiny_models import tiny_llama
from luce.text.bundle import TextBundle

Value = tuple[int, object]

ABSENT_KEYS = (
    "general.alignment",
    "split.count",
    "split.no",
    "split.tensors.count",
    "llama.attention.causal",
    "llama.attention.key_length",
    "llama.attention.sliding_window",
    "llama.expert_count",
    "llama.rope.scale_linear",
    "llama.rope.scaling.attn_factor",
    "llama.rope.scaling.factor",
    "llama.rope.scaling.original_context_length",
    "llama.rope.scaling.type",
    "llama.rope.scaling.yarn_beta_fast",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.scores",
)
"""Keys the tiny model lacks and the loaders know."""

NUMBERS = {
    gb.UINT8: (0, 1, 255),
    gb.INT8: (-1, 1),
    gb.INT32: (-(2**31), -1, 0, 2**31 - 1),
    gb.UINT32: (0, 1, 5, 2**32 - 1),
    gb.UINT64: (2**63, 2**64 - 1),
    gb.INT64: (-(2**63), 7),
    gb.FLOAT32: (math.nan, math.inf, -1.0, 0.0, 1.0, 2.5),
    gb.FLOAT64: (1e300, 1e-300),
    gb.BOOL: (True, False),
}
TEXTS = ("", "llama", "gpt2", "yarn", "x y", "{% if %}", "\0\x1b\u202e\U0001f600")

VALUES: list[Value] = [
    *((kind, number) for kind, numbers in NUMBERS.items() for number in numbers),
    *((gb.STRING, text) for text in TEXTS),
    *(
        (gb.ARRAY, (kind, items))
        for kind, numbers in NUMBERS.items()
        for items in ([], numbers[:1] * 2, [numbers[0], numbers[-1]])
    ),
    *((gb.ARRAY, (gb.STRING, items)) for items in ([], ["a"], ["a b", ""], ["a", "a"])),
    (gb.ARRAY, (gb.ARRAY, [(gb.INT32, [1, 2]), (gb.STRING, ["a"])])),
    (gb.ARRAY, (gb.FLOAT32, [math.nan] * 600)),
    (gb.ARRAY, (gb.INT32, [1] * 600)),
    (gb.ARRAY, (gb.UINT64, [2**64 - 1] * 600)),
]

ONE_OF_EACH_KIND: list[Value] = [
    *((kind, numbers[-1]) for kind, numbers in NUMBERS.items()),
    (gb.STRING, "x"),
    *((gb.ARRAY, (kind, [numbers[0], numbers[-1]])) for kind, numbers in NUMBERS.items()),
    (gb.ARRAY, (gb.INT32, [])),
    (gb.ARRAY, (gb.STRING, ["a b", "c"])),
    (gb.ARRAY, (gb.ARRAY, [(gb.INT32, [1, 2]), (gb.STRING, ["a"])])),
]

_KINDS = {np.dtype(name): kind for name, kind in (("i4", gb.INT32), ("f4", gb.FLOAT32))}


def _stored(value: object) -> Value:
    """A value as a file's metadata gives it, ready to be written again."""
    if isinstance(value, np.ndarray):
        return gb.ARRAY, (_KINDS[value.dtype], value.tolist())
    if isinstance(value, list):
        return gb.ARRAY, (gb.STRING, value)
    kinds: dict[type, int] = {
        bool: gb.BOOL,
        int: gb.UINT32,
        float: gb.FLOAT32,
        str: gb.STRING,
    }
    return kinds[type(value)], value


class TinyGguf:
    """A small model whose metadata can be changed, kind by kind."""

    def __init__(self, folder: Path) -> None:
        original = tiny_llama(folder, num_layers=1)
        file = GgufFile(original)
        self.entries = {key: _stored(value) for key, value in file.metadata.items()}
        start = min(tensor.start for tensor in file.tensors)
        self._tensors = [
            gb.tensor(
                tensor.meta.name,
                tuple(reversed(tensor.meta.shape)),
                {"F32": 0, "F16": 1}[tensor.meta.type],
                tensor.start - start,
            )
            for tensor in file.tensors
        ]
        self._data = original.read_bytes()[start:]
        file.close()
        self.path = folder / "changed.gguf"

    def write(self, changes: Mapping[str, Value | None]) -> Path:
        """The model with these keys changed, or (None) left out."""
        entries = {**self.entries, **changes}
        built = GgufBytes(
            entries=[entry(key, *value) for key, value in entries.items() if value is not None],
            tensors=self._tensors,
            data=self._data,
        )
        self.path.write_bytes(built.build())
        return self.path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyGguf:
    return TinyGguf(tmp_path_factory.mktemp("types"))


USES: tuple[Callable[[Path], object], ...] = (
    open_checkpoint,
    read_text_metadata,
    TextBundle.load,
    partial(inspect, as_json=False),
    partial(inspect, as_json=True),
)
_MAIN_USES = (open_checkpoint, TextBundle.load, summarize)


def _survives(path: Path, uses: Iterable[Callable[[Path], object]] = USES) -> None:
    for use in uses:
        with contextlib.suppress(ModelFileError):
            use(path)


def test_the_rewritten_original_is_whole(tiny: TinyGguf) -> None:
    path = tiny.write({})
    assert summarize(path).problem is None
    assert open_checkpoint(path).hparams.num_layers == 1


def test_every_kind_of_value_under_every_key(tiny: TinyGguf) -> None:
    for key in (*tiny.entries, *ABSENT_KEYS):
        for value in (*ONE_OF_EACH_KIND, None):
            path = tiny.write({key: value})
            try:
                _survives(path, _MAIN_USES)
            except Exception as error:
                raise AssertionError(f"{key} = {value}") from error


@settings(max_examples=150)
@given(data=st.data())
def test_several_wrong_values_together(tiny: TinyGguf, data: st.DataObject) -> None:
    keys = st.sampled_from([*tiny.entries, *ABSENT_KEYS])
    changes = data.draw(st.dictionaries(keys, st.sampled_from(VALUES), min_size=2, max_size=5))
    _survives(tiny.write(changes))


@settings(max_examples=100)
@given(data=st.data())
def test_a_sentencepiece_vocabulary_of_wrong_values(tiny: TinyGguf, data: st.DataObject) -> None:
    changes: dict[str, Value | None] = {"tokenizer.ggml.model": (gb.STRING, "llama")}
    for key in ("scores", "merges", "token_type", "tokens", "add_space_prefix"):
        value = data.draw(st.none() | st.sampled_from(VALUES))
        changes[f"tokenizer.ggml.{key}"] = value
    _survives(tiny.write(changes))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("general.architecture", (gb.ARRAY, (gb.UINT32, [1, 2])), r"\[1, 2\].*must be a string"),
        ("split.count", (gb.ARRAY, (gb.UINT32, [1, 2])), "it must be a whole number"),
        ("split.count", (gb.STRING, "one"), "'one': it must be a whole number"),
        (
            "llama.attention.sliding_window",
            (gb.ARRAY, (gb.UINT32, [1, 2])),
            "it must be a whole number",
        ),
        ("llama.context_length", (gb.UINT32, 1), "is 1: .*must be 16 at least"),
        ("llama.rope.freq_base", (gb.FLOAT32, 1.0), "is 1.0: .*must be above 1"),
        ("tokenizer.ggml.eos_token_id", (gb.ARRAY, (gb.UINT32, [1, 2])), "be a whole number"),
        ("tokenizer.ggml.eos_token_id", (gb.FLOAT32, 2.0), "is 2.0: it must be a whole number"),
        ("tokenizer.ggml.model", (gb.ARRAY, (gb.UINT32, [1, 2])), "it must be a string"),
        ("tokenizer.ggml.pre", (gb.ARRAY, (gb.UINT32, [1, 2])), "it must be a string"),
        ("tokenizer.ggml.merges", (gb.UINT32, 5), "is 5: it must be a list of strings"),
        ("tokenizer.ggml.tokens", (gb.UINT32, 5), "is 5: it must be a list of strings"),
        ("tokenizer.ggml.token_type", (gb.UINT32, 5), "is 5: it must be a list of whole numbers"),
        (
            "tokenizer.ggml.token_type",
            (gb.ARRAY, (gb.FLOAT32, [math.nan] * 9)),
            "9 values: it must",
        ),
        ("tokenizer.chat_template", (gb.UINT32, 5), "is 5: it must be a string"),
        ("tokenizer.ggml.add_bos_token", (gb.UINT32, 1), "is 1: it must be true or false"),
    ],
)
def test_the_key_the_kind_and_the_value_are_named(
    tiny: TinyGguf, key: str, value: Value, says: str
) -> None:
    path = tiny.write({key: value})
    with pytest.raises(ModelFileError, match=rf"(?s)changed\.gguf: {key} .*{says}"):
        TextBundle.load(path)
    if key != "split.count":  # which is read before there is a model to describe
        problem = summarize(path).problem
        assert problem is not None
        assert key in problem
