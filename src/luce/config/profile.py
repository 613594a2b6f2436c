"""Profiles: named sets of model options that were found good for a purpose.

A profile is weaker than anything anybody writes: environment variables, file and command line win
over it, and variables that are set keep their values.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile.

    Attributes:
        name: as after `--profile`.
        summary: what it is for.
        flags: model options with their values, None for switches, in order.
        env: variables workers get where they are not set, in order.
    """

    name: str
    summary: str
    flags: tuple[tuple[str, str | None], ...]
    env: tuple[tuple[str, str], ...] = ()


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            "small-cpu",
            "A small model on a CPU for one person: short context, little memory.",
            (
                ("--target-device", "cpu"),
                ("--max-ctx", "2048"),
                ("--max-concurrency", "1"),
                ("--chunk", "256"),
            ),
        ),
        Profile(
            "coding-agents",
            "Long prompts that share their beginning: long context, small KV cache.",
            (
                ("--max-ctx", "32768"),
                ("--max-concurrency", "4"),
                ("--chunk", "2048"),
                ("--cache-type-k", "q8_0"),
                ("--cache-type-v", "q8_0"),
                ("--prefix-cache", None),
            ),
        ),
        Profile(
            "many-clients",
            "Many short requests at a time on one GPU.",
            (
                ("--max-ctx", "8192"),
                ("--max-concurrency", "64"),
                ("--chunk", "1024"),
            ),
            (("PYTORCH_ALLOC_CONF", "expandable_segments:True"),),
        ),
        Profile(
            "ds4-strix",
            "DeepSeek V4 on one Strix Halo: long context, large prompt steps.",
            (("--max-ctx", "131072"), ("--chunk", "8192")),
        ),
        Profile(
            "ds4-r9700-strix",
            "DeepSeek V4 on an R9700 as first HIP device.",
            (("--target-device", "hip:0"), ("--max-ctx", "18432"), ("--chunk", "2048")),
        ),
    )
}
"""By name."""
