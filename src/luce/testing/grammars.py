"""What tests of grammars share."""

from __future__ import annotations

import llguidance

from luce.grammar import GrammarVocabulary
from luce.text.vocabulary import TokenVocabulary


def grammar_tokenizer(vocabulary: TokenVocabulary) -> llguidance.LLTokenizer:
    """A vocabulary as llguidance's own matchers take it, shaped as in production."""
    return GrammarVocabulary(
        vocabulary.tokens, vocabulary.control_ids, vocabulary.end_ids
    ).tokenizer
