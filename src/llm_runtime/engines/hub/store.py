"""The hub's models on this machine: one folder for each commit, and a note of what in it is complete.

    <folder>/<commit>/ORG/NAME/...    the files, each put there when it was whole and checked
    <folder>/<commit>/ORG/NAME.json   the note, replaced in one step

A folder's path is given out only once its note says that all of it is there, and nothing in it ever
changes: another commit is another folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.hub.listing import RemoteFile
from llm_runtime.engines.hub.ref import DEFAULT_REVISION, HubRef

COMMIT_CHARACTERS = 12
FOLDER = "hf"
"""Within the folder of models."""

PARTS = ".parts"


@dataclass(frozen=True, slots=True)
class Note:
    """What is here of one commit of a repository.

    revisions: names that meant this commit when it was pulled. files: checksum by name, None where the
    hub published none. complete: whether all that serving needs is among them.
    """

    repo: str
    commit: str
    revisions: tuple[str, ...] = ()
    files: Mapping[str, str | None] = field(default_factory=dict)
    complete: bool = False
    pulled_at: float = 0.0


@dataclass(frozen=True, slots=True)
class HubModel:
    """ref: as it may be written in `model.path`. path: a folder of safetensors, or the one file."""

    ref: str
    path: Path
    num_bytes: int


class HubStore:
    """Owned by whoever looks for a model; several processes may use one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, ref: HubRef) -> Path | None:
        """The folder, or the file if the ref names one; the latest pulled where there are several."""
        for note in self.notes():
            if note.repo == ref.repo and _means(note, ref.revision):
                if ref.file is None and note.complete:
                    return self.files_of(note)
                if ref.file is not None and ref.file in note.files:
                    return self.files_of(note) / ref.file
        return None

    def demand(self, ref: HubRef) -> Path:
        """As `find`; raises ConfigError that says how to bring it."""
        path = self.find(ref)
        if path is None:
            raise ConfigError(f"{ref} is not on this machine; `llm-runtime models pull {ref}` brings it")
        return path

    def models(self) -> list[HubModel]:
        """What can be served of what is here, each under the shortest ref that leads to it."""
        found: dict[str, HubModel] = {}
        for note in self.notes():
            singles = [name for name in note.files if name.endswith(".gguf")]
            others = [name for name in note.files if not name.endswith(".gguf")]
            folder = self.files_of(note)
            for file in [None, *singles] if note.complete else singles:
                refs = [str(HubRef(note.repo, name, file)) for name in (*note.revisions, folder.parts[-3])]
                ref = next((ref for ref in refs if ref not in found), None)
                num_bytes = _total_size(folder / name for name in ([file] if file else others))
                if ref is not None and num_bytes is not None:
                    found[ref] = HubModel(ref, folder / (file or ""), num_bytes)
        return list(found.values())

    def notes(self) -> list[Note]:
        """Of everything that is here, the latest first."""
        return sorted(self._read_notes(), key=lambda note: note.pulled_at, reverse=True)

    def note(self, repo: str, commit: str) -> Note:
        """An empty one where nothing is here yet."""
        try:
            return _read(self._note_path(repo, commit))
        except (OSError, ValueError, TypeError, KeyError):
            return Note(repo, commit)

    def write(self, note: Note) -> None:
        """By a pull that holds the repository's lock."""
        path = self._note_path(note.repo, note.commit)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(replace(note, pulled_at=time.time())), indent=1), encoding="utf-8")
        os.replace(new, path)

    def files_of(self, note: Note) -> Path:
        return self.folder / note.commit[:COMMIT_CHARACTERS] / note.repo

    def parts_of(self, repo: str) -> Path:
        """Where unfinished files of a repository wait to be continued."""
        return self.folder / PARTS / repo.replace("/", "--")

    def _note_path(self, repo: str, commit: str) -> Path:
        return self.folder / commit[:COMMIT_CHARACTERS] / f"{repo}.json"

    def _read_notes(self) -> Iterator[Note]:
        for path in self.folder.glob(f"{'[0-9a-f]' * COMMIT_CHARACTERS}/*/*.json"):
            try:
                yield _read(path)
            except (OSError, ValueError, TypeError, KeyError):
                continue  # not ours, or of another version


def part_name(file: RemoteFile, commit: str) -> str:
    """The same for the same content under the same name, whatever commit it belongs to, and never for
    another: two files of one model may well have the same content."""
    what = f"{file.checksum or commit}\n{file.name}"
    return f"{hashlib.sha256(what.encode()).hexdigest()[:32]}.part"


def _total_size(paths: Iterable[Path]) -> int | None:
    """None if one of them is gone."""
    try:
        return sum(path.stat().st_size for path in paths)
    except OSError:
        return None


def _means(note: Note, revision: str) -> bool:
    if revision in note.revisions:
        return True
    return len(revision) >= 7 and revision != DEFAULT_REVISION and note.commit.startswith(revision)


def _read(path: Path) -> Note:
    """Raises OSError, ValueError, TypeError or KeyError for what is no note."""
    raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    known = {one.name: raw[one.name] for one in fields(Note) if one.name in raw}
    return Note(**{**known, "revisions": tuple(raw["revisions"])})
