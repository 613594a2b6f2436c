"""Options of one model block."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from luce.config.device import check_target
from luce.config.forms import check_model_name, snapshot_bytes
from luce.config.option import option
from luce.config.profile import PROFILES

DEMO_MODEL = Path("--demo")
"""Stands for the path of the demo model until the command line has looked it up."""

CACHE_TYPES = ("auto", "f32", "f16", "bf16", "q8_0", "q4_0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One `--model` block, resolved once, never mutated. `None` = from the file or machine.

    Attributes:
        path: the model's file or folder.
        flags_of_profile: options that have the value of its profile, and nobody else's.
    """

    path: Path
    flags_of_profile: tuple[str, ...] = ()
    name: str = option(
        "luce",
        "--model-name",
        metavar="NAME",
        variable="LUCE_MODEL_NAME",
        check=check_model_name,
        help="Name in /v1/models, answers and routing.",
    )
    profile: str | None = option(
        None,
        "--profile",
        choices=tuple(PROFILES),
        variable="LUCE_PROFILE",
        help="Options that were found good for a purpose, where nothing else is said; "
        "--print-profile shows them.",
    )
    max_ctx: int | None = option(
        None,
        "--max-ctx",
        metavar="N",
        unit="tokens",
        minimum=16,
        variable="LUCE_MAX_CTX",
        help="Longest sequence, prompt and output. Default: the model's context, at most 8192.",
    )
    max_concurrency: int = option(
        4,
        "--max-concurrency",
        metavar="N",
        minimum=1,
        maximum=256,
        help="Sequences generated at the same time.",
    )
    kv_pool_tokens: int | None = option(
        None,
        "--kv-pool-tokens",
        metavar="N",
        unit="tokens",
        minimum=32,
        help="KV cache shared by the sequences. Default: max-ctx times max-concurrency, as far "
        "as a quarter of the free memory goes.",
    )
    default_max_tokens: int | None = option(
        None,
        "--default-max-tokens",
        metavar="N",
        unit="tokens",
        minimum=1,
        variable="LUCE_DEFAULT_MAX_TOKENS",
        help="Output cap when a request names none. Default: by the model's card or family, else "
        "16000; never more than the context leaves.",
    )
    max_tokens: int | None = option(
        None,
        "--max-tokens",
        metavar="N",
        unit="tokens",
        minimum=1,
        help="Older spelling of --default-max-tokens, which wins when both are given.",
    )
    think_max_tokens: int | None = option(
        None,
        "--think-max-tokens",
        metavar="N",
        unit="tokens",
        minimum=0,
        help="Most thinking of a request that asks for a budget. Default: the output cap less the "
        "reply budget, and not above what the model's card says.",
    )
    hard_limit_reply_budget: int | None = option(
        None,
        "--hard-limit-reply-budget",
        metavar="N",
        unit="tokens",
        minimum=0,
        help="Output kept for the reply: thinking is closed by force when no more is left. 0 "
        "never closes it. Default: by the card, else 4096, but at most half of the output.",
    )
    reasoning_effort_low: int | None = option(
        None,
        "--reasoning-effort-low",
        metavar="N",
        unit="tokens",
        minimum=0,
        help="Most thinking of a request with reasoning effort low. Default: by the card.",
    )
    reasoning_effort_medium: int | None = option(
        None,
        "--reasoning-effort-medium",
        metavar="N",
        unit="tokens",
        minimum=0,
        help="Most thinking of a request with reasoning effort medium. Default: by the card.",
    )
    reasoning_effort_high: int | None = option(
        None,
        "--reasoning-effort-high",
        metavar="N",
        unit="tokens",
        minimum=0,
        help="Most thinking of a request with reasoning effort high. Default: by the card.",
    )
    reasoning_effort_x_high: int | None = option(
        None,
        "--reasoning-effort-x-high",
        metavar="N",
        unit="tokens",
        minimum=0,
        help="Most thinking of a request with reasoning effort xhigh. Default: by the card.",
    )
    reasoning_effort_max: int | None = option(
        None,
        "--reasoning-effort-max",
        metavar="N",
        unit="tokens",
        minimum=0,
        help="Most thinking of a request with reasoning effort max. Default: by the card.",
    )
    model_cards: Path | None = option(
        None,
        "--model-cards",
        metavar="DIR",
        variable="LUCE_MODEL_CARDS_DIR",
        help="Folder of model cards, which win over those that come with luce.",
    )
    chat_template_file: Path | None = option(
        None,
        "--chat-template-file",
        metavar="FILE",
        help="Jinja chat template to use instead of the model's own.",
    )
    target_device: str = option(
        "cpu",
        "--target-device",
        metavar="DEVICE",
        variable="LUCE_TARGET_DEVICE",
        check=check_target,
        help="Where the model lives: cpu, cpu:N, cuda:N or hip:N; several models may share one. "
        "auto: the device with most room that holds it, a GPU if one does.",
    )
    dtype: str = option(
        "auto",
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="Type the weights are held and computed in. auto: float32 on a CPU, bfloat16 on a "
        "GPU.",
    )
    threads: int | None = option(
        None,
        "--threads",
        metavar="N",
        minimum=1,
        maximum=1024,
        help="CPU threads of this model. Default: the cores this process may use.",
    )
    chunk: int = option(
        512,
        "--chunk",
        metavar="N",
        unit="tokens",
        minimum=16,
        maximum=65536,
        help="Most prompt tokens computed in one step.",
    )
    cache_type_k: str = option(
        "auto",
        "--cache-type-k",
        choices=CACHE_TYPES,
        help="Type the KV cache holds keys in; q8_0 and q4_0 need heads of a multiple of 32. "
        "auto: the type the model computes in.",
    )
    cache_type_v: str = option(
        "auto",
        "--cache-type-v",
        choices=CACHE_TYPES,
        help="Type the KV cache holds values in, as above.",
    )
    prefix_cache: bool = option(
        True,
        "--prefix-cache",
        help="Keep the KV blocks of past prompts and reuse them where a new prompt begins alike.",
    )
    prefix_snapshot_memory: str = option(
        "auto",
        "--prefix-snapshot-memory",
        metavar="auto|SIZE",
        check=snapshot_bytes,
        help="Host memory for KV blocks of past prompts that the device has no room for, and that "
        "stay when the model is swapped out, as 2GiB; 0: they are computed again. auto: three "
        "full contexts, at most a quarter of the memory available, shared by all models.",
    )
    cpu_exact: bool = option(
        False,
        "--cpu-exact",
        help="On a CPU: decode quantised weights to float32 and keep activations in float32. "
        "Slower, and takes four to eight times the memory; without it activations are rounded to "
        "15 bits for each 32 numbers.",
    )

    @property
    def effort_tiers(self) -> dict[str, int]:
        """Thinking tokens by effort, as far as they were said; least effort first."""
        tiers = {
            "low": self.reasoning_effort_low,
            "medium": self.reasoning_effort_medium,
            "high": self.reasoning_effort_high,
            "x-high": self.reasoning_effort_x_high,
            "max": self.reasoning_effort_max,
        }
        return {effort: tokens for effort, tokens in tiers.items() if tokens is not None}

    @property
    def output_cap(self) -> int | None:
        """Output cap of requests that name none, if one was said."""
        return self.default_max_tokens if self.default_max_tokens is not None else self.max_tokens
