"""Link out of the pages: to the trace of a run, the logs of its worker, and the lines of code that failed.

The settings `trace_url`, `logs_url` and `code_url` are templates. Each value is quoted, so that it cannot change the
rest of the address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from urllib.parse import quote, urlsplit

from ..config import settings

_FIELD = re.compile(r"\{(\w+)\}")
_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_NO_TRACE = "0" * 32


def link(template: str | None, values: Mapping[str, object]) -> str | None:
    """Return the template filled in; None without a template, if a value is missing, or if the scheme is not http or
    https.

    >>> link("https://traces.example.com/{trace_id}?at={at}", {"trace_id": "4bf9", "at": "2026-11-23T16:00:00Z"})
    'https://traces.example.com/4bf9?at=2026-11-23T16%3A00%3A00Z'
    >>> link("https://traces.example.com/{trace_id}", {"trace_id": None})
    """
    if template is None or urlsplit(template).scheme not in ("http", "https"):
        return None
    names = set(_FIELD.findall(template))
    if any(values.get(name) in (None, "") for name in names):
        return None
    return _FIELD.sub(lambda match: quote(str(values[match[1]]), safe="/" if match[1] == "file" else ""), template)


def ids_of(traceparent: str | None) -> Mapping[str, str]:
    """Return the `trace_id` and `span_id` of a W3C traceparent; an empty mapping if it is invalid."""
    match = _PARENT.fullmatch(traceparent or "")
    return {"trace_id": match[1], "span_id": match[2]} if match and match[1] != _NO_TRACE else {}


def links(traceparent: str | None, **values: object) -> dict[str, str]:
    """Return the addresses of a run's trace and logs, as far as settings define them. `values`: message_id, task,
    queue, worker, at."""
    about = {**values, **ids_of(traceparent)}
    urls = {"trace": link(settings().trace_url, about), "logs": link(settings().logs_url, about)}
    return {name: to for name, to in urls.items() if to}


def code(file: str, line: int) -> str | None:
    """Return the address of a line of code; None without the setting `code_url`, or for files outside `code_root`."""
    path, root = PurePath(file), settings().code_root
    if root is not None:
        if not path.is_relative_to(root):
            return None
        path = path.relative_to(root)
    if ".." in path.parts or (root is None and path.is_absolute()):
        return None
    return link(settings().code_url, {"file": path.as_posix(), "line": line})
