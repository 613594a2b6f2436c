"""`--print-profile`: profiles as JSON, for launchers that need not know them then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from luce.config.profile import PROFILES, Profile
from luce.errors import UsageError

FLAG = "--print-profile"


def print_profile(argv: Sequence[str]) -> int:
    """Print one profile, or all of them; returns the exit code.

    Args:
        argv: what follows the flag: nothing or a name.

    Raises:
        UsageError: more than that, or no profile has the name.
    """
    if len(argv) > 1:
        raise UsageError(f"usage: luce_server {FLAG} [NAME]")
    if not argv:
        print(json.dumps([_object(profile) for profile in PROFILES.values()], indent=2))
        return 0
    profile = PROFILES.get(argv[0])
    if profile is None:
        raise UsageError(f"{FLAG}: {argv[0]!r} is none of {', '.join(PROFILES)}")
    print(json.dumps(_object(profile), indent=2))
    return 0


def _object(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "summary": profile.summary,
        "flags": [list(pair) for pair in profile.flags],
        "env": [list(pair) for pair in profile.env],
    }
