"""Say in a release's metadata where the project lives, and make its README readable on a package index.

The address is the one of `[tool.redrive] repository` in pyproject.toml. While that is empty, a build has no project
URLs and keeps the README as it is; `scripts/release` builds no release of that.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"(!\[[^\]]*\]\()(?!https?:)([^)]+\))")
_LINK = re.compile(r"(?<!!)(\[[^\]]*\]\()(?!https?:|#)([^)]+\))")


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        text = (root / "README.md").read_text()
        if repository := self.config.get("repository", ""):
            version = re.search(r'"(.+)"', (root / "src/redrive/_version.py").read_text().split("__version__", 1)[1])
            assert version is not None
            text = absolute(text, repository, f"v{version[1]}")
            metadata["urls"] = urls(repository, f"v{version[1]}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(text: str, repository: str, tag: str) -> str:
    """Return a README whose pictures and links lead to the repository, at the release's tag."""
    text = _PICTURE.sub(rf"\g<1>{repository}/raw/{tag}/\g<2>", text)
    return _LINK.sub(rf"\g<1>{repository}/blob/{tag}/\g<2>", text)


def urls(repository: str, tag: str) -> dict[str, str]:
    return {
        "Source": repository,
        "Documentation": f"{repository}/blob/{tag}/docs/index.md",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
