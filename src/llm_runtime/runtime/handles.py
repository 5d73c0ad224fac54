"""The handles the API works with: one for streams, one for plain replies."""

from __future__ import annotations

from llm_runtime.engines.base import Finished
from llm_runtime.runtime.request_handle import RequestHandle


class StreamingHandle(RequestHandle):
    """A streamed request: `pull` until `Finished`."""


class CompletionHandle(RequestHandle):
    """A plain request: one body."""

    async def result(self) -> bytes:
        """The whole JSON body. Raises what ended the request."""
        body = b""
        while self.finished is None:
            item = await self.pull()
            if isinstance(item, Finished):
                break
            body += item
        self.note_plain_tokens()
        return body
