"""A single question to a server, and its answer as JSON. Blocks: call it in a thread."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

import orjson

from llm_runtime.core.errors import BackendError

TIMEOUT_S = 60.0
MAX_TOLD = 300


def post_json(url: str, path: str, fields: Mapping[str, Any]) -> Any:
    """Raises BackendError for anything but an answer of status 200 within a minute."""
    with closing(HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)) as connection:
        try:
            connection.request("POST", path, orjson.dumps(fields), {"content-type": "application/json"})
            response = connection.getresponse()
            status, body = response.status, response.read()
        except (OSError, HTTPException) as error:
            raise BackendError(f"no answer from {path}: {error!r}") from error
    if status != 200:
        raise BackendError(f"{path} answered {status}: {body[:MAX_TOLD].decode('utf-8', 'replace')}")
    return orjson.loads(body)
