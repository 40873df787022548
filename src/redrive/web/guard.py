"""Protect the pages: refuse requests that another site made the browser send, and add security headers."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import quote, unquote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response

from ..present.permissions import Denied
from .access import cookies, is_loopback

CSRF = "redrive_csrf"
SAID = "redrive_said"  # the cookie with the result of the last action, which is shown once
FIELD = "csrf"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@\s]+?)\.?(?::\d{1,5})?", re.IGNORECASE)
_SAID_MAX = 2_500  # characters of that cookie: browsers drop one above 4,096
_OWN = ("same-origin", "none")  # values of Sec-Fetch-Site for a request that our pages or the user sent
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def host_names(hosts: Iterable[str] | None) -> frozenset[str] | None:
    """Return the names that `check_host` accepts, without ports; None, which accepts any, if `hosts` is None or
    contains `*`."""
    if hosts is None:
        return None
    names = [hosts] if isinstance(hosts, str) else list(hosts)
    return None if "*" in names else frozenset(map(host_of, names)) - {""}


def host_of(given: str) -> str:
    """Return the name in a Host header, in lower case, without port and final dot; empty if the header is invalid."""
    match = _HOST.fullmatch(given.strip())
    return match[1].lower().strip("[]") if match else ""


def check_host(request: Request, hosts: Collection[str] | None) -> None:
    """Raise Denied if the request's Host is neither this machine nor one of `hosts` (as `host_names` returns them): a
    foreign name may resolve to this machine (DNS rebinding)."""
    if hosts is None:
        return
    host = host_of(request.headers.get("host", ""))
    if is_loopback(host) or host in hosts:
        return
    why = f"the request names the host {host or 'none'}, which is not one of this site's"
    name = host or "NAME"
    next = f"add it: redrive web --allowed-host {name}, or app.dashboard(hosts=[{name!r}]) where it is mounted"
    raise Denied(403, "this host is not known here", why, next)


def from_elsewhere(request: Request) -> bool:
    """Return True if the request follows a link on another site: for such a request browsers omit our SameSite=Strict
    cookies."""
    of = request.headers
    return (
        request.method == "GET"
        and of.get("sec-fetch-mode") == "navigate"
        and of.get("sec-fetch-dest", "document") == "document"
        and of.get("sec-fetch-site", "none") not in _OWN
    )


def check_origin(request: Request, form: Mapping[str, str], *, bears_token: bool) -> None:
    """Raise Denied for a change that another site may have made the browser send.

    A form must have the token of its cookie. JSON needs none, as a browser sends that to another site only after a
    preflight request, which this site refuses. A request with the site's token needs nothing else.
    """
    if bears_token:
        return
    is_json = request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
    given = form.get(FIELD, "").encode()
    sealed = any(hmac.compare_digest(given, known.encode()) for known in _known(request))
    foreign = _is_foreign(request)
    if foreign or not (is_json or sealed):
        why = "another site sent it" if foreign else "its form is older than this session"
        raise Denied(403, "the change was refused, and nothing was done", why, "open the page again, and repeat it")


def _is_foreign(request: Request) -> bool:
    """Return True if another site sent the request. Sec-Fetch-Site decides if the browser sends it: scripts cannot set
    it, and proxies that rename the host keep it. Older browsers send only an Origin."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site not in _OWN
    return origin is not None and not _is_own(request, origin)


def _is_own(request: Request, origin: str) -> bool:
    """Return True if an Origin is this site's. The scheme is ignored, as a proxy may end TLS."""
    return urlsplit(origin).netloc == request.headers.get("host", "")


def _known(request: Request) -> list[str]:
    return [known for known in cookies(request, CSRF) if _TOKEN.fullmatch(known)]


def csrf_of(request: Request) -> str:
    """Return the token for the forms of this page: that of the request's cookie, or a new one."""
    return next(iter(_known(request)), "") or secrets.token_urlsafe(32)


def say(response: Response, request: Request, text: str) -> None:
    """Let the next page show this text once, in a cookie sealed with the forms' token, so that other sites on this host
    cannot forge it."""
    known = _known(request)
    quoted = quote(text)
    if len(quoted) > _SAID_MAX:
        quoted = quote(text[: _SAID_MAX // 12]) + quote("…")
    if known:
        set_cookie(response, request, SAID, f"{_seal(known[0], quoted)}.{quoted}", max_age=60)


def said(request: Request) -> str:
    """Return the result of the last action, as `say` stored it; empty if there is none, or if another site set it."""
    for given in cookies(request, SAID):
        seal, _, quoted = given.partition(".")
        if any(hmac.compare_digest(seal.encode(), _seal(known, quoted).encode()) for known in _known(request)):
            return unquote(quoted)
    return ""


def _seal(key: str, text: str) -> str:
    return hmac.digest(key.encode(), text.encode(), "sha256").hex()[:32]


def root_of(request: Request) -> str:
    """Return the path at which the site is mounted, quoted for use in headers and attributes."""
    root = quote(request.scope.get("root_path", ""), safe="/").rstrip("/")
    return f"/{root.lstrip('/')}" if root else ""


def path_of(request: Request) -> str:
    """Return the path and query of the request, quoted for use in headers and attributes."""
    query = request.scope.get("query_string", b"").decode("latin-1")
    return quote(request.scope["path"], safe="/:@!$&'()*+,=~") + (f"?{query}" if query else "")


def is_below(root: str, to: str) -> bool:
    """Return True if the address `to` is on the site at `root`, as a login must not redirect to another one."""
    clean = to.isascii() and to.isprintable() and "\\" not in to and not to.startswith("//")
    return clean and bool(to) and (to == root or to.startswith(f"{root}/")) and "/../" not in f"{to.partition('?')[0]}/"


def set_cookie(response: Response, request: Request, name: str, value: str, *, max_age: int | None = None) -> None:
    """Set a cookie that scripts cannot read, and that other sites cannot make a browser send."""
    path, secure = root_of(request) or "/", is_encrypted(request)
    response.set_cookie(name, value, max_age=max_age, path=path, secure=secure, httponly=True, samesite="strict")


def drop_cookie(response: Response, request: Request, name: str) -> None:
    path, secure = root_of(request) or "/", is_encrypted(request)
    response.delete_cookie(name, path=path, secure=secure, httponly=True, samesite="strict")


def is_encrypted(request: Request) -> bool:
    """Return True if the browser uses TLS, to us or to a proxy. A forged header of a proxy harms only the cookie of its
    sender."""
    forwarded = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return request.scope.get("scheme") == "https" or forwarded == "https"


def harden(headers: MutableHeaders, *, cached: bool = False) -> None:
    """Add security headers to an answer; browsers may cache the answer only if `cached` (static files)."""
    for name, value in _HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("Cache-Control", "public, max-age=86400" if cached else "no-store")
    if "Cookie" not in headers.get("Vary", ""):
        headers.add_vary_header("Accept, Cookie")
