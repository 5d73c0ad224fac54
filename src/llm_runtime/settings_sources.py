"""The three places a setting can be given: a YAML file, the environment, the command line.

Each source is scanned as a whole, so that a name nobody knows is an error that names the nearest
known one. The values stay raw here; `settings` validates them once all sources are merged.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llm_runtime.core.errors import ConfigError
from llm_runtime.settings_leaves import Leaf, flat_names, leaves, variables
from llm_runtime.settings_table import CACHE_VARIABLE, CONFIG_VARIABLE, ENV_PREFIX

NOT_SETTINGS = frozenset({CONFIG_VARIABLE, CACHE_VARIABLE})
"""Variables with our prefix that are read elsewhere."""

OFF_WORDS = frozenset({"none", "null", "off"})
"""What switches an optional setting off."""

_KUBERNETES_NAME = re.compile(
    r"LLM_RUNTIME(_[A-Z0-9_]+)?"
    r"(_SERVICE_HOST|_SERVICE_PORT(_[A-Z0-9_]+)?|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_KUBERNETES_URL = re.compile(r"(tcp|udp|sctp)://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody gave: raw, with the place it was given at, in words."""

    leaf: Leaf
    raw: Any
    origin: str

    def error(self, why: str) -> ConfigError:
        """`why` continues a sentence: "should be at least 1"."""
        shown = "(hidden)" if self.leaf.row.secret else repr(self.leaf.row.shown(self.raw))
        return ConfigError(f"{self.leaf.name} = {shown} (from {self.origin}): {why}")


def from_file(path: Path) -> dict[str, Given]:
    """Reads one YAML file. Raises ConfigError for what cannot be read, doubled or unknown keys."""
    document = _read_yaml(path)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: the file must hold sections such as `server:`, not a {_kind(document)}")
    given = {}
    for name, raw in _flatten(path, "", document):
        value = Given(leaves()[name], raw, f"file {path}")
        if isinstance(raw, bool) and value.leaf.annotation is not bool:
            raise value.error("a truth value makes no sense here; put it in quotes if it is a word")
        if isinstance(raw, str):
            if not raw.strip():
                continue
            value = _from_text(value.leaf, raw, value.origin)
        given[name] = value
    return given


def from_environment(environ: Mapping[str, str]) -> tuple[dict[str, Given], list[str]]:
    """Takes what starts with `LLM_RUNTIME_`. An empty variable counts as absent.

    Also returns warnings: variables that Kubernetes injects for a Service are not settings.
    """
    known, given, injected = variables(), dict[str, Given](), list[str]()
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENV_PREFIX) or variable in NOT_SETTINGS:
            continue
        if _injected_by_kubernetes(variable, text):
            injected.append(variable)
            continue
        leaf = known.get(variable)
        if leaf is None:
            raise ConfigError(f"{variable} is not a setting; {_hint_variable(variable)}")
        if not text.strip():
            continue
        value = _from_text(leaf, text, f"env {variable}")
        other = given.setdefault(leaf.name, value)
        if other.raw != value.raw:
            raise value.error(f"contradicts {other.origin.removeprefix('env ')}; keep one of the two")
    return given, _kubernetes_warning(injected)


def from_command_line(overrides: Mapping[str, str]) -> dict[str, Given]:
    """Keys are dotted names (`server.port`) or flat names in lower case (`port`)."""
    given = dict[str, Given]()
    for key, text in overrides.items():
        leaf = leaves().get(key) or flat_names().get(key.lower())
        if leaf is None:
            raise ConfigError(f"{key} is not a setting; {_hint_name(key)}")
        value = _from_text(leaf, text, "cli")
        if not text.strip() and not (leaf.optional or leaf.plural):
            raise value.error(f"needs a value, as in {key}={leaf.default}")
        given[leaf.name] = value
    return given


def config_path(given: str | None, environ: Mapping[str, str]) -> Path | None:
    """The YAML file to read: the command line's, else the one `LLM_RUNTIME_CONFIG` names."""
    chosen = given or environ.get(CONFIG_VARIABLE, "").strip()
    return Path(chosen).expanduser() if chosen else None


