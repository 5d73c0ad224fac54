"""The settings tree: every source, which one wins, and what must not be combined."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from llm_runtime.admission.config import TenantConfig, TenantLimits
from llm_runtime.core.errors import ConfigError
from llm_runtime.settings import Settings, is_loopback, load_settings
from llm_runtime.settings_leaves import Leaf, leaves, variables
from llm_runtime.settings_table import SECTIONS, TABLE
from llm_runtime.web.config import ServerConfig
from tests.settings_support import from_env, from_yaml, refusal

NO_OVERRIDES: Mapping[str, str] = {}


def sample(leaf: Leaf) -> Any:
    """A valid value that is not the default."""
    if leaf.choices:
        return next(choice for choice in leaf.choices if choice != leaf.default)
    if leaf.plural:
        return ("a", "b")
    if leaf.structured:
        return (TenantConfig("a", keys=("k",), limits=TenantLimits(requests_per_minute=3)), TenantConfig("b"))
    if leaf.annotation is bool:
        return not leaf.default
    if "float" in str(leaf.annotation):
        return 0.5 if "Le(le=1)" in str(leaf.annotation) else 2.5
    if "int" in str(leaf.annotation):
        return 4096
    return "::1"


def as_text(value: Any) -> str:
    if not isinstance(value, tuple):
        return str(value)
    return ",".join(value) if isinstance(value[0], str) else json.dumps(as_yaml(value))


def as_yaml(value: Any) -> Any:
    """As it stands in a file."""
    if not isinstance(value, tuple):
        return value
    return [
        json.loads(json.dumps(dataclasses.asdict(item))) if isinstance(item, TenantConfig) else item
        for item in value
    ]


# The table and the tree


def test_the_table_has_a_row_for_each_setting_and_no_other() -> None:
    assert set(TABLE) == set(leaves())


def test_the_sections_are_the_fields_of_the_tree() -> None:
    assert {name: field.annotation for name, field in Settings.model_fields.items()} == dict(SECTIONS)


def test_no_section_bears_a_flat_name_and_no_flat_name_is_used_twice() -> None:
    flat = [row.flat for row in TABLE.values() if row.flat is not None]
    assert len(flat) == len(set(flat))
    assert not {name.upper() for name in SECTIONS} & set(flat)
    assert len(variables()) == len(TABLE) + len(flat)


def test_the_names_people_type_stay() -> None:
    names = """HOST PORT BACKEND MODEL_PATH MODEL_NAME SCHEDULER ENABLE_BATCHING MAX_BATCH_SIZE
    BATCH_TIMEOUT_MS REQUEST_TIMEOUT_S QUEUE_TIMEOUT_S STREAM_IDLE_TIMEOUT_S STREAM_MAX_S
    WRITE_STALL_TIMEOUT_S DRAIN_TIMEOUT_S MAX_QUEUE_SIZE REQUEST_RATE_LIMIT_PER_S
    REQUEST_RATE_LIMIT_BURST NATIVE_BACKEND_CONCURRENCY PREFILL_LATENCY_MS DECODE_LATENCY_MS
    PRIORITY_AGING_BOOST_INTERVAL_S DEFAULT_MAX_TOKENS N_CTX N_GPU_LAYERS N_THREADS API_KEYS
    LOG_LEVEL LOG_FORMAT"""
    assert {f"LLM_RUNTIME_{name}" for name in names.split()} <= set(variables())


def test_defaults_are_those_of_the_config_types() -> None:
    settings = load_settings(NO_OVERRIDES, {"PATH": "/bin"})
    assert settings == Settings()
    for name, section in SECTIONS.items():
        assert getattr(settings, name) == section()
    assert {settings.origin(name) for name in leaves()} == {"default"}
    assert settings.warnings == ()


# Sources


@pytest.mark.parametrize("name", leaves())
def test_each_setting_is_the_same_from_every_source(name: str, tmp_path: Path) -> None:
    leaf = leaves()[name]
    value = sample(leaf)
    *sections, key = name.split(".")
    tree: dict[str, Any] = {key: as_yaml(value)}
    for section in reversed(sections):
        tree = {section: tree}

    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    loaded = {
        f"file {path}": load_settings({}, {}, str(path)),
        f"env {leaf.variable}": load_settings({}, {leaf.variable: as_text(value)}),
        f"env {leaf.nested_variable}": load_settings({}, {leaf.nested_variable: as_text(value)}),
        "cli": load_settings({name: as_text(value)}, {}),
    }
    for origin, settings in loaded.items():
        assert settings.value(name) == value
        assert type(settings.value(name)) is type(value)
        assert settings.origin(name) == origin
        assert [other for other in leaves() if settings.origin(other) != "default"] == [name]


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("server: {port: 1, max_tools: 1, max_messages: 1}\n")
    environ = {
        "LLM_RUNTIME_CONFIG": str(path),
        "LLM_RUNTIME_PORT": "2",
        "LLM_RUNTIME_SERVER__MAX_TOOLS": "2",
    }
    settings = load_settings({"port": "3"}, environ)
    assert (settings.server.port, settings.server.max_tools, settings.server.max_messages) == (3, 2, 1)
    assert settings.origin("server.port") == "cli"
    assert settings.origin("server.max_tools") == "env LLM_RUNTIME_SERVER__MAX_TOOLS"
    assert settings.origin("server.max_messages") == f"file {path}"
    assert settings.origin("server.host") == "default"


def test_the_file_named_on_the_command_line_replaces_the_one_in_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("server: {port: 7}\n")
    settings = load_settings({}, {"LLM_RUNTIME_CONFIG": "/does/not/exist"}, str(path))
    assert settings.server.port == 7


@pytest.mark.parametrize("off", ["none", "None", "null", "off"])
def test_an_optional_limit_is_switched_off_by_a_word(off: str, tmp_path: Path) -> None:
    assert from_env(REQUEST_TIMEOUT_S=off).limits.request_timeout_s is None
    assert load_settings({"request_timeout_s": off}, {}).limits.request_timeout_s is None
    assert from_yaml(tmp_path, f"limits: {{request_timeout_s: '{off}'}}").limits.request_timeout_s is None
    assert from_yaml(tmp_path, "limits: {request_timeout_s: null}").limits.request_timeout_s is None


def test_an_empty_variable_counts_as_absent() -> None:
    settings = from_env(REQUEST_TIMEOUT_S="", PORT=" ", MODEL_NAME="", API_KEYS="", CONFIG="")
    assert settings == Settings()
    assert settings.origin("server.port") == "default"


def test_an_empty_value_on_the_command_line_clears_what_can_be_empty() -> None:
    environ = {"LLM_RUNTIME_API_KEYS": "a", "LLM_RUNTIME_REQUEST_TIMEOUT_S": "3"}
    settings = load_settings({"server.api_keys": "", "limits.request_timeout_s": ""}, environ)
    assert settings.server.api_keys == ()
    assert settings.limits.request_timeout_s is None
    assert "needs a value" in refusal(lambda: load_settings({"host": ""}, {}))


def test_lists_are_separated_by_commas_with_room_for_spaces() -> None:
    assert from_env(API_KEYS=" a, b ,,c").server.api_keys == ("a", "b", "c")


def test_words_of_a_closed_set_may_be_in_any_case() -> None:
    settings = from_env(LOG_LEVEL="WARNING", BACKEND="Mock")
    assert (settings.telemetry.log_level, settings.engines.backend) == ("warning", "mock")


def test_an_empty_file_and_an_empty_section_change_nothing(tmp_path: Path) -> None:
    assert from_yaml(tmp_path, "# nothing\n") == Settings()
    assert from_yaml(tmp_path, "server:\nmodel: {}\n") == Settings()


# Values that contradict each other


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_an_open_address_without_keys_is_refused_unless_waived(host: str) -> None:
    message = refusal(lambda: from_env(HOST=host))
    assert "LLM_RUNTIME_API_KEYS" in message
    assert "LLM_RUNTIME_SERVER__ALLOW_UNAUTHENTICATED=true" in message
    assert from_env(HOST=host, API_KEYS="k").server.host == host
    assert from_env(HOST=host, SERVER__ALLOW_UNAUTHENTICATED="true").server.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST"])
def test_loopback_needs_no_key(host: str) -> None:
    assert is_loopback(host)
    assert from_env(HOST=host).server.host == host


def test_an_empty_host_would_mean_all_addresses_so_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="names no address"):
        Settings(server=ServerConfig(host="", allow_unauthenticated=True))


def test_a_prefill_batch_below_the_slots_is_refused_because_it_kills_the_engine() -> None:
    message = refusal(
        lambda: load_settings({"engines.llama_cpp.n_batch": "4", "native_backend_concurrency": "5"}, {})
    )
    assert "engines.llama_cpp.n_batch = 4" in message
    assert "at least 5" in message
    equal = load_settings({"engines.llama_cpp.n_batch": "5", "native_backend_concurrency": "5"}, {})
    assert equal.engines.llama_cpp.n_batch == 5


def test_the_longest_backoff_is_not_below_the_first() -> None:
    name = "engines.supervision.restart_backoff_max_s"
    assert name in refusal(lambda: load_settings({name: "0.1"}, {}))


@pytest.mark.parametrize("variable", ["WEB_CONCURRENCY", "UVICORN_WORKERS"])
def test_more_than_one_worker_is_refused_with_the_way_to_scale(variable: str) -> None:
    message = refusal(lambda: load_settings({}, {variable: "2"}))
    assert message.startswith(f"{variable} = 2: ")
    assert "load balancer" in message
    assert load_settings({}, {variable: "1"}) == Settings()
    assert load_settings({}, {variable: ""}) == Settings()


def test_settings_without_effect_are_warned_about() -> None:
    (warning,) = from_env(REQUEST_RATE_LIMIT_BURST="3").warnings
    assert "request_rate_limit_per_s" in warning
    (warning,) = from_env(PRIORITY_AGING_BOOST_INTERVAL_S="3").warnings
    assert "scheduling.policy = fifo" in warning
    assert from_env(REQUEST_RATE_LIMIT_BURST="3", REQUEST_RATE_LIMIT_PER_S="1").warnings == ()
    for policy in ("priority", "fair", "deadline", "shortest"):
        assert from_env(PRIORITY_AGING_BOOST_INTERVAL_S="3", SCHEDULER=policy).warnings == ()


def test_a_tree_built_by_hand_is_checked_too() -> None:
    with pytest.raises(ConfigError):
        Settings(server=ServerConfig(host="0.0.0.0"))
    with pytest.raises(ValidationError):
        Settings(server=ServerConfig(port=70000))
    with pytest.raises(ValidationError):
        Settings().server = ServerConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().server.port = 1  # type: ignore[misc]
