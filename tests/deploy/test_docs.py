"""Commands in the pages about deployment: run here or in CI, or at least naming only what exists."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.deploy.places import ROOT
from tests.deploy.test_compose import SERVICES
from tests.deploy.test_image import STAGES

PAGES = ("deployment.md", "monitoring.md")
TEXT = "".join((ROOT / "docs" / page).read_text() for page in PAGES)
RUN_HERE = {"python deploy/monitoring/build_dashboards.py"}
# They need what is not here; what they name is checked below.
NEEDS_MORE = (
    "docker compose ",
    "docker build ",
    "docker run ",
    "kubectl ",
    "systemctl ",
    "install ",
    "curl ",
)


def commands() -> list[list[str]]:
    blocks = "".join(re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL))
    return [shlex.split(line) for line in blocks.replace("\\\n", " ").splitlines() if line.strip()]


def starting(*words: str) -> list[list[str]]:
    found = [command for command in commands() if tuple(command[: len(words)]) == words]
    assert found
    return found


def test_no_command_is_unknown() -> None:
    for command in commands():
        line = shlex.join(command)
        assert line in RUN_HERE or line.startswith(NEEDS_MORE), line


def test_compose_knows_the_services_and_profiles() -> None:
    profiles = {one for service in SERVICES.values() for one in service.get("profiles", ())}
    for command in starting("docker", "compose"):
        rest = [word for word in command[2:] if word not in ("up", "run", "--build", "--rm")]
        if rest and rest[0] == "--profile":
            assert rest[1] in profiles
            rest = rest[2:]
        assert set(rest) <= set(SERVICES), command


def test_docker_builds_stages_that_exist_under_the_names_that_are_run() -> None:
    built = set()
    for command in starting("docker", "build"):
        assert command[command.index("--target") + 1] in STAGES
        built.add(command[command.index("-t") + 1])
    assert {command[-1] for command in starting("docker", "run")} <= built


def test_every_file_that_is_named_exists() -> None:
    named = set(re.findall(r"(?:deploy|scripts|docs)/[\w./-]*\w", TEXT)) - {"deploy/kubernetes/gpu"}
    assert len(named) >= 8
    for path in named:
        assert (ROOT / path).exists(), path


def test_ci_runs_the_images_steps() -> None:
    ci = (ROOT / ".ci/run").read_text()
    assert "python3 scripts/try_image.py" in ci
    assert "python3 scripts/try_image.py" in TEXT


@pytest.mark.parametrize("page", PAGES)
def test_operations_links_here(page: str) -> None:
    assert f"({page})" in (ROOT / "docs" / "operations.md").read_text()


def test_the_pages_are_short() -> None:
    assert len((ROOT / "docs" / "deployment.md").read_text().splitlines()) < 120
