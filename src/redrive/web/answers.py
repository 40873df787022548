"""Write answers: records as HTML or JSON, errors as pages (what, why, next), and the site's static files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from markupsafe import Markup
from msgspec.structs import replace
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from .._version import __version__
from ..config import page_address
from ..errors import (
    ConfigError,
    Conflict,
    EnqueueError,
    ReadOnly,
    RedriveError,
    Refused,
    StoreError,
    Unreadable,
    Unsupported,
)
from ..present.permissions import Denied, User
from ..redact import in_json, redact, redact_record
from ..triage.views import SavedView, views
from .ask import PageAnswer, Problem, SiteParts
from .forms import HERE, REFUSED
from .guard import CSRF, csrf_of, harden, path_of, root_of, said, set_cookie
from .marks import marks_of
from .requests import wants_json
from .table import PARTS, SitePage
from .text import moment, page

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (Unsupported, 501),
    (Refused, 409),
    (Conflict, 409),
    (ReadOnly, 405),
    (StoreError, 503),
    (EnqueueError, 422),
    (Unreadable, 422),
    (ConfigError, 422),
    (RedriveError, 409),
    (OSError, 503),
    (ValueError, 422),
)


def as_json(record: Mapping[str, Any], status: int = 200) -> Response:
    """Return a record as a JSON response, without secrets."""
    body = in_json(msgspec.json.encode(redact_record(record)).decode())
    return Response(body + "\n", status, media_type="application/json")


def html(
    site: SiteParts, request: Request, user: User, shown: SitePage, record: PageAnswer,
    *, csrf: str, said: str, version: int,
) -> str:  # fmt: skip
    """Return the HTML of a page with this record, without secrets except those that the reader typed."""
    others = _others(site, request, user, csrf, shown)
    others |= {"said": redact(said), "version": version, "typed": record.typed}
    if HERE in record.typed:
        others |= {"address": record.typed[HERE], "is_live": False}
        others["here"] = others["base"] = root_of(request) + "/" + record.typed[HERE].partition("?")[0]
    text = page(shown.name, redact_record(record), **others)
    if "problem" in record.typed and f'id="{REFUSED}"' not in text:  # there is no such form any more
        raise record.typed["problem"]
    return text


def failed(site: SiteParts, request: Request, problem: Problem, *, allow: str = "") -> Response:
    """Return the answer for a problem, as JSON or HTML as the request wants it."""
    record = {"error": redact(problem.what), "why": redact(problem.why) or None, "next": problem.next or None}
    if wants_json(request):
        response = as_json(record, problem.status)
    else:
        others = _others(site, request, User(permissions=frozenset()), "", None)
        did = redact(said(request))  # the result of the last action, whose target may not exist any more
        body = page("error", record | {"status": problem.status, "store": site.url}, **others, said=did, version=0)
        response = HTMLResponse(body, problem.status)
    if allow:
        response.headers["Allow"] = allow
    if problem.status == 401 and site.access.takes_token:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def login(site: SiteParts, request: Request, *, wrong: bool = False) -> Response:
    """Return the page with the form for the token; status 401 if a token was `wrong`."""
    csrf = csrf_of(request)
    others = _others(site, request, User(permissions=frozenset()), csrf, None)
    record = {"wrong": wrong, "query": path_of(request).partition("?")[2]}
    response = HTMLResponse(page("login", record, **others, said="", version=0), 401 if wrong else 200)
    set_cookie(response, request, CSRF, csrf)
    return response


def once_more(request: Request) -> Response:
    """Return a page that requests the same address again: a link of another site (an alert) comes without cookies."""
    text = Markup(
        '<!doctype html><title>redrive</title><meta http-equiv="refresh" content="0; url={0}"><a href="{0}">Open</a>'
    )
    return HTMLResponse(text.format(path_of(request)))


def problem_of(error: Exception, store: str) -> Problem:
    """Return the Problem that shows an error; an unexpected error gets no details."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, Denied):
        return Problem(error.what, error.why, error.next, error.status)
    if isinstance(error, HTTPException):
        return Problem(error.detail or "the request was refused", status=error.status_code)
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    what, _, why = str(error).partition("; ")
    if status == 503:
        why = f"{type(error).__name__}: {error}"
        return Problem(f"the store {store} cannot be read", why, "see that it runs; this page tries again", 503)
    if status == 500:
        return Problem("this page failed", f"{type(error).__name__}; the log has more", "try again", 500)
    return Problem(what, why, "", status)


VIEWS_SHOWN = 12  # of the menu of views
THEME = "redrive-theme"  # name of the cookie that a script sets


def _others(site: SiteParts, request: Request, user: User, csrf: str, shown: SitePage | None) -> dict[str, Any]:
    """Return the functions and values that every template may use beside its record; `shown` is the page, if any."""
    root, now_ms = root_of(request), _clock(site)
    address = path_of(request).removeprefix(root).lstrip("/")
    return {
        "url": lambda *parts, **query: page_address(root, *parts, **query),
        "when": lambda at, absent="–": absent if at is None else moment(at, now_ms(), absent=absent),
        "can": lambda permission: not site.read_only and user.may(permission),
        "user": user,
        "csrf": csrf,
        "shown": shown,
        "menu": site.menu,
        "parts": PARTS,
        "marks": marks_of(site.sums.peek("status")),
        "store": site.url,
        "read_only": site.read_only,
        "is_live": "wsgi_environ" not in request.scope,
        "query": dict(request.query_params),
        "views": _views(site) if shown is not None else (),
        "address": address if redact(address) == address else None,  # an address with a secret is not saved
        "here": path_of(request).partition("?")[0],
        "base": "",  # of the links of a page to itself
        "release": __version__,
        "environment": site.environment,
        "theme": theme if (theme := request.cookies.get(THEME)) in ("light", "dark") else "",
    }


def _views(site: SiteParts) -> Sequence[SavedView]:
    """Return the saved views; none while the store does not answer."""
    try:
        if site.lost:
            kept = site.sums.peek("views") or ()
        else:
            kept = site.sums.get("views", lambda: views(site.app.store)).value
        return [replace(each, name=redact(each.name), address=redact(each.address)) for each in kept[:VIEWS_SHOWN]]
    except (RedriveError, OSError):
        return ()


def _clock(site: SiteParts) -> Callable[[], int]:
    """Return a function that returns the store's time as of its first call, as pages without times need no store."""

    @cache
    def now_ms() -> int:
        try:
            if not site.lost:
                return site.app.store.now_ms()
        except (RedriveError, OSError):  # the store failed after the record was read: use the local clock
            pass
        return time.time_ns() // 1_000_000

    return now_ms


@cache
def _own_files() -> frozenset[str]:
    return frozenset(each.name for each in files("redrive.web").joinpath("static").iterdir())


async def static(request: Request) -> Response:
    """Return the static file of the site that the request names, or 404."""
    name = request.path_params["file"]
    kind = name.rpartition(".")[2]
    if kind not in _TYPES or name not in _own_files():
        response = Response("there is no such file\n", 404, media_type="text/plain")
    else:
        response = Response(files("redrive.web").joinpath("static", name).read_bytes(), media_type=_TYPES[kind])
    harden(MutableHeaders(raw=response.raw_headers), cached=response.status_code == 200)
    return response