def _from_text(leaf: Leaf, text: str, origin: str) -> Given:
    text = text.strip()
    if leaf.optional and (not text or text.lower() in OFF_WORDS):
        return Given(leaf, None, origin)
    if leaf.structured:
        return Given(leaf, _structure(leaf, text, origin), origin)
    if leaf.plural:
        return Given(leaf, tuple(part for part in map(str.strip, text.split(",")) if part), origin)
    return Given(leaf, text.lower() if leaf.choices else text, origin)


def _structure(leaf: Leaf, text: str, origin: str) -> Any:
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader) or ()  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError:
        # Neither the text nor a snippet of it: there may be keys in it.
        raise Given(leaf, text, origin).error("it must be a list in YAML or JSON") from None


def _flatten(path: Path, prefix: str, mapping: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        if name in leaves():
            yield name, value
        elif name not in _section_names():
            raise ConfigError(f"{path}: {name} is not a setting; {_hint_name(name)}")
        elif isinstance(value, dict):
            yield from _flatten(path, f"{name}.", value)
        elif value is not None:
            raise ConfigError(f"{path}: {name} is a section with keys of its own, not a {_kind(value)}")


def _section_names() -> set[str]:
    return {
        ".".join(parts[:depth])
        for parts in (name.split(".") for name in leaves())
        for depth in range(1, len(parts))
    }


def _read_yaml(path: Path) -> Any:
    # Neither the text nor a snippet of it goes into a message: the file may hold keys.
    try:
        with path.open(encoding="utf-8") as file:
            return yaml.load(file, Loader=_UniqueKeyLoader)  # noqa: S506 (a SafeLoader)
    except OSError as error:
        raise ConfigError(
            f"{path} (configuration file) cannot be read: {error.strerror}; give an existing file "
            f"with --config or {CONFIG_VARIABLE}"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text, so it is not a configuration file") from error
    except (yaml.composer.ComposerError, yaml.constructor.ConstructorError):
        raise ConfigError(
            f"{path} is not one plain YAML document: put values that begin with &, *, ! or ? in quotes"
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{line} is not valid YAML: {error.problem}") from None
    except yaml.YAMLError:
        raise ConfigError(f"{path} is not valid YAML") from None


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML's own loader keeps the last of two equal keys and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            if key_node.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key_node.value!r} is given twice", problem_mark=key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def _injected_by_kubernetes(variable: str, text: str) -> bool:
    if _KUBERNETES_NAME.fullmatch(variable):
        return True
    return variable.endswith("_PORT") and _KUBERNETES_URL.match(text) is not None


def _kubernetes_warning(injected: list[str]) -> list[str]:
    if not injected:
        return []
    return [
        f"ignored {', '.join(injected)}: Kubernetes injects such variables for a Service whose name "
        "begins with llm-runtime; set enableServiceLinks: false in the pod to be rid of them"
    ]


def _hint_variable(variable: str) -> str:
    names = {name.removeprefix(ENV_PREFIX): name for name in (*variables(), *NOT_SETTINGS)}
    nearest = _nearest(variable.removeprefix(ENV_PREFIX).upper(), names)
    return _hint(None if nearest is None else names[nearest])


def _hint_name(name: str) -> str:
    last = name.rpartition(".")[2].lower()
    same_end = flat_names().get(last) or next(
        (leaf for leaf in leaves().values() if leaf.name.endswith(f".{last}")), None
    )
    return _hint(same_end.name if same_end else _nearest(name, (*leaves(), *_section_names())))


def _hint(nearest: str | None) -> str:
    if nearest is None:
        return "`llm-runtime config` prints all that exist"
    return f"did you mean {nearest}?"


def _nearest(name: str, candidates: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)), None)


def _kind(value: object) -> str:
    kinds = {list: "list", str: "text", bool: "truth value", int: "number", float: "number"}
    return kinds.get(type(value), type(value).__name__)
