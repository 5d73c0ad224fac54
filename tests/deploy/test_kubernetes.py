"""The manifests by the schemas of Kubernetes and KubeRay, and by what they promise each other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from llm_runtime.deploy.ray_settings import make_plan
from llm_runtime.settings import load_settings
from tests.deploy.manifests import built, merged
from tests.deploy.places import DEPLOY, ROOT, read_yaml
from tests.deploy.test_compose import NEEDED_TO_STOP_S, SERVICES
from tests.support.http import get
from tests.support.server import MOCK, serve

KUBERNETES = DEPLOY / "kubernetes"
FOLDERS = ("base", "gpu")
SCHEMAS = ("1.29", "1.37")
RAY = read_yaml(KUBERNETES / "rayservice.yaml")


def deployment(folder: str) -> dict[str, Any]:
    (found,) = (one for one in built(KUBERNETES / folder) if one["kind"] == "Deployment")
    return found


def pod(folder: str) -> dict[str, Any]:
    spec: dict[str, Any] = deployment(folder)["spec"]["template"]["spec"]
    return spec


def server(folder: str) -> dict[str, Any]:
    (found,) = (one for one in pod(folder)["containers"] if one["name"] == "llm-runtime")
    return dict(found)


def validate(documents: list[Any], folder: Path, version: str) -> None:
    path = folder / "all.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    program = Path(sys.executable).with_name("kubernetes-validate")
    done = subprocess.run(
        [program, "--strict", "-k", version, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(" passed ") == len(documents)


@pytest.mark.parametrize("version", SCHEMAS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_schema_of_kubernetes_is_kept(folder: str, version: str, tmp_path: Path) -> None:
    validate(built(KUBERNETES / folder), tmp_path, version)


def test_the_validation_finds_a_wrong_field(tmp_path: Path) -> None:
    documents = built(KUBERNETES / "base")
    documents[0]["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(AssertionError, match="livenessprobe"):
        validate(documents, tmp_path, SCHEMAS[0])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
@pytest.mark.parametrize("folder", FOLDERS)
def test_kustomize_merges_as_we_do(folder: str) -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", KUBERNETES / folder], capture_output=True, text=True, check=True
    )
    theirs = list(yaml.safe_load_all(done.stdout))

    def by_kind(documents: list[Any]) -> dict[str, Any]:
        return {one["kind"]: one for one in documents}

    assert by_kind(theirs) == by_kind(built(KUBERNETES / folder))


def test_merging() -> None:
    base = {"env": [{"name": "b"}, {"name": "a", "value": "1"}], "kept": 1, "gone": 2, "list": [1, 2]}
    change = {"env": [{"name": "c"}, {"name": "a", "value": "2"}], "gone": None, "list": [3]}
    assert merged(base, change) == {
        "env": [{"name": "c"}, {"name": "a", "value": "2"}, {"name": "b"}], "kept": 1, "list": [3],
    }  # fmt: skip


@pytest.mark.parametrize("folder", FOLDERS)
async def test_probes_ask_paths_that_mean_what_the_probe_decides(folder: str) -> None:
    container = server(folder)
    probes = {
        name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")
    }
    assert probes == {
        "startup": "/health/live", "liveness": "/health/live", "readiness": "/health/ready",
    }  # fmt: skip
    async with serve({**MOCK, "server.api_keys": "sk-a"}) as running:
        for path in probes.values():
            assert (await get(running.port, path)).status == 200
        running.runtime.begin_drain()
        assert (await get(running.port, probes["readiness"])).status == 503
        assert (await get(running.port, probes["liveness"])).status == 200


@pytest.mark.parametrize("folder", FOLDERS)
def test_there_is_time_to_drain(folder: str) -> None:
    (_, pause) = server(folder)["lifecycle"]["preStop"]["exec"]["command"]
    assert pod(folder)["terminationGracePeriodSeconds"] > NEEDED_TO_STOP_S + int(pause)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_settings_are_settings(folder: str) -> None:
    container = server(folder)
    env = {one["name"]: one.get("value", "sk-from-the-secret") for one in container["env"]}
    loaded = load_settings({}, {"LLM_RUNTIME_HOST": "0.0.0.0", **env})
    assert loaded.server.api_keys == ("sk-from-the-secret",)
    assert container["ports"] == [{"name": "http", "containerPort": loaded.server.port}]


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_container_has_few_rights_and_places_to_write(folder: str) -> None:
    container, spec = server(folder), pod(folder)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/tmp", "/var/cache/llm-runtime"}
    volumes = {volume["name"] for volume in spec["volumes"]}
    for one in (*spec["containers"], *spec.get("initContainers", ())):
        assert {mount["name"] for mount in one["volumeMounts"]} <= volumes


def test_the_service_finds_the_pods() -> None:
    documents = built(KUBERNETES / "base")
    (service,) = (one for one in documents if one["kind"] == "Service")
    labels = deployment("base")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] in {one["name"] for one in server("base")["ports"]}
    monitor = read_yaml(KUBERNETES / "monitoring" / "podmonitor.yaml")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()


def test_vllm_is_the_one_of_docker_compose() -> None:
    (vllm,) = pod("gpu")["initContainers"]
    compose = SERVICES["vllm"]
    assert vllm["image"] == compose["image"]
    assert vllm["command"] == compose["entrypoint"]
    assert [one.replace("8001", "8000") for one in vllm["args"]] == compose["command"]
    env = {one["name"]: one.get("value") for one in server("gpu")["env"]}
    assert env["LLM_RUNTIME_UPSTREAM_URL"] == f"http://127.0.0.1:{vllm['ports'][0]['containerPort']}"
    assert f"--max-num-seqs={env['LLM_RUNTIME_NATIVE_BACKEND_CONCURRENCY']}" in vllm["args"]
    # A sidecar: started before the server, stopped after it has drained.
    assert vllm["restartPolicy"] == "Always"
    assert vllm["resources"]["limits"]["nvidia.com/gpu"] == 1


@pytest.mark.vllm
def test_vllm_takes_its_arguments() -> None:
    done = subprocess.run(
        [ROOT / ".venv-vllm/bin/python", "-W", "ignore", Path(__file__).parent / "vllm_arguments.py",
         *SERVICES["vllm"]["command"]],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
        start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout.splitlines()[-1]) == {
        "model_tag": "Qwen/Qwen2.5-7B-Instruct",
        "max_num_seqs": 128,
        "max_model_len": 4096,
        "dtype": "bfloat16",
        "port": 8000,
        "gpu_memory_utilization": 0.9,
    }


# ---- KubeRay, and the operator of Prometheus: the fields that are used, by their CRDs

TEXT, NUMBER = {"type": "string"}, {"type": "integer", "minimum": 0}


def exactly(required: tuple[str, ...], **fields: Any) -> dict[str, Any]:
    return {
        "type": "object", "properties": fields, "required": list(required), "additionalProperties": False,
    }  # fmt: skip


START = {"type": "object", "additionalProperties": TEXT}
TEMPLATE = {"type": "object", "required": ["spec"]}
GROUP = exactly(
    ("groupName", "minReplicas", "maxReplicas", "template"),
    groupName=TEXT, replicas=NUMBER, minReplicas=NUMBER, maxReplicas=NUMBER, rayStartParams=START,
    template=TEMPLATE,
)  # fmt: skip
RAY_SERVICE = exactly(
    ("rayClusterConfig",),
    serviceUnhealthySecondThreshold=NUMBER,
    deploymentUnhealthySecondThreshold=NUMBER,
    serveConfigV2=TEXT,
    rayClusterConfig=exactly(
        ("headGroupSpec",),
        rayVersion=TEXT,
        enableInTreeAutoscaling={"type": "boolean"},
        autoscalerOptions=exactly((), idleTimeoutSeconds=NUMBER),
        headGroupSpec=exactly(("template",), rayStartParams=START, template=TEMPLATE),
        workerGroupSpecs={"type": "array", "items": GROUP},
    ),
)
POD_MONITOR = exactly(
    ("selector", "podMetricsEndpoints"),
    selector=exactly((), matchLabels=START),
    podMetricsEndpoints={
        "type": "array",
        "items": exactly(
            (),
            port=TEXT, path=TEXT, interval={"type": "string", "pattern": r"^\d+s$"},
            authorization=exactly((), type=TEXT, credentials=exactly(("key",), name=TEXT, key=TEXT)),
            relabelings={"type": "array", "items": exactly((), targetLabel=TEXT, replacement=TEXT)},
        ),
    },
)  # fmt: skip


def test_the_fields_of_kuberay_are_kept() -> None:
    assert (RAY["apiVersion"], RAY["kind"]) == ("ray.io/v1", "RayService")
    jsonschema.validate(RAY["spec"], RAY_SERVICE)


def test_the_fields_of_the_prometheus_operator_are_kept() -> None:
    monitor = read_yaml(KUBERNETES / "monitoring" / "podmonitor.yaml")
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    jsonschema.validate(monitor["spec"], POD_MONITOR)


def ray_pods() -> dict[str, dict[str, Any]]:
    cluster = RAY["spec"]["rayClusterConfig"]
    groups = {one["groupName"]: one["template"] for one in cluster["workerGroupSpecs"]}
    return {"head": cluster["headGroupSpec"]["template"], **groups}


@pytest.mark.parametrize("version", SCHEMAS)
def test_rays_pods_are_pods(version: str, tmp_path: Path) -> None:
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, **template}
        for name, template in ray_pods().items()
    ]
    assert len(pods) == 3
    validate(pods, tmp_path, version)


def test_rays_pods_are_stopped_slowly_and_share_memory() -> None:
    for template in ray_pods().values():
        spec = template["spec"]
        assert spec["terminationGracePeriodSeconds"] > NEEDED_TO_STOP_S
        assert "/dev/shm" in {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}


def test_ray_serves_our_application_with_settings_there_are() -> None:
    config = yaml.safe_load(RAY["spec"]["serveConfigV2"])
    (application,) = config["applications"]
    assert application["import_path"] == "serve.app:deployment"
    assert application["route_prefix"] == "/"
    env = application["runtime_env"]["env_vars"]
    assert all(isinstance(value, str) for value in env.values())
    ours = {name: value for name, value in env.items() if name.startswith("LLM_RUNTIME_")}
    assert load_settings({}, ours).admission.max_queue_size == 1024
    plan = make_plan({}, env, has_gpu=False)
    assert (plan.device, plan.settings.engines.backend) == ("gpu", "vllm-inprocess")
    assert (plan.num_slots, plan.num_gpus, plan.max_replicas) == (128, 1.0, 8)
    wanted = {"VLLM_MAX_NUM_SEQS": "128", "VLLM_MAX_NUM_BATCHED_TOKENS": "4096", "VLLM_MAX_MODEL_LEN": "4096"}
    assert wanted.items() <= env.items()


def test_ray_is_the_version_of_the_image() -> None:
    (version,) = re.findall(r"^ARG RAY_VERSION=(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert RAY["spec"]["rayClusterConfig"]["rayVersion"] == version
