"""The Ray Serve application, under the name that people type.

serve run serve.app:deployment
serve run --address auto serve.app:deployment max_queue_size=256 ray.max_replicas=4
"""

from __future__ import annotations

from typing import Any

from ray import serve

from llm_runtime.deploy import ray_serve


def deployment(args: dict[str, Any]) -> serve.Application:
    """args: settings, as `llm-runtime serve -o` takes them."""
    return ray_serve.deployment(args)
