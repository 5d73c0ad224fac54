"""One file from the hub to this machine: resumed where it was cut, compared with its checksum."""

from __future__ import annotations

import hashlib
import os
import random
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.hub.crew import Stopped
from llm_runtime.engines.hub.http import HubHttp, Refused, Transient, reason_of
from llm_runtime.engines.hub.listing import RemoteFile

T = TypeVar("T")

CHUNK_BYTES = 1 << 20
LONGEST_WAIT_S = 300.0
"""A server that asks for more patience is not waited for."""


@dataclass(frozen=True, slots=True)
class Retries:
    """num: tries in a row that bring nothing, after the first; one that brings bytes starts the count
    anew. The wait before them doubles from first_wait_s to longest_wait_s, with full jitter."""

    num: int = 5
    first_wait_s: float = 1.0
    longest_wait_s: float = 30.0

    def wait_s(self, num_failures: int, chance: float) -> float:
        return min(self.longest_wait_s, self.first_wait_s * 2.0 ** (num_failures - 1)) * (0.5 + chance / 2)


class Transfers:
    """Owned by one pull; any thread may use it. stop: ends waits and transfers early, with Stopped."""

    def __init__(self, http: HubHttp, retries: Retries, stop: threading.Event) -> None:
        self._http = http
        self._retries = retries
        self._stop = stop

    def get(self, path: str, what: str) -> bytes:
        """The whole of a short answer. Raises ConfigError that calls it `what`, Refused."""

        def once() -> bytes:
            with self._http.open(path) as answer:
                return _read_all(answer)

        return self._persistently(once, lambda: 0, what)

    def fetch(
        self, path: str, file: RemoteFile, part: Path, on_size: Callable[[int], None] = lambda size: None
    ) -> None:
        """Makes `part` the whole and checked file; what is in it already is not asked for again.

        on_size: told the bytes that are in it. Raises ConfigError, with `part` removed if its content
        was wrong and kept for the next time otherwise; Refused; Stopped.
        """
        for is_last_try in (False, True):
            began_with = _size(part)
            complete = part.exists() and began_with == file.num_bytes
            if not complete:
                self._persistently(
                    lambda: self._continue(path, file, part, on_size), lambda: _size(part), file.name
                )
            problem = mismatch(part, file)
            if problem is None:
                return
            part.unlink()
            on_size(0)
            # What an earlier run left may have been spoilt: that is no reason to give up.
            if is_last_try or began_with == 0:
                raise ConfigError(f"{file.name} is not what the hub says it is: {problem}; it was removed")

    def _continue(self, path: str, file: RemoteFile, part: Path, on_size: Callable[[int], None]) -> None:
        size = _size(part)
        headers = {"Range": f"bytes={size}-"} if size else None
        try:
            answer = self._http.open(path, headers)
        except Refused as refusal:
            if refusal.status != 416 or not size:
                raise
            part.unlink()  # longer than the file is: it cannot be a part of it
            raise Transient("the part that was here did not fit") from None
        with answer:
            size = _place(answer, size)
            expected = file.num_bytes if file.num_bytes is not None else _length(answer, size)
            with part.open("ab") as target:
                target.truncate(size)
                while chunk := self._read(answer):
                    size += len(chunk)
                    if expected is not None and size > expected:
                        raise Transient("the server sent more than the file has")
                    target.write(chunk)
                    on_size(size)
                target.flush()
                os.fsync(target.fileno())
        if expected is not None and size < expected:
            raise Transient(f"the connection was cut after {size:,} of {expected:,} bytes")

    def _read(self, answer: HTTPResponse) -> bytes:
        if self._stop.is_set():
            raise Stopped
        try:
            return answer.read1(CHUNK_BYTES)
        except (OSError, HTTPException) as error:
            raise Transient(reason_of(error)) from error

    def _persistently(self, once: Callable[[], T], progress: Callable[[], int], what: str) -> T:
        num_failures = 0
        while True:
            if self._stop.is_set():
                raise Stopped
            before = progress()
            try:
                return once()
            except Transient as failure:
                num_failures = num_failures + 1 if progress() <= before else 1
                wait_s = self._retries.wait_s(num_failures, random.random())  # noqa: S311 - jitter
                if failure.retry_after_s is not None:
                    wait_s = failure.retry_after_s
                if num_failures > self._retries.num or wait_s > LONGEST_WAIT_S:
                    asked = (
                        f" and wants to be left alone for {wait_s:.0f} s" if wait_s > LONGEST_WAIT_S else ""
                    )
                    raise ConfigError(f"{what} could not be fetched: {failure.reason}{asked}") from failure
                if self._stop.wait(wait_s):
                    raise Stopped from None


def file_path(repo: str, commit: str, name: str) -> str:
    return f"/{repo}/resolve/{commit}/{quote(name)}"


def mismatch(path: Path, file: RemoteFile) -> str | None:
    """What is wrong with a file, from reading all of it; None where nothing is."""
    size = _size(path)
    if file.num_bytes is not None and size != file.num_bytes:
        return f"it has {size:,} bytes, not {file.num_bytes:,}"
    with path.open("rb") as content:
        if file.sha256 is not None:
            found, expected = hashlib.file_digest(content, "sha256").hexdigest(), file.sha256
        elif file.git_oid is not None:
            digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
            while chunk := content.read(CHUNK_BYTES):
                digest.update(chunk)
            found, expected = digest.hexdigest(), file.git_oid
        else:
            return None
    return None if found == expected else f"its checksum is {found}, not {expected}"


def _place(answer: HTTPResponse, wanted: int) -> int:
    """Where in the file the answer's body begins. A server may ignore the range and send all of it."""
    if answer.status != 206:
        return 0
    match = re.fullmatch(r"bytes (\d+)-.*", answer.headers.get("Content-Range", ""))
    if match is None or int(match[1]) != wanted:
        raise Transient("the server sent another range than was asked for")
    return wanted


def _length(answer: HTTPResponse, start: int) -> int | None:
    length = answer.headers.get("Content-Length")
    return start + int(length) if length is not None and length.isdecimal() else None


def _read_all(answer: HTTPResponse) -> bytes:
    try:
        return answer.read()
    except (OSError, HTTPException) as error:
        raise Transient(reason_of(error)) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
