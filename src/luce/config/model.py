"""Options of one model block, each with its flag, help and scope: the one source for
the command line, its help text and `docs/flags.md`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def option(
    default: Any,
    *flags: str,
    help: str,  # noqa: A002 - argparse's word
    unit: str = "",
    metavar: str = "",
    minimum: int | None = None,
    maximum: int | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A dataclass field that is also a command-line option; read by `cli.options`."""
    return field(
        default=default,
        metadata={
            "flags": flags,
            "help": help,
            "unit": unit,
            "metavar": metavar,
            "minimum": minimum,
            "maximum": maximum,
            "choices": choices,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One `--model` block, resolved once, never mutated. `None` = from the file or machine."""

    path: Path
    name: str = option(
        "luce", "--model-name", metavar="NAME", help="Name in /v1/models, answers and routing."
    )
    max_ctx: int | None = option(
        None,
        "--max-ctx",
        metavar="N",
        unit="tokens",
        minimum=16,
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
        help="Output cap when a request names none. Default: the room the context leaves.",
    )
    max_tokens: int | None = option(
        None,
        "--max-tokens",
        metavar="N",
        unit="tokens",
        minimum=1,
        help="Older spelling of --default-max-tokens, which wins when both are given.",
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
        help="Where the model lives: cpu, cpu:N, cuda:N or hip:N.",
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

    @property
    def output_cap(self) -> int | None:
        """Output cap of requests that name none; None = the room the context leaves."""
        return self.default_max_tokens if self.default_max_tokens is not None else self.max_tokens
