"""What serving a request needs of a model's text side; `text.bundle.TextBundle` has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from luce.protocol.sampling import GrammarSpec, ReasoningBudget, TokenLogprobs
from luce.text.call import GenerationCall
from luce.text.events import FinishKind, GenEvent
from luce.text.forced_close import ForcedClose
from luce.text.thinking import Thinking
from luce.text.vocabulary import TokenVocabulary


class Prompt(Protocol):
    """A request rendered and tokenised for one model."""

    @property
    def prompt_bytes(self) -> bytes:
        """int32 little-endian token ids."""

    @property
    def num_tokens(self) -> int:
        """Length of the prompt."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end the generation."""

    @property
    def grammar(self) -> GrammarSpec | None:
        """What the output must look like."""

    @property
    def grammar_chars(self) -> int:
        """Size of what `Text.with_grammar` has still to make a grammar of; 0: of nothing."""

    @property
    def close(self) -> ForcedClose | None:
        """How reasoning under a budget is closed."""


class Output(Protocol):
    """One generation's way from token ids to events."""

    @property
    def stopped(self) -> bool:
        """A stop string was found."""

    def feed(
        self,
        token_ids: Sequence[int],
        finish: FinishKind | None = None,
        logprobs: Sequence[TokenLogprobs] | None = None,
    ) -> list[GenEvent]:
        """Take what one step added."""


class TextTokenizer(Protocol):
    """One model's vocabulary; `text.tokenizer.Tokenizer`."""

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text."""

    def encode_with_specials(self, rendered: str) -> list[int]:
        """Token ids; texts of control tokens become those tokens."""

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for."""


PromptT = TypeVar("PromptT", bound=Prompt)


class Text(Protocol[PromptT]):
    """Tokenizer, template and defaults of one model; immutable."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""

    @property
    def architecture(self) -> str:
        """The family, as the model's files name it."""

    @property
    def context_length(self) -> int:
        """The model's trained context, in tokens."""

    @property
    def generation_defaults(self) -> Mapping[str, float]:
        """Sampling defaults from the model's files and its card."""

    @property
    def weight_types(self) -> Mapping[str, int]:
        """Bytes of the stored weights of each type, in the file's names."""

    @property
    def thinking(self) -> Thinking:
        """Budgets of its reasoning, and its card."""

    @property
    def tokenizer(self) -> TextTokenizer:
        """The vocabulary."""

    @property
    def add_bos_id(self) -> int | None:
        """The token prompts begin with, if they do."""

    def prepare(self, call: GenerationCall, limit: int | None = None) -> PromptT:
        """Render and tokenise; called in a thread.

        Raises:
            ContextLengthExceeded: a prompt of far more than `limit` tokens.
        """

    def with_grammar(self, prepared: PromptT) -> PromptT:
        """The same with its grammar; may take seconds, called in a thread.

        Raises:
            InvalidGrammar: output cannot be held to what the request forces.
        """

    def vocabulary(self) -> TokenVocabulary:
        """The tokens as grammars see them; called in a thread."""

    def pipeline(
        self,
        prepared: PromptT,
        prompt_tokens: int,
        cached_tokens: int = 0,
        budget: ReasoningBudget | None = None,
    ) -> Output:
        """A fresh way to events."""
