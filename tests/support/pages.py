"""Read the pages of a site in words and in JSON, and send their forms."""

from __future__ import annotations

import html
import re
from typing import Any

from tests.support.sites import JSON, Browser


class Reader(Browser):
    """A browser that expects answers: of each request, the status that it should have."""

    def html(self, path: str, status: int = 200) -> str:
        answer = self.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    def text(self, path: str) -> str:
        """The words of a page, without tags."""
        return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", self.html(path))))

    def json(self, path: str, status: int = 200) -> Any:
        answer = self.get(path, headers=JSON)
        assert answer.status_code == status, answer.text
        return answer.json()

    def do(self, action: str, status: int = 200, **form: str) -> Any:
        """Send the form of an action; its answer, decoded if it is JSON."""
        answer = self.post(f"/do/{action}", form, headers=JSON)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.headers["content-type"] == "application/json" else answer
