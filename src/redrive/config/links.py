"""Link to the pages of `redrive web`, and to runbooks."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from .resolve import settings
from .runbooks import RUNBOOKS, runbook_url


def page_address(root: str, *parts: str, **query: Any) -> str:
    """Return an address below the path `root`. Quotes each of `parts`, and leaves out empty values of the query.

    >>> page_address("/jobs", "queues", "a b/c", since="1h", task=None)
    '/jobs/queues/a%20b%2Fc?since=1h'
    """
    path = "/".join(quote(part, safe="") for part in parts)
    given = {name: value for name, value in query.items() if value not in (None, "", [])}
    return f"{root.rstrip('/')}/{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")


def web_link(*parts: str, base: str | None = None, **query: str | None) -> str | None:
    """Return the full address of a page, at `base` or else the setting `web_url`; None without either.

    >>> web_link("queues", "a b/c", base="https://ops.example.com/jobs", since="1h", task=None)
    'https://ops.example.com/jobs/queues/a%20b%2Fc?since=1h'
    """
    if (at := base or settings().web_url) is None:
        return None
    scheme, host, path, _, _ = urlsplit(at)
    return urlunsplit((scheme, host, "", "", "")) + page_address(path, *parts, **query)


def runbook_of(name: str) -> str | None:
    """Return the page of the docs about the alert of this name, or about needs of this area: its address if the setting
    `runbook_url` is set, else its name; None if there is none."""
    page, base = RUNBOOKS.get(name), settings().runbook_url
    return page if page is None or base is None else runbook_url(page, base)
