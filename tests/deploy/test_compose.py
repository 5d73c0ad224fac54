"""docker-compose.yml by the Compose specification's schema, and by what its services promise each other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_runtime.engines.config import SupervisionConfig
from llm_runtime.runtime.config import LimitsConfig
from llm_runtime.serving import SHUTDOWN_GRACE_S
from llm_runtime.settings import load_settings
from tests.deploy.places import MONITORING, ROOT, read_yaml

COMPOSE = ROOT / "docker-compose.yml"
READ = read_yaml(COMPOSE)
SERVICES: dict[str, dict[str, Any]] = READ["services"]
SERVERS = ("llm-runtime", "llm-runtime-gpu")
NEEDED_TO_STOP_S = LimitsConfig().drain_timeout_s + SupervisionConfig().stop_grace_s + SHUTDOWN_GRACE_S


def interpolated(value: object) -> str:
    """As Compose does where none of the variables is set."""
    text = str(value).replace("True", "true")
    return re.sub(r"\$\{\w+:-(.*?)\}", r"\1", text)


def test_the_schema_is_kept() -> None:
    program = Path(sys.executable).with_name("check-jsonschema")
    command = [str(program), "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_profiles() -> None:
    by_profile: dict[str, set[str]] = {}
    for name, service in SERVICES.items():
        for profile in service.get("profiles", [""]):
            by_profile.setdefault(profile, set()).add(name)
    assert by_profile == {
        "": {"llm-runtime"},
        "benchmark": {"benchmark"},
        "monitoring": {"prometheus", "grafana"},
        "gpu": {"vllm", "llm-runtime-gpu", "dcgm-exporter"},
    }


@pytest.mark.parametrize("name", SERVERS)
def test_the_settings_of_a_server_are_settings(name: str) -> None:
    env = {key: interpolated(value) for key, value in SERVICES[name]["environment"].items()}
    loaded = load_settings({}, {"LLM_RUNTIME_HOST": "0.0.0.0", **env})
    assert loaded.server.allow_unauthenticated
    assert not loaded.server.api_keys
    if name == "llm-runtime-gpu":
        assert loaded.engines.openai.url == "http://vllm:8000"
        assert f"--max-num-seqs={loaded.engines.concurrency}" in SERVICES["vllm"]["command"]


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_has_time_to_stop_and_few_rights(name: str) -> None:
    service = SERVICES[name]
    assert int(service["stop_grace_period"].removesuffix("s")) > NEEDED_TO_STOP_S
    assert service["init"] is True
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]


def test_ports_are_published_on_loopback_only_and_once() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len({port.split(":")[1] for port in ports}) == len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_file_that_is_mounted_exists() -> None:
    mounted = [
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", ())
        if volume.startswith("./")
    ]
    assert len(mounted) == 5
    for path in mounted:
        assert (ROOT / path).exists()
    named = {
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", ())
        if not volume.startswith("./")
    }
    assert named == set(READ["volumes"])


def test_every_image_that_is_built_is_a_target() -> None:
    targets = re.findall(r"^FROM .+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for service in SERVICES.values():
        if "build" in service:
            assert service["build"]["target"] in targets
        else:
            assert re.search(r":v?\d+\.\d+", service["image"]), "no version"


def test_vllm_is_the_same_everywhere() -> None:
    (wanted,) = re.findall(r"^ARG VLLM_IMAGE=(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert SERVICES["vllm"]["image"] == wanted
    pin = re.search(
        r"^vllm(?:-cpu)?==(.+)$", (ROOT / "requirements/engines/vllm.txt").read_text(), re.MULTILINE
    )
    assert pin is not None
    assert wanted == f"vllm/vllm-openai:v{pin[1]}"


def test_prometheus_finds_the_services_and_the_key() -> None:
    config = read_yaml(MONITORING / "prometheus.yml")
    for job in config["scrape_configs"]:
        for found in job.get("dns_sd_configs", ()):
            for name in found["names"]:
                assert name in SERVICES or name == "llama-cpp"
    prometheus = SERVICES["prometheus"]
    (key,) = prometheus["configs"]
    assert key["target"] == "/etc/prometheus/scrape-key"
    assert key["source"] in READ["configs"]
    assert "./deploy/monitoring/prometheus.yml:/etc/prometheus/prometheus.yml:ro" in prometheus["volumes"]
    assert "./deploy/monitoring/rules:/etc/prometheus/rules:ro" in prometheus["volumes"]


def test_grafana_finds_its_files() -> None:
    mounted = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    folder = MONITORING / "grafana" / "provisioning" / "dashboards"
    (provider,) = read_yaml(folder / "llm-runtime.yml")["providers"]
    assert mounted["./deploy/monitoring/grafana/dashboards"] == provider["options"]["path"]
    assert mounted["./deploy/monitoring/grafana/provisioning"] == "/etc/grafana/provisioning"


def test_dcgm_is_told_what_to_export() -> None:
    service = SERVICES["dcgm-exporter"]
    (volume,) = service["volumes"]
    source, target, _ = volume.split(":")
    assert service["command"] == ["-f", target]
    assert ROOT / source == MONITORING / "dcgm-counters.csv"


def test_the_benchmark_is_a_command_there_is() -> None:
    """On loopback, where it takes the server's key by itself, and asks nothing that does not exist."""
    service = SERVICES["benchmark"]
    assert service["network_mode"] == "service:llm-runtime"
    command = service["command"]
    assert command[:3] == ["bench", "run", "http://127.0.0.1:8000"]
    help_text = subprocess.run(
        [Path(sys.executable).with_name("llm-runtime"), "bench", "run", "--help"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for option in command[3:]:
        assert option.split("=")[0] in help_text
    (volume,) = service["volumes"]
    assert command[-1].startswith(f"--output={volume.split(':')[1]}/")


def test_no_secret_is_written_here() -> None:
    text = COMPOSE.read_text()
    for name in ("LLM_RUNTIME_API_KEYS", "HF_TOKEN", "SCRAPE_KEY"):
        assert set(re.findall(rf"{name}:? \$?(\S*)", text)) <= {f"{{{name}:-}}", "tells", "sets", "some,"}
    assert "sk-" not in text
