"""What is installed is known: each dependency has a lowest version, and one that it is tested with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions, version
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKED = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
)
EXTRAS = ("postgres", "redis", "aws", "http", "prometheus", "dev", "docs")
NEEDED = [*PROJECT["dependencies"], *(one for extra in EXTRAS for one in PROJECT["optional-dependencies"][extra])]


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=~; ]", requirement)[0]


def spelt(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("requirement", sorted({one for one in NEEDED if "python_version" not in one}))
def test_each_dependency_is_locked_to_the_version_that_is_tested(requirement: str) -> None:
    locked = {spelt(name): number for name, number in LOCKED.items()}[spelt(name_of(requirement))]
    assert "UNLOCKED" in os.environ or locked == version(name_of(requirement))


def test_each_locked_version_installs_with_the_oldest_python_that_make_finds() -> None:
    """Debian 12 has Python 3.11.2, and pip refuses the whole lock for one version that needs a newer one."""
    needs = {one.metadata["Name"]: one.metadata["Requires-Python"] or "" for one in distributions()}
    locked = {name: need for name, need in needs.items() if LOCKED.get(name) == version(name)}
    assert len(locked) > 50
    assert {name: need for name, need in locked.items() if not SpecifierSet(need).contains("3.11.2")} == {}


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_each_dependency_names_a_lowest_version_and_no_highest(requirement: str) -> None:
    assert re.match(r"[\w-]+>=[\d.]+(;|$)", requirement), requirement


def test_the_lowest_versions_are_constraints_for_pip() -> None:
    found = subprocess.run([sys.executable, ROOT / "scripts" / "lowest"], capture_output=True, text=True, check=True)
    lines = found.stdout.splitlines()
    assert "msgspec==0.21.*" in lines and "click==8.1.8" in lines and "psycopg==3.2.*" in lines
    assert all(re.fullmatch(r"[\w-]+==[\d.]+(\.\*)?", line) for line in lines)


def test_a_provenance_names_what_was_built_and_of_which_commit(tmp_path: Path) -> None:
    sums = tmp_path / "SHA256SUMS"
    sums.write_text(f"{'a' * 64}  redrive-1.0-py3-none-any.whl\n{'b' * 64}  redrive-1.0.tar.gz\n")
    command = [sys.executable, ROOT / "scripts" / "provenance.py", "c" * 40, sums]
    made = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    assert made["predicateType"] == "https://slsa.dev/provenance/v1"
    assert [one["digest"]["sha256"][0] for one in made["subject"]] == ["a", "b"]
    source, *tools = made["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": "c" * 40}
    assert any(tool["uri"].startswith("pkg:pypi/hatchling@") for tool in tools)
