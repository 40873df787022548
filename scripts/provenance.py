"""Write the provenance of a release: an in-toto statement with a SLSA 1.0 predicate, on standard output.

usage: provenance.py COMMIT SHA256SUMS
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path


def statement(commit: str, sums: Path) -> dict[str, object]:
    subjects = [line.split() for line in sums.read_text().splitlines()]
    origin = subprocess.run(["git", "remote", "get-url", "origin"], capture_output=True, text=True, check=False)
    source = {"uri": origin.stdout.strip() or "git", "digest": {"gitCommit": commit}}
    tools = [tool for tool in Path(__file__).with_name("release-tools.txt").read_text().split("\n") if "==" in tool]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for digest, name in subjects],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "scripts/release",
                "externalParameters": {"commit": commit},
                "resolvedDependencies": [source, *({"uri": f"pkg:pypi/{tool.replace('==', '@')}"} for tool in tools)],
            },
            "runDetails": {
                "builder": {"id": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"}
            },
        },
    }


if __name__ == "__main__":
    print(json.dumps(statement(sys.argv[1], Path(sys.argv[2])), indent=2))
