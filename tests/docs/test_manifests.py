"""Units and manifests of the pages: systemd takes them, commands are valid, and nothing kills within the grace."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from tests.docs.pages import blocks, pages

from redrive.duration import seconds
from redrive.program.main import cli

BLOCKS = [block for page in pages() for block in blocks(page)]
UNITS = {block.place: block.text for block in BLOCKS if block.language == "ini" and "[Service]" in block.text}
YAML = {block.place: yaml.safe_load(block.text) for block in BLOCKS if block.language == "yaml"}
DEPLOYMENTS = {place: text for place, text in YAML.items() if text.get("kind") == "Deployment"}
SERVICES = {
    f"{place} {name}": service
    for place, text in YAML.items()
    for name, service in text.get("services", {}).items()
    if "command" in service
}


def worker_grace(command: list[str]) -> float | None:
    """Parse a command as `redrive` does; the grace of a worker in seconds, None of anything else."""
    assert Path(command[0]).name == "redrive"
    context, found, args = click.Context(cli), cli, command[1:]
    while isinstance(found, click.Group):
        name, found, args = found.resolve_command(context, args)
        assert found is not None and name is not None
        context = found.make_context(name, args, parent=context) if not isinstance(found, click.Group) else context
    return seconds(context.params["grace"] or "30s") if found.name == "worker" else None


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_a_unit_gives_its_worker_longer_than_its_grace(unit: str) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit)
    service = parser["Service"]
    grace = worker_grace(shlex.split(service["ExecStart"]))
    if grace is not None and "--grace" in service["ExecStart"]:
        assert grace < seconds(service["TimeoutStopSec"])
        assert service["KillMode"] == "mixed"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_systemd_takes_a_unit(unit: str, tmp_path: Path) -> None:
    path = tmp_path / "redrive.service"
    # What is verified is the unit, not this machine: its program and its user are not here.
    here = re.sub(r"^(ExecStart\w*=)\S+", r"\1/bin/true", unit, flags=re.M)
    path.write_text(re.sub(r"^User=.*\n|^WorkingDirectory=.*\n", "", here, flags=re.M))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60)
    assert [line for line in done.stderr.splitlines() if "redrive.service" in line] == []


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=DEPLOYMENTS)
def test_a_deployment_gives_its_worker_longer_than_its_grace(deployment: dict[str, Any]) -> None:
    spec = deployment["spec"]["template"]["spec"]
    assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]
    for container in spec["containers"]:
        grace = worker_grace([*container["command"], *container.get("args", [])])
        if grace is not None:
            assert grace < spec["terminationGracePeriodSeconds"]
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        assert mounted <= {volume["name"] for volume in spec.get("volumes", [])}


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_a_service_of_compose_gives_its_worker_longer_than_its_grace(service: dict[str, Any]) -> None:
    grace = worker_grace(service["command"])
    if grace is not None:
        assert grace < seconds(service["stop_grace_period"])


def test_an_image_starts_a_worker_without_a_shell() -> None:
    (image,) = (block for block in BLOCKS if block.language == "dockerfile")
    (command,) = re.findall(r"^CMD (.*)$", image.text, re.M)
    assert worker_grace(json.loads(command)) == 20
