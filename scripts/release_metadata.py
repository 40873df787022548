"""Check that a wheel's metadata is fit for a package index: usage: release_metadata.py WHEEL.

Each finding is a line on standard error, and the exit code is then 1.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_TARGET = re.compile(r"\]\((?!https://)([^)#]+)\)")


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def findings(found: Message, changelog: str) -> Iterator[str]:
    urls = dict(line.split(", ", 1) for line in found.get_all("Project-URL", []))
    if missing := [name for name in ("Source", "Documentation", "Changelog", "Issues") if name not in urls]:
        where = "name the repository in pyproject.toml, [tool.hatch.metadata.hooks.custom]"
        yield f"no project URL {', '.join(missing)}: {where}"
    for target in _TARGET.findall(str(found.get_payload())):
        yield f"the README leads to {target!r}, which is not an address on a package index"
    for field in ("Summary", "License-Expression", "Requires-Python", "Keywords"):
        if not found[field]:
            yield f"no {field}"
    if f"## [{found['Version']}]" not in changelog:
        yield f"CHANGELOG.md has no heading '## [{found['Version']}]'"


if __name__ == "__main__":
    wrong = list(findings(metadata(Path(sys.argv[1])), (ROOT / "CHANGELOG.md").read_text()))
    for line in wrong:
        print(f"release: {line}", file=sys.stderr)
    sys.exit(bool(wrong))
