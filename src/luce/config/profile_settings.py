"""What a profile says, as settings."""

from __future__ import annotations

from luce.config.model import ModelConfig
from luce.config.profile import PROFILES
from luce.config.setting import Setting, Settings, Source
from luce.config.table import MODEL_OPTIONS, keys_of


def profile_settings(*sources: Settings) -> dict[str, Setting]:
    """The settings of the profile that the last of these sources names; none if none does."""
    names = [source["profile"].value for source in sources if "profile" in source]
    if not names:
        return {}
    profile = PROFILES[names[-1]]
    known = keys_of(MODEL_OPTIONS)
    settings = {}
    for flag, text in profile.flags:
        option, is_negated = known[flag.removeprefix("--")]
        value = not is_negated if text is None else option.parse(text)
        settings[option.field] = Setting(value, Source.PROFILE, profile.name)
    return settings


def flags_of_profile(settings: Settings) -> tuple[str, ...]:
    """The options whose value a profile says."""
    return tuple(
        option.flags[0]
        for option in MODEL_OPTIONS
        if option.field in settings and settings[option.field].source is Source.PROFILE
    )


def profile_note(config: ModelConfig, problem: str) -> str:
    """What to add to a sentence that names options nobody wrote; empty if there are none."""
    flags = [flag for flag in config.flags_of_profile if flag in problem.split()]
    if not flags:
        return ""
    are = "is" if len(flags) == 1 else "are"
    return f"; {', '.join(flags)} {are} set by --profile {config.profile}; a value you write wins"
