"""A Ray cluster of several nodes on one machine with the application in it, for tests and scenarios.

    python -m llm_runtime.deploy.ray_testbed --port 8000 --node 2 --node 2 -o backend=mock

The head has room for the ingress only, each further node for so many engines, so that killing one never
kills the queue. It deploys by a configuration, as KubeRay does: only so can the number of engines be changed
without a new version of the code, for which Ray restarts all of them. Prints one line of JSON for each thing
that is done, and takes commands from standard input, one a line: `kill-node N`, `kill-engine N`,
`add-node ENGINES`, `engines`, `scale N`, `set KEY VALUE`. At the end of its input it stops everything that
it has started.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from llm_runtime.engines import proctable

NAME = "llm-runtime"
ENGINE_TITLE = b"ray::ServeReplica:llm-runtime:Engine"
ENGINE_CPUS = 2
"""More than the head has, so that no engine is ever put there."""
START_S = 300.0
LOOK_EVERY_S = 0.1


class Testbed:
    """Everything that runs. Used by one thread, in the order of the commands."""

    def __init__(self, port: int, settings: dict[str, str]) -> None:
        self._settings = {"ray.num_cpus": str(ENGINE_CPUS), **settings}
        self._count = int(settings.get("ray.min_replicas", "1"))
        os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1,
                "num_gpus": 0,
                "include_dashboard": False,
                "object_store_memory": 100 << 20,
            },
        )
        ray.init(address=self._cluster.address, namespace="serve", log_to_driver=False, logging_level="error")
        serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="HeadOnly")
        self.nodes: list[Any] = []
        self._deploy()
        self.wait_for_engines(0)  # while there is no room for them, so that the ingress is on the head

    def _deploy(self) -> None:
        application: dict[str, Any] = {
            "name": NAME,
            "route_prefix": "/",
            "import_path": "llm_runtime.deploy.ray_serve:deployment",
            "args": self._settings,
        }
        if "ray.max_replicas" not in self._settings:
            application["deployments"] = [{"name": "Engine", "num_replicas": self._count}]
        _get_global_client().deploy_apps(ServeDeploySchema(applications=[application]), _blocking=False)

    def add_node(self, num_engines: int) -> dict[str, Any]:
        num_cpus = ENGINE_CPUS * num_engines
        node = self._cluster.add_node(num_cpus=num_cpus, num_gpus=0, object_store_memory=100 << 20)
        self.nodes.append(node)
        return {"node": len(self.nodes) - 1}

    def wait_for_engines(self, count: int) -> None:
        """Until so many are running. Raises TimeoutError, RuntimeError where the application failed."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            status = serve.status().applications.get(NAME)
            if status is None:
                time.sleep(LOOK_EVERY_S)
                continue
            if status.status.value in ("DEPLOY_FAILED", "UNHEALTHY"):
                raise RuntimeError(status.message)
            if _num_running(status, "Engine") >= count and _num_running(status, "Ingress"):
                return
            time.sleep(LOOK_EVERY_S)
        raise TimeoutError(f"{count} engines were not there after {START_S:g} s")

    def engines(self) -> dict[str, Any]:
        """Process ids of the engine replicas, by node, the head's first."""
        below = [_descendants(raylet) for raylet in self._raylets()]
        return {"engines": [[pid for pid in pids if _is_engine(pid)] for pids in below]}

    def kill_engine(self, number: int) -> dict[str, Any]:
        """The n-th engine replica of all, without a word."""
        pid = [pid for node in self.engines()["engines"] for pid in node][number]
        os.kill(pid, signal.SIGKILL)
        return {"killed": [pid]}

    def kill_node(self, number: int) -> dict[str, Any]:
        """Everything on a node at once, as when its power is cut."""
        node = self.nodes[number]
        pids = [process.process.pid for found in node.all_processes.values() for process in found]
        below = list(_descendants(_raylet_pid(node)))
        for pid in (*pids, *below):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return {"killed": [*pids, *below]}

    def scale(self, count: int) -> dict[str, Any]:
        """Another fixed number of engines."""
        self._count = count
        self._deploy()
        return {"scaling": count}

    def set(self, name: str, value: str) -> dict[str, Any]:
        """A setting; of the runtime's own ones each change is a new version, and replaces every replica."""
        self._settings[name] = value
        self._deploy()
        return {"set": name}

    def close(self) -> None:
        serve.shutdown()
        ray.shutdown()
        self._cluster.shutdown()

    def _raylets(self) -> list[int]:
        return [_raylet_pid(node) for node in (self._cluster.head_node, *self.nodes)]


def _num_running(status: Any, deployment: str) -> int:
    found = status.deployments.get(deployment)
    return int(found.replica_states.get("RUNNING", 0)) if found is not None else 0


def _raylet_pid(node: Any) -> int:
    found = node.all_processes.get("raylet")
    return int(found[0].process.pid) if found else 0


def _descendants(pid: int) -> Sequence[int]:
    return proctable.descendants(pid, proctable.table()) if pid else ()


def _is_engine(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(ENGINE_TITLE)
    except OSError:
        return False


def _say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _commands() -> Iterator[list[str]]:
    for line in sys.stdin:
        words = line.split()
        if words:
            yield words


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--node", type=int, action="append", default=[], help="engines that a further node has room for"
    )
    parser.add_argument("-o", action="append", default=[], help="a setting, KEY=VALUE")
    given = parser.parse_args(arguments)
    settings = dict(assignment.split("=", 1) for assignment in given.o)
    bed = Testbed(given.port, settings)
    try:
        for num_engines in given.node:
            bed.add_node(num_engines)
        bed.wait_for_engines(int(settings.get("ray.min_replicas", "1")))
        _say(ready=True, port=given.port)
        for command, *rest in _commands():
            if command == "set":
                _say(**bed.set(*rest))
                continue
            number = int(rest[0]) if rest else 0
            if command == "kill-node":
                _say(**bed.kill_node(number))
            elif command == "kill-engine":
                _say(**bed.kill_engine(number))
            elif command == "add-node":
                _say(**bed.add_node(number))
            elif command == "engines":
                _say(**bed.engines())
            elif command == "scale":
                _say(**bed.scale(number))
            else:
                _say(error=f"no such command: {command}")
    finally:
        bed.close()


if __name__ == "__main__":
    main()
