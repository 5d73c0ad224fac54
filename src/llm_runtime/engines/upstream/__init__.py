"""A lean HTTP/1.1 client for engines: bytes in, bytes out, no task and no queue per request."""

from llm_runtime.engines.upstream.address import Address
from llm_runtime.engines.upstream.client import Upstream
from llm_runtime.engines.upstream.exchange import Exchange
from llm_runtime.engines.upstream.protocol import Limits

__all__ = ["Address", "Exchange", "Limits", "Upstream"]
