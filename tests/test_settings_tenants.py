"""Tenants in the YAML file: what can be declared, and what is said of what cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from llm_runtime.admission.config import TenantConfig, TenantLimits, TenantSlo
from llm_runtime.cli import app
from llm_runtime.core.request import PriorityClass
from llm_runtime.settings import load_settings
from tests.settings_support import from_yaml, refusal

SECRET = "sk-TENANTSECRET01"
WHOLE = f"""
admission:
  tenants:
    - name: team-a
      keys: [{SECRET}, "sha256:{"0a" * 32}"]
      ceiling: standard
      weight: 2.5
      limits: {{requests_per_minute: 60, tokens_per_minute: 90000, max_concurrent_requests: 4}}
      slo: {{first_token_s: 2, total_s: 60}}
    - name: team-b
      keys: [sk-TENANTSECRET02]
  redis: {{url: "redis://user:PASSWORDSECRET@10.0.0.1:6379/3", when_gone: closed}}
server: {{admin_api_keys: [sk-ADMINSECRET03]}}
"""


def declared(text: str) -> str:
    return f"admission:\n  tenants:\n{text}"


def test_everything_that_can_be_said_of_a_tenant(tmp_path: Path) -> None:
    settings = from_yaml(tmp_path, WHOLE)
    assert settings.admission.tenants == (
        TenantConfig(
            "team-a",
            keys=(SECRET, f"sha256:{'0a' * 32}"),
            ceiling=PriorityClass.STANDARD,
            weight=2.5,
            limits=TenantLimits(60, 90_000, 4),
            slo=TenantSlo(2, 60),
        ),
        TenantConfig("team-b", keys=("sk-TENANTSECRET02",)),
    )
    assert settings.admission.redis.when_gone == "closed"
    assert settings.warnings == ()
    assert settings.has_keys


def test_keys_of_tenants_are_enough_to_be_reachable(tmp_path: Path) -> None:
    host = "\nserver: {host: 0.0.0.0}"
    from_yaml(tmp_path, declared("    - {name: a, keys: [k-1234]}") + host)
    assert "no API key is set" in refusal(lambda: from_yaml(tmp_path, declared("    - {name: a}") + host))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("    - {name: a, limits: {requests_per_minute: 0}}",
         ["tenant 'a'", "limits.requests_per_minute", "1"]),
        ("    - {name: a, limits: {request_per_minute: 5}}",
         ["tenant 'a'", "limits.request_per_minute", "no such field", "requests_per_minute"]),
        ("    - {name: a, limit: {}}",
         ["tenant 'a'", "no such field", "name, keys, ceiling, weight, limits, slo"]),
        ("    - {name: a, ceiling: best}", ["tenant 'a'", "ceiling", "'interactive', 'standard' or 'batch'"]),
        ("    - {name: a, weight: 0}", ["tenant 'a'", "weight", "greater than 0"]),
        ("    - {name: a, slo: {total_s: -1}}", ["tenant 'a'", "slo.total_s"]),
        ("    - {keys: [k]}", ["tenant number 1", "name", "required"]),
        ("    - {name: a, keys: ['a b']}", ["'a'", "key number 1", "no Authorization header"]),
        ("    - just-a-name", ["tenant number 1"]),
        ("    a: {}", ["list of tenants"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_tenant_and_field(tmp_path: Path, text: str, said: list[str]) -> None:
    message = refusal(lambda: from_yaml(tmp_path, declared(text)))
    assert "admission.tenants" in message
    for word in said:
        assert word in message


def test_several_faults_are_told_together(tmp_path: Path) -> None:
    text = "    - {name: a, weight: 0}\n    - {name: b, weight: -1, ceiling: none}"
    assert len(refusal(lambda: from_yaml(tmp_path, declared(text))).splitlines()) == 3


@pytest.mark.parametrize(
    "text",
    [
        f"    - {{name: a, keys: [{SECRET}, 3]}}",
        f"    - {{name: a, keys: {SECRET}}}",
        f"    - {{name: a, key: {SECRET}}}",
        f"    - {{name: a, keys: ['{SECRET} x']}}",
        f"    {SECRET}",
        f"    - {{name: a, keys: [*{SECRET}]}}",
    ],
)
def test_no_message_repeats_a_key(tmp_path: Path, text: str) -> None:
    assert "SECRET" not in refusal(lambda: from_yaml(tmp_path, declared(text)))


def test_nor_does_one_about_a_variable() -> None:
    variable = {"LLM_RUNTIME_ADMISSION__TENANTS": f"[{{name: a, keys: [{SECRET}"}
    message = refusal(lambda: load_settings({}, variable))
    assert "YAML or JSON" in message
    assert "SECRET" not in message


def test_the_printed_settings_show_tenants_without_their_keys(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(WHOLE, encoding="utf-8")
    result = CliRunner().invoke(app, ["config", "--config", str(path)])
    assert result.exit_code == 0
    assert "SECRET" not in result.stdout
    assert "0a0a" not in result.stdout
    assert '"name": "team-a", "keys": ["***", "***"], "ceiling": "standard"' in result.stdout
    assert "redis://***@10.0.0.1:6379/3" in result.stdout
    assert 'admin_api_keys: ["***"]' in result.stdout


def test_what_has_no_effect_is_said(tmp_path: Path) -> None:
    text = "    - {name: a, keys: [k-123456]}\n    - {name: b}\n  redis: {url: 'redis://127.0.0.1'}"
    warnings = from_yaml(tmp_path, declared(text)).warnings
    assert any("b has no keys" in warning for warning in warnings)
    assert any("admission.redis.url has no effect" in warning for warning in warnings)
