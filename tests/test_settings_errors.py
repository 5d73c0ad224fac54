"""What settings refuse, and what a message must and must not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_runtime.settings import load_settings
from llm_runtime.settings_leaves import variables
from tests.settings_support import from_env, from_yaml, refusal

SECRET = "sk-very-secret"


# Unknown names


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("LLM_RUNTIME_PROT", "LLM_RUNTIME_PORT"),
        ("LLM_RUNTIME_API_KEY", "LLM_RUNTIME_API_KEYS"),
        ("LLM_RUNTIME_SERVER_PORT", "LLM_RUNTIME_SERVER__PORT"),
        ("LLM_RUNTIME_MAX_QUEUE", "LLM_RUNTIME_MAX_QUEUE_SIZE"),
        ("LLM_RUNTIME_port", "LLM_RUNTIME_PORT"),
        ("LLM_RUNTIME_CONFG", "LLM_RUNTIME_CONFIG"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_and_without_its_value(
    variable: str, nearest: str
) -> None:
    message = refusal(lambda: load_settings({}, {variable: SECRET}))
    assert message == f"{variable} is not a setting; did you mean {nearest}?"


def test_a_variable_like_nothing_known_is_refused_with_the_way_to_the_names() -> None:
    message = refusal(lambda: load_settings({}, {"LLM_RUNTIME_XYZZY": "1"}))
    assert message == "LLM_RUNTIME_XYZZY is not a setting; `llm-runtime config` prints all that exist"


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("server: {prot: 1}", "server.prot", "server.port"),
        ("port: 1", "port", "server.port"),
        ("server: {max_queue_size: 1}", "server.max_queue_size", "admission.max_queue_size"),
        ("sever: {port: 1}", "sever", "server"),
        ("engines: {llama_cpp: {nctx: 1}}", "engines.llama_cpp.nctx", "engines.llama_cpp.n_ctx"),
    ],
)
def test_an_unknown_key_of_the_file_is_refused_with_the_nearest(
    text: str, key: str, nearest: str, tmp_path: Path
) -> None:
    message = refusal(lambda: from_yaml(tmp_path, text))
    assert message.endswith(f"settings.yaml: {key} is not a setting; did you mean {nearest}?")


def test_an_unknown_name_on_the_command_line_is_refused_with_the_nearest() -> None:
    message = refusal(lambda: load_settings({"server.prt": "1"}, {}))
    assert message == "server.prt is not a setting; did you mean server.port?"


def test_what_kubernetes_injects_is_ignored_with_one_warning() -> None:
    injected = {
        "LLM_RUNTIME_SERVICE_HOST": "10.0.0.1",
        "LLM_RUNTIME_SERVICE_PORT": "8000",
        "LLM_RUNTIME_SERVICE_PORT_HTTP": "8000",
        "LLM_RUNTIME_PORT": "tcp://10.0.0.1:8000",
        "LLM_RUNTIME_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "LLM_RUNTIME_PORT_8000_TCP_PROTO": "tcp",
        "LLM_RUNTIME_PORT_8000_TCP_PORT": "8000",
        "LLM_RUNTIME_PORT_8000_TCP_ADDR": "10.0.0.1",
        "LLM_RUNTIME_CONSOLE_SERVICE_HOST": "10.0.0.2",
        "LLM_RUNTIME_CONSOLE_PORT": "udp://10.0.0.2:53",
        "LLM_RUNTIME_CONSOLE_PORT_53_UDP": "udp://10.0.0.2:53",
    }
    settings = load_settings({}, injected | {"LLM_RUNTIME_SERVER__PORT": "9000"})
    assert settings.server.port == 9000
    (warning,) = settings.warnings
    assert all(name in warning for name in injected)
    assert "enableServiceLinks" in warning


# Wrong values


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("PORT", "99999", "less than or equal to 65535"),
        ("PORT", "-1", "greater than or equal to 0"),
        ("PORT", "80a", "valid integer"),
        ("REQUEST_TIMEOUT_S", "0", "greater than 0; `none` switches it off"),
        ("REQUEST_TIMEOUT_S", "nan", "finite"),
        ("REQUEST_TIMEOUT_S", "inf", "finite"),
        ("ENABLE_BATCHING", "perhaps", "valid boolean"),
        ("SCHEDULER", "lifo", "'deadline' or 'shortest'"),
        ("MAX_BATCH_SIZE", "2.5", "valid integer"),
    ],
)
def test_a_wrong_value_is_refused_naming_key_value_place_and_fix(name: str, text: str, why: str) -> None:
    variable = f"LLM_RUNTIME_{name}"
    leaf = variables()[variable]
    message = refusal(lambda: load_settings({}, {variable: text}))
    assert message.startswith(f"{leaf.name} = {text!r} (from env {variable}): it should be ")
    assert why in message


def test_several_wrong_values_are_told_together() -> None:
    message = refusal(lambda: from_env(PORT="x", MAX_BATCH_SIZE="0", LOG_LEVEL="loud"))
    assert [line.split(" ")[0] for line in message.splitlines()] == [
        "server.port",
        "scheduling.max_batch_size",
        "telemetry.log_level",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("server: {port: yes}", "server.port = True"),
        ("server: {port: null}", "server.port = None"),
        ("server: {port: {a: 1}}", "server.port = {'a': 1}"),
        ("server: 3", "server is a section with keys of its own, not a number"),
        ("- server", "must hold sections such as `server:`, not a list"),
        (
            "server:\n  port: 1\n  port: 2",
            "line 3, column 3 is not valid YAML: the key 'port' is given twice",
        ),
        ("server: [", "is not valid YAML"),
        ("? [a]\n: 1", "not one plain YAML document"),
        ("a: 1\n---\nb: 1", "not one plain YAML document"),
        ("server: !!python/name:os.system", "not one plain YAML document"),
    ],
)
def test_a_broken_file_is_refused_with_the_place(text: str, why: str, tmp_path: Path) -> None:
    message = refusal(lambda: from_yaml(tmp_path, text))
    assert "settings.yaml" in message
    assert why in message


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "no.yaml")
    assert "No such file" in refusal(lambda: load_settings({}, {}, missing))
    assert "LLM_RUNTIME_CONFIG" in refusal(lambda: load_settings({}, {"LLM_RUNTIME_CONFIG": missing}))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in refusal(lambda: load_settings({}, {}, str(tmp_path / "binary.yaml")))


def test_two_names_of_one_setting_must_agree() -> None:
    assert from_env(PORT="5", SERVER__PORT="5").server.port == 5
    message = refusal(lambda: from_env(PORT="5", SERVER__PORT="6"))
    assert "LLM_RUNTIME_PORT" in message
    assert "LLM_RUNTIME_SERVER__PORT" in message


@pytest.mark.parametrize(
    "text",
    [
        f"server: {{api_keys: [{SECRET}, 3]}}",
        f"server: {{api_keys: {{{SECRET}: 1}}}}",
        f"server: {{api_keys: ['{SECRET} x']}}",
        f"server: {{api_keys: [*{SECRET}]}}",
        f"server: {{api_keys: [!{SECRET} x]}}",
        f"server: {{api_keys: ['{SECRET}]}}",
        f"server:\n\tapi_keys: {SECRET}",
        f"server: {{api_keys: [{SECRET}: [}}",
    ],
)
def test_no_message_shows_a_secret(text: str, tmp_path: Path) -> None:
    assert SECRET not in refusal(lambda: from_yaml(tmp_path, text))


def test_a_key_that_no_header_can_carry_is_refused_by_position() -> None:
    message = refusal(lambda: from_env(API_KEYS=f"ok,{SECRET} x"))
    assert "key number 2" in message
    assert SECRET not in message
    assert "key number 1" in refusal(lambda: from_env(API_KEYS="schlüssel"))
