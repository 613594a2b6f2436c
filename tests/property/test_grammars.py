"""Random grammars, schemas and draws: no illegal token comes, whatever the sampler is asked for.

What was allowed is checked by Python's own `re` and `json`, which know nothing of llguidance.
"""

from __future__ import annotations

import json
import re

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from luce.engine.extras import RowExtras
from luce.engine.sampling.sampler import Sampler
from luce.protocol.sampling import GrammarSpec, SamplingParams
from luce.scheduler.plan import GRAMMAR_ENDED_TOKEN, RowStart, ScheduledSequence

CPU = torch.device("cpu")
END = 0
PIECES = (
    b"ab",
    b"ba",
    b"cab",
    b'{"',
    b'":',
    b"}]",
    b", ",
    b"true",
    b"null",
    b"12",
    b'""',
    "é".encode(),
)
TOKENS = [b"<end>", *(bytes([byte]) for byte in range(256)), *PIECES]
VOCAB = len(TOKENS) + 3
MAX_TOKENS = 40

ATOMS = st.sampled_from(["a", "b", "c", "[ab]", "[^ab]", "ab", "é", "[0-9]"])
REGEXES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda options: f"({'|'.join(options)})"),
        st.builds(lambda each, times: f"({each}){times}", inner, st.sampled_from("?*+")),
        st.builds(lambda each: f"({each}){{1,3}}", inner),
    ),
    max_leaves=8,
)
SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {"type": "string", "maxLength": 5},
            {"type": "integer", "minimum": -9, "maximum": 120},
            {"type": "boolean"},
            {"type": "null"},
            {"enum": ["x", 1, None]},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(
            lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 2}, inner
        ),
        st.builds(
            lambda first, second: {
                "type": "object",
                "properties": {"a": first, "ab": second},
                "required": ["a"],
                "additionalProperties": False,
            },
            inner,
            inner,
        ),
    ),
    max_leaves=4,
)
PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.7, 3.0]),
        "top_k": st.sampled_from([0, 1, 5]),
        "top_p": st.sampled_from([1.0, 0.5]),
        "repetition_penalty": st.sampled_from([1.0, 1.5]),
        "min_tokens": st.sampled_from([0, 6]),
        "logit_bias": st.sampled_from([{}, {END: 50.0}, {1 + ord("z"): 100.0}]),
        "stop_token_ids": st.sampled_from([(END,), ()]),
    }
)


def generate(
    grammar: GrammarSpec, params: dict[str, object], seed: int, resume_at: int = MAX_TOKENS + 1
) -> tuple[bytes, bool]:
    """Text and whether it came to an end, of a model that writes at random.

    Args:
        resume_at: output index before which the row starts anew, as after a preemption.
    """
    sampling = SamplingParams(max_tokens=MAX_TOKENS, grammar=grammar, **params)  # type: ignore[arg-type]
    extras, sampler = RowExtras(1, VOCAB), Sampler(1, VOCAB, 64, CPU)
    extras.constraints.use_vocabulary(TOKENS, [END], [END])
    output: list[int] = []
    try:
        for index in range(MAX_TOKENS):
            if index in (0, resume_at):
                start = RowStart(0, sampling, seed, (1, *output), 1)
                extras.start([start])
                sampler.start(start)
            generator = torch.Generator().manual_seed(1000 * seed + index)
            logits = torch.randn(1, VOCAB, generator=generator) * 3
            item = ScheduledSequence(0, index, (), (1,), sample=True, output_index=index)
            step = extras.begin([item])
            step.look_at(logits)
            ids = sampler.sample(logits, [0], [index], step.masks())
            (token_id,) = step.begin_readback(ids)().token_ids
            if token_id in sampling.stop_token_ids or token_id == GRAMMAR_ENDED_TOKEN:
                return b"".join(TOKENS[i] for i in output), True
            assert 0 <= token_id < len(TOKENS), f"token {token_id} has no text"
            output.append(token_id)
        return b"".join(TOKENS[i] for i in output), False
    finally:
        extras.constraints.close()


COSTLY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@COSTLY
@given(regex=REGEXES, params=PARAMS, seed=st.integers(0, 9))
def test_a_regex_is_matched_when_it_ends(regex: str, params: dict[str, object], seed: int) -> None:
    text, is_ended = generate(GrammarSpec(f"start: /{regex}/"), params, seed)
    if is_ended:
        assert re.fullmatch(regex, text.decode()), f"{text!r} does not match {regex}"


@COSTLY
@given(schema=SCHEMAS, params=PARAMS, seed=st.integers(0, 9))
def test_a_schema_gives_json_when_it_ends(
    schema: dict[str, object], params: dict[str, object], seed: int
) -> None:
    text, is_ended = generate(GrammarSpec(f"start: %json {json.dumps(schema)}"), params, seed)
    if is_ended:
        check(json.loads(text), schema)


@COSTLY
@given(schema=SCHEMAS, seed=st.integers(0, 9), resume_at=st.integers(1, 12))
def test_a_preemption_changes_nothing(schema: dict[str, object], seed: int, resume_at: int) -> None:
    grammar = GrammarSpec(f"start: %json {json.dumps(schema)}")
    params: dict[str, object] = {"temperature": 2.0, "stop_token_ids": (END,)}
    assert generate(grammar, params, seed, resume_at) == generate(grammar, params, seed)


def check(value: object, schema: dict[str, object]) -> None:
    """The few keywords used here."""
    kind = schema.get("type")
    if kind == "string":
        assert isinstance(value, str)
        assert len(value) <= 5
    elif kind == "integer":
        assert isinstance(value, int)
        assert -9 <= value <= 120
    elif kind == "array":
        assert isinstance(value, list)
        assert 1 <= len(value) <= 2
        for each in value:
            check(each, schema["items"])  # type: ignore[arg-type]
    elif kind == "object":
        assert isinstance(value, dict)
        assert "a" in value
        assert value.keys() <= {"a", "ab"}
        for name, each in value.items():
            check(each, schema["properties"][name])  # type: ignore[index]
    elif "enum" in schema:
        assert value in ("x", 1, None)
    else:
        assert isinstance(value, bool) if kind == "boolean" else value is None
