"""VocabularyLesson: tells one worker process what grammars need to know of the tokens, once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from luce.errors import InternalError, UnsupportedFeature
from luce.protocol import messages as wire
from luce.protocol.frames import FrameConnection, FrameTooLarge
from luce.workers.open_request import WorkerRefusal

if TYPE_CHECKING:
    from luce.text.vocabulary import TokenVocabulary

_log = logging.getLogger(__name__)

VocabularySource = Callable[[], "TokenVocabulary"]
"""Lists the model's tokens; may take half a second, so it is called in a thread."""


class VocabularyLesson:
    """One process's lesson. Event loop only."""

    def __init__(self, frames: FrameConnection) -> None:
        self._frames = frames
        self._task: asyncio.Task[None] | None = None

    async def give(self, source: VocabularySource | None) -> None:
        """Return when the process has been sent the vocabulary; the first caller has it sent.

        Raises:
            WorkerRefusal: there is no vocabulary, it cannot be listed, or is too large to send.
        """
        if source is None:
            raise _refusal("The model's tokens are not known, so it follows no schema or grammar.")
        if self._task is None:
            self._task = asyncio.create_task(self._send(source))
        # A caller that leaves must not leave the others without.
        await asyncio.shield(self._task)

    async def _send(self, source: VocabularySource) -> None:
        try:
            known = await asyncio.to_thread(source)
        except Exception as error:  # Whatever a model's files bring about; the next one tries anew.
            self._task = None
            _log.exception("the model's tokens cannot be listed")
            failure = InternalError("The model's tokens cannot be listed; the log has the details.")
            raise WorkerRefusal("failed", failure, str(failure)) from error
        message = wire.Vocabulary(known.tokens, list(known.control_ids), list(known.end_ids))
        try:
            self._frames.send(message)
        except FrameTooLarge as error:
            # Whoever asks next gets an error of its own.
            self._task = None
            raise _refusal(f"The vocabulary is too large for grammars: {error}") from error


def _refusal(detail: str) -> WorkerRefusal:
    return WorkerRefusal("failed", UnsupportedFeature(detail), detail)
