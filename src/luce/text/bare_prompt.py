"""A prompt cut right behind the assistant's open header, whatever the template adds there.

Templates close or open reasoning behind the header, by the mode of the request. What is read of a
model at the header itself does not depend on that.
"""

from __future__ import annotations

from luce.errors import InvalidRequest
from luce.text.channels import ChannelSpec


def bare_prompt(opened: str, closed: str, channels: ChannelSpec | None) -> str:
    """Cut the assistant's opening.

    Args:
        opened: the prompt.
        closed: the same conversation rendered without the assistant's opening: what is cut lies
            behind it, so that no earlier turn is touched.
        channels: tags of reasoning.

    Raises:
        InvalidRequest: the prompt does not end in an open header.
    """
    header = opened.removeprefix(closed) if opened.startswith(closed) else ""
    tags = () if channels is None else channels.tags
    ends = [at for tag in tags if (at := header.find(tag)) >= 0]
    header = header[: min(ends, default=len(header))]
    if not header.strip():
        raise InvalidRequest(
            "generation_prompt bare needs a prompt that ends in an open assistant header; these "
            "messages and this model's template give none.",
            param="generation_prompt",
        )
    return closed + header
