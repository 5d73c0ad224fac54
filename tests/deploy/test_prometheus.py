"""A real Prometheus scrapes loaded servers, vLLM's and DCGM's text and a real llama.cpp, and is asked every
query of every dashboard, every variable and every rule. Needs Debian's package `prometheus`."""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.deploy.loaded import KEYS, Targets, everything
from tests.deploy.places import DASHBOARDS, MONITORING, alerts, dashboard, panels, read_yaml, rules
from tests.deploy.promql import selectors, with_variables
from tests.e2e.conftest import free_port
from tests.support.http import get

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.engine,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus here (apt: prometheus)"),
]

SCRAPE_INTERVAL = "500ms"
RATE_INTERVAL = "5s"
LIMIT_S = 45.0
PAUSE_S = 0.2
VARIABLES = {"job": ".+", "instance": ".+", "model": ".+", "gpu": ".+", "__rate_interval": RATE_INTERVAL}


def configured(jobs: Targets) -> dict[str, Any]:
    """The committed configuration with fixed addresses for names, and with less patience."""
    config: dict[str, Any] = read_yaml(MONITORING / "prometheus.yml")
    config["global"] = {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": SCRAPE_INTERVAL}
    for job in config["scrape_configs"]:
        if job.pop("dns_sd_configs", None) is not None:
            job["static_configs"] = [{"targets": jobs[job["job_name"]]}]
    config["scrape_configs"] = [one for one in config["scrape_configs"] if one["job_name"] != "prometheus"]
    assert {one["job_name"] for one in config["scrape_configs"]} == set(jobs)
    return config


@dataclass(frozen=True)
class Prometheus:
    port: int

    async def ask(self, path: str) -> Any:
        reply = await get(self.port, path)
        body = reply.json()
        assert body["status"] == "success", (path, body)
        return body["data"]

    async def values(self, expr: str) -> list[float]:
        """Of every series of an instant query; those that are no number left out."""
        data = await self.ask(f"/api/v1/query?query={quote(expr, safe='')}")
        found = [float(one["value"][1]) for one in data["result"]]
        return [value for value in found if math.isfinite(value)]


@asynccontextmanager
async def running(folder: Path, jobs: Targets) -> AsyncIterator[Prometheus]:
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configured(jobs)))
    (folder / "scrape-key").write_text(KEYS[0] + "\n")
    shutil.copytree(MONITORING / "rules", folder / "rules")
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stderr=log,
        )
    try:
        end = time.monotonic() + LIMIT_S
        while not await _is_ready(port):
            assert process.returncode is None, (folder / "log").read_text()
            assert time.monotonic() < end, (folder / "log").read_text()
            await asyncio.sleep(PAUSE_S)
        yield Prometheus(port)
    finally:
        process.kill()
        await process.wait()


async def _is_ready(port: int) -> bool:
    try:
        return (await get(port, "/-/ready")).status == 200
    except (OSError, EOFError):
        return False


def queries() -> dict[str, str]:
    """Every expression of every dashboard by where it stands; and what its variables choose from."""
    found: dict[str, str] = {}
    for path in DASHBOARDS:
        page = dashboard(path)
        for panel in panels(page):
            for target in panel["targets"]:
                place = f"{page['title']}, panel {panel['id']} {panel['title']}, {target['refId']}"
                found[place] = with_variables(target["expr"], VARIABLES)
        for one in page["templating"]["list"]:
            if one["type"] == "query":
                inner = one["query"].removeprefix("label_values(").rpartition(",")[0]
                found[f"{page['title']}, variable {one['name']}"] = with_variables(inner, VARIABLES)
    return found


def rule_metrics() -> dict[str, str]:
    """What each alert looks at, without its thresholds: silent alerts, but not for want of data."""
    return {
        f"{rule['alert']}: {name}": name
        for rule in alerts()
        for selector in selectors(rule["expr"])
        for name in selector.names
        if not name.startswith("job_") or name in RECORDED
    }


RECORDED = {rule["record"] for rule in rules() if "record" in rule}


async def unanswered(prometheus: Prometheus, wanted: dict[str, str]) -> dict[str, str]:
    answers = await asyncio.gather(*map(prometheus.values, wanted.values()))
    return {place: expr for (place, expr), values in zip(wanted.items(), answers, strict=True) if not values}


async def test_every_query_of_every_dashboard_and_rule_has_an_answer(tmp_path: Path) -> None:
    async with everything(tmp_path) as jobs, running(tmp_path, jobs) as prometheus:
        missing = {**queries(), **rule_metrics()}
        assert len(missing) > 150
        end = time.monotonic() + LIMIT_S
        while missing and time.monotonic() < end:
            await asyncio.sleep(PAUSE_S)
            missing = await unanswered(prometheus, missing)
        assert not missing

        targets = (await prometheus.ask("/api/v1/targets"))["activeTargets"]
        assert sorted(one["scrapePool"] for one in targets) == sorted(
            job for job, addresses in jobs.items() for _ in addresses
        )
        assert not [one for one in targets if one["health"] != "up"]
        await _judge_rules(prometheus)


async def _judge_rules(prometheus: Prometheus) -> None:
    groups = (await prometheus.ask("/api/v1/rules"))["groups"]
    found = {one["name"]: one for group in groups for one in group["rules"]}
    assert set(found) == {rule.get("alert") or rule["record"] for rule in rules()}
    assert {name: one.get("lastError") for name, one in found.items() if one["health"] != "ok"} == {}
    # A replica holds on to a cancelled request's slots; nothing is down.
    assert found["LLMRuntimeSuspectLease"]["state"] == "pending"
    assert found["LLMRuntimeDown"]["state"] == "inactive"
    assert found["EngineScrapeDown"]["state"] == "inactive"
