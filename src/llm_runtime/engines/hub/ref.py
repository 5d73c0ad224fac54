"""How a model of the hub is written: `hf:ORG/NAME[@REVISION][:FILE]`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llm_runtime.core.errors import ConfigError

PREFIX = "hf:"
DEFAULT_REVISION = "main"

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
_FORM = re.compile(rf"hf:(?P<repo>{_NAME}/{_NAME})(?:@(?P<revision>[^:@\s]+))?(?::(?P<file>[^\s].*))?")


@dataclass(frozen=True, slots=True)
class HubRef:
    """repo: `ORG/NAME`. file: within the repository; None: all that serving needs."""

    repo: str
    revision: str = DEFAULT_REVISION
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubRef:
        """Raises ConfigError for anything but the documented form."""
        match = _FORM.fullmatch(text)
        file = match["file"] if match is not None else None
        if match is None or (file is not None and not is_inside(file)):
            raise ConfigError(f"{text!r} is no model of the hub: write hf:ORG/NAME or hf:ORG/NAME:FILE")
        return cls(match["repo"], match["revision"] or DEFAULT_REVISION, file)

    def __str__(self) -> str:
        revision = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{PREFIX}{self.repo}{revision}" + (f":{self.file}" if self.file is not None else "")


def is_inside(name: str) -> bool:
    """Whether a file's name stays below the folder it is put in."""
    parts = name.split("/")
    return "\\" not in name and "\0" not in name and not any(part in ("", ".", "..") for part in parts)
