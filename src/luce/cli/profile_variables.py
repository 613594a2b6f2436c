"""Environment variables of the profiles in use, set for the workers to inherit."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

from luce.config.listener import ServerConfig
from luce.config.profile import PROFILES


def set_profile_variables(
    config: ServerConfig, environment: MutableMapping[str, str]
) -> Iterator[str]:
    """Set what is not set yet; yields a sentence for each variable."""
    for model in config.models:
        profile = PROFILES.get(model.profile or "")
        for name, value in profile.env if profile is not None else ():
            if name in environment:
                yield f"--profile {model.profile}: {name} is set already and stays as it is"
            else:
                environment[name] = value
                yield f"--profile {model.profile}: {name}={value}"
