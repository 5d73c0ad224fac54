"""Settings of the Ray Serve deployment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt


@dataclass(frozen=True, slots=True)
class RayConfig:
    """Read by `deploy.ray_serve` alone. Seconds, except counts.

    device: what engines compute on; auto: a GPU where this machine, or the cluster it has joined, has one.
    min_replicas, max_replicas: engines; None: as many as DEFAULT_MAX_REPLICAS says for the device.
    target_ongoing_requests: running requests per engine at which Ray adds one; None: three quarters of
    its slots. upscale_delay_s, downscale_delay_s: how long Ray waits before it follows the load.
    num_cpus, num_gpus: what Ray sets aside for each engine; num_gpus None: 1 on GPUs, else 0.
    num_ingress_cpus: for the one ingress. drain_timeout_s: how long an engine or an ingress that
    is to go may finish its streams. health_check_period_s: between two questions of Ray's whether a replica
    is well.
    """

    device: Literal["auto", "cpu", "gpu"] = "auto"
    min_replicas: Annotated[int, Ge(1)] = 1
    max_replicas: Annotated[int, Ge(1)] | None = None
    target_ongoing_requests: Annotated[float, Gt(0)] | None = None
    upscale_delay_s: Annotated[float, Ge(0)] = 5.0
    downscale_delay_s: Annotated[float, Ge(0)] = 300.0
    num_cpus: Annotated[float, Ge(0)] = 1.0
    num_gpus: Annotated[float, Ge(0)] | None = None
    num_ingress_cpus: Annotated[float, Ge(0)] = 1.0
    drain_timeout_s: Annotated[float, Gt(0)] = 600.0
    health_check_period_s: Annotated[float, Gt(0)] = 2.0


DEFAULT_MAX_REPLICAS = {"cpu": 1, "gpu": 8}
