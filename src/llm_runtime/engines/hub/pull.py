"""Brings a model of the hub into the store: several files at once, all of it or nothing."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import quote

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.file_lock import locked
from llm_runtime.engines.hub.crew import run_all
from llm_runtime.engines.hub.http import HubHttp, Refused
from llm_runtime.engines.hub.listing import Listing, RemoteFile, choose, read_listing
from llm_runtime.engines.hub.ref import HubRef
from llm_runtime.engines.hub.store import HubStore, Note, part_name
from llm_runtime.engines.hub.transfer import Retries, Transfers, file_path, mismatch
from llm_runtime.engines.package_fetch import Report

DEFAULT_ENDPOINT = "https://huggingface.co"
DEFAULT_WORKERS = 4
DEFAULT_RETRIES = Retries()


@dataclass(frozen=True, slots=True)
class Hub:
    """Where models come from. token: sent to the endpoint only. workers: files fetched at once."""

    endpoint: str = DEFAULT_ENDPOINT
    token: str | None = None
    workers: int = DEFAULT_WORKERS
    retries: Retries = DEFAULT_RETRIES


@dataclass(frozen=True, slots=True)
class Pulled:
    """path: a folder of safetensors, or the file that the ref named. unchecked: files for which the hub
    publishes no checksum."""

    path: Path
    commit: str
    unchecked: tuple[str, ...]


def pull(ref: HubRef, store: HubStore, hub: Hub, report: Report | None = None) -> Pulled:
    """Brings what serving the ref needs, unless it is here; waits for another's pull of the repository.

    Raises ConfigError. Interrupted or cut, it leaves what it got for the next time.
    """
    return _Pull(ref, store, hub, report or (lambda num_bytes, total: None)).run()


class _Pull:
    """One run. Its transfers run in threads; `stop` ends them when one fails or the run is interrupted."""

    def __init__(self, ref: HubRef, store: HubStore, hub: Hub, report: Report) -> None:
        self._ref = ref
        self._store = store
        self._workers = hub.workers
        self._stop = threading.Event()
        self._transfers = Transfers(HubHttp(hub.endpoint, hub.token), hub.retries, self._stop)
        self._progress = _Progress(report)

    def run(self) -> Pulled:
        store, repo = self._store, self._ref.repo
        parts = store.parts_of(repo)
        try:
            parts.mkdir(parents=True, exist_ok=True)
            with locked(parts / "lock"):
                listing = self._listing()
                files = choose(self._ref, listing)
                note = store.note(repo, listing.commit)
                self._bring([file for file in files if not self._is_here(file, note)], note, parts)
                self._settle(note, files)
                _remove_parts(parts, {part_name(file, listing.commit) for file in listing.files})
        except Refused as refusal:
            raise ConfigError(_refusal(self._ref, refusal)) from refusal
        except OSError as error:
            raise ConfigError(
                f"the model folder {store.folder} cannot be used: {error.strerror or error}; name another "
                "one in LLM_RUNTIME_CACHE"
            ) from error
        folder = store.files_of(note)
        unchecked = tuple(file.name for file in files if file.checksum is None)
        return Pulled(folder / self._ref.file if self._ref.file else folder, listing.commit, unchecked)

    def _listing(self) -> Listing:
        path = f"/api/models/{self._ref.repo}/revision/{quote(self._ref.revision, safe='')}?blobs=true"
        try:
            return read_listing(json.loads(self._transfers.get(path, f"the listing of hf:{self._ref.repo}")))
        except ValueError as error:
            raise ConfigError(
                "the hub's answer is not JSON; is --hf-endpoint the address of a hub?"
            ) from error

    def _is_here(self, file: RemoteFile, note: Note) -> bool:
        path = self._store.files_of(note) / file.name
        if not path.is_file() or (file.num_bytes is not None and path.stat().st_size != file.num_bytes):
            return False
        noted = file.name in note.files and note.files[file.name] == file.checksum
        return noted or (file.checksum is not None and mismatch(path, file) is None)

    def _bring(self, files: list[RemoteFile], note: Note, parts: Path) -> None:
        _check_space(files, parts)
        self._progress.expect(file.num_bytes or 0 for file in files)
        run_all([partial(self._bring_one, file, note, parts) for file in files], self._workers, self._stop)

    def _bring_one(self, file: RemoteFile, note: Note, parts: Path) -> None:
        part = parts / part_name(file, note.commit)
        path = file_path(note.repo, note.commit, file.name)
        self._transfers.fetch(path, file, part, lambda size: self._progress.has(file.name, size))
        target = self._store.files_of(note) / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(part, target)

    def _settle(self, note: Note, files: tuple[RemoteFile, ...]) -> None:
        here = {**note.files, **{file.name: file.checksum for file in files}}
        self._store.write(
            replace(
                note,
                revisions=tuple(dict.fromkeys((*note.revisions, self._ref.revision))),
                files=here,
                complete=note.complete or self._ref.file is None,
            )
        )


class _Progress:
    """Adds up what the transfers of one pull have; any thread may tell."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._sizes: dict[str, int] = {}
        self._total = 0
        self._lock = threading.Lock()

    def expect(self, sizes: Iterable[int]) -> None:
        self._total = sum(sizes)

    def has(self, name: str, size: int) -> None:
        with self._lock:
            self._sizes[name] = size
            self._report(min(sum(self._sizes.values()), self._total), self._total)


def _check_space(files: list[RemoteFile], folder: Path) -> None:
    needed = sum(file.num_bytes or 0 for file in files)
    free = shutil.disk_usage(folder).free + sum(part.stat().st_size for part in folder.glob("*.part"))
    if needed > free:
        raise ConfigError(
            f"the model needs {needed / 1e9:.1f} GB and {folder} has {free / 1e9:.1f} GB left; free some, or "
            "name another folder in LLM_RUNTIME_CACHE"
        )


def _remove_parts(folder: Path, still_wanted: set[str]) -> None:
    """Unfinished files of commits that the hub does not have any more."""
    for part in folder.glob("*.part"):
        if part.name not in still_wanted:
            part.unlink()


def _refusal(ref: HubRef, refusal: Refused) -> str:
    if refusal.status == 401:
        return f"the hub does not show hf:{ref.repo} to everybody, or has none of that name: set HF_TOKEN"
    if refusal.status == 403:
        return f"the hub keeps hf:{ref.repo} from the owner of HF_TOKEN: ask for access on the model's page"
    if refusal.status == 404 and refusal.code == "RevisionNotFound":
        return f"hf:{ref.repo} has no revision {ref.revision!r}"
    if refusal.status == 404 and refusal.code == "EntryNotFound":
        return f"the hub lists a file of hf:{ref.repo} that it does not have"
    if refusal.status == 404:
        return f"the hub has no model hf:{ref.repo}"
    return f"the hub refused hf:{ref.repo} with status {refusal.status}"
