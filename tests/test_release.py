"""A release is fit for an index, and the workflows that make it take nothing that a stranger can change."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from email.message import Message
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hook, check = load("hatch_build.py"), load("scripts/release_metadata.py")


def published(text: str, repository: str = "https://example.com/redrive") -> Message:
    found = Message()
    for field in ("Summary", "License-Expression", "Requires-Python", "Keywords"):
        found[field] = "given"
    found["Version"] = "0.1.0"
    for name, url in hook.urls(repository, "v0.1.0").items() if repository else ():
        found["Project-URL"] = f"{name}, {url}"
    found.set_payload(text)
    return found


def test_the_readme_leads_to_the_repository_at_the_tag_of_the_release() -> None:
    text = hook.absolute((ROOT / "README.md").read_text(), "https://example.com/redrive", "v0.1.0")
    assert "](https://example.com/redrive/raw/v0.1.0/docs/images/outage.svg)" in text
    assert "(https://example.com/redrive/blob/v0.1.0/docs/tutorial.md)" in text
    assert "(https://docs.celeryq.dev)" in text
    assert not list(check.findings(published(text), "## [0.1.0] - soon"))


def test_each_thing_that_makes_metadata_unfit_is_a_finding() -> None:
    found = published("![x](docs/x.svg) [here](#below)", repository="")
    del found["Summary"]
    wrong = "\n".join(check.findings(found, "## [Unreleased]"))
    assert "no project URL Source, Documentation, Changelog, Issues" in wrong
    assert "'docs/x.svg'" in wrong and "#below" not in wrong
    assert "no Summary" in wrong and "no heading '## [0.1.0]'" in wrong


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_action_is_pinned_by_hash_and_each_job_names_its_permissions(path: Path) -> None:
    text = path.read_text()
    uses = re.findall(r"uses: (\S+)(.*)", text)
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) and "# v" in tag for action, tag in uses), uses
    assert "\npermissions: {}\n" in text
    assert text.count("\n    permissions:\n") == text.count("\n    runs-on: ")


def test_a_tag_reaches_the_test_index_before_the_index() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    assert re.search(
        r"\n  test-index:\n.*?needs: build\n.*?test\.pypi\.org.*?\n  index:\n.*?needs: test-index\n", text, re.S
    )
    assert "password" not in text and "secrets." not in text


def test_each_page_says_what_works_before_an_index_has_redrive() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts/index_notes", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"run scripts/index_notes: {done.stdout}"


def test_each_surface_is_as_its_list_says() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts/surfaces.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, (
        f"if you meant it, run scripts/surfaces.py, and tell users in CHANGELOG.md:\n{done.stdout}"
    )


def test_a_difference_from_the_lists_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    surfaces = load("scripts/surfaces.py")
    for file in surfaces.FOLDER.iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    settings = tmp_path / "settings.txt"
    settings.write_text(settings.read_text().replace("lease_s: float", "lease_s: int"))
    monkeypatch.setattr(surfaces, "FOLDER", tmp_path)
    monkeypatch.setattr(surfaces, "SURFACES", {"settings": surfaces.settings})
    assert surfaces.main(["--check"]) == 1
    assert capsys.readouterr().out == "settings: -lease_s: int = …\nsettings: +lease_s: float = …\n"
