"""Send lines: the task that POSTs one, its app, and the HTTP client with its connections.

The body of a message is the line, byte for byte. A response of 2xx is success; any other raises httpx.HTTPStatusError,
so that the fault classifier reads its status and its Retry-After header.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx
from msgspec import Struct

from .._version import __version__
from ..app import App
from ..codec import Codec
from ..errors import ConfigError
from ..fault import Kind
from ..flow.breaker import Breaker
from ..policy import Retry
from ..redact import HIDDEN
from ..run_context import Context
from ..store import Store
from ..urls import ENCODED, shown
from .ingest import TASK
from .pace import Pacer
from .signing import webhook_headers

EXCERPT_MAX = 4096  # most bytes kept of an error response
ANSWER_MAX = 256 * 1024  # most bytes read of a response so that its connection can be reused
NOTE_MAX = 300
OWN_HEADERS = frozenset(
    {"idempotency-key", "webhook-id", "webhook-timestamp", "webhook-signature", "host"}
    | {"content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"}  # set by the client itself
)
_MARGIN_S = 60.0


class UrlTarget(Struct, frozen=True, kw_only=True):
    """The URL that gets the lines, and the form of a request. `timeout_s`: until the response's last byte."""

    url: str
    headers: Mapping[str, str] = {}
    keys: tuple[bytes, ...] = ()
    timeout_s: float = 30.0
    secrets: tuple[str, ...] = ()  # values of headers that are hidden in the text of faults

    def __repr__(self) -> str:
        return f"Target({show_url(self.url)!r}, headers={sorted(self.headers)})"

    def hide(self, said: bytes) -> bytes:
        """Return the text of a response without the secrets that were sent: some services quote rejected values."""
        for secret in self.secrets:
            said = said.replace(secret.encode(), HIDDEN.encode())
        return said


class Verbatim(Codec):
    """A codec that passes bodies to the handler as bytes."""

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        (body,) = args
        return bytes(body)

    def decode(
        self, body: bytes, version: int | None = None, *, raw: bool = True
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (body,), {}


class Poster:
    """POSTs bodies to one target through one HTTP client, at the pacer's rate."""

    requests: int

    def __init__(self, client: httpx.AsyncClient, target: UrlTarget, pacer: Pacer) -> None:
        self._client, self._target, self._pacer = client, target, pacer
        self._shown = show_url(target.url)
        self.requests = 0

    async def post(self, ctx: Context, body: bytes) -> None:
        """Wait for a slot and POST the body. Raises httpx.HTTPError, or TimeoutError if the response takes too long."""
        await self._pacer.slot()
        self.requests += 1
        headers = webhook_headers(ctx.message_id, int(time.time()), body, self._target.keys)
        headers["Idempotency-Key"] = ctx.idempotency_key
        try:
            async with asyncio.timeout(self._target.timeout_s):
                answer = await self._send(body, headers)
        except TimeoutError:
            raise TimeoutError(f"no complete answer from {self._shown} within {self._target.timeout_s:g} s") from None
        if not answer.is_success:
            raise _failure(answer, self._shown)

    async def _send(self, body: bytes, headers: dict[str, str]) -> httpx.Response:
        async with self._client.stream("POST", self._target.url, content=body, headers=headers) as answer:
            excerpt = b""
            size = 0
            async for part in answer.aiter_raw():
                excerpt += part[: EXCERPT_MAX - len(excerpt)]
                size += len(part)
                if size > ANSWER_MAX:
                    break
        # Create a response with the part that was read, so that its text can be used later without network access.
        kept = [(name, value) for name, value in answer.headers.items() if name in ("retry-after", "date", "location")]
        content = self._target.hide(excerpt)
        return httpx.Response(answer.status_code, headers=kept, content=content, request=answer.request)


def delivery_app(
    store: Store, queue: str, poster: Poster, retry: Retry, timeout_s: float, breaker: Breaker | None = None
) -> App:
    """Return an app with one task, which POSTs `queue`'s messages; a breaker guards a dependency of that name."""
    app = App(store=store)
    if breaker is not None:
        app.dependency(queue, breaker=breaker, budget=None)
    rules = [(_is_redirect, Kind.PERMANENT)]
    calls = None if breaker is None else queue
    task = app.task(
        name=TASK, queue=queue, timeout=timeout_s + _MARGIN_S, retry=retry, rules=rules, dependency=calls, ctx=True
    )(poster.post)
    task.codec = Verbatim(poster.post, TASK, skip_first=True)
    return app


def new_client(target: UrlTarget, concurrency: int) -> httpx.AsyncClient:
    """Return one client for all requests: HTTP/1.1, one kept-alive connection per concurrent request.

    Proxies of the environment are used, except for addresses of this machine. Redirects are not followed: a POST would
    turn into a GET.
    """
    own = {"Content-Type": "application/json", "User-Agent": f"redrive/{__version__}", "Accept-Encoding": "identity"}
    headers = httpx.Headers(own)
    headers.update(target.headers)
    trusted, proxy = httpx.create_ssl_context(), _proxy(target.url)
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
    lanes = Lanes(concurrency, lambda: httpx.AsyncHTTPTransport(verify=trusted, limits=limits, proxy=proxy))
    return httpx.AsyncClient(
        headers=headers, timeout=None, transport=lanes
    )  # no timeout here: `post` limits the whole request


class Lanes(httpx.AsyncBaseTransport):
    """A transport of `count` connections, each opened by `new` when first needed and used by one request at a time.

    httpx's own pool offers an idle connection to every waiting request, and all but one must try again: 40 concurrent
    requests were slower than one. Here a request takes a lane, a pool of one connection, and returns it. The lane used
    last is taken first, so only the needed connections stay open.
    """

    def __init__(self, count: int, new: Callable[[], httpx.AsyncBaseTransport]) -> None:
        self._new = new
        self._slots = asyncio.Semaphore(count)
        self._free: list[httpx.AsyncBaseTransport] = []
        self._all: list[httpx.AsyncBaseTransport] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await self._slots.acquire()
        lane = self._free.pop() if self._free else self._open()
        try:
            answer = await lane.handle_async_request(request)
        except BaseException:
            await self._drop(lane)
            raise
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        stream = _Stream(answer.stream, partial(self._give, lane), partial(self._drop, lane))
        headers = _followable(answer.headers)
        return httpx.Response(answer.status_code, headers=headers, stream=stream, extensions=answer.extensions)

    async def aclose(self) -> None:
        for lane in self._all:
            await lane.aclose()

    def _open(self) -> httpx.AsyncBaseTransport:
        lane = self._new()
        self._all.append(lane)
        return lane

    def _give(self, lane: httpx.AsyncBaseTransport) -> None:
        self._free.append(lane)
        self._slots.release()

    async def _drop(self, lane: httpx.AsyncBaseTransport) -> None:
        """Close a lane whose request failed or was cut off. httpcore may keep its only connection in a state in which
        each later request waits for it until its timeout."""
        self._all.remove(lane)
        self._slots.release()
        with contextlib.suppress(Exception):
            await lane.aclose()


class _Stream(httpx.AsyncByteStream):
    """The body of a response. Closing it gives the lane back, or drops it if that fails."""

    def __init__(
        self, inner: httpx.AsyncByteStream, give: Callable[[], None], drop: Callable[[], Awaitable[None]]
    ) -> None:
        self._inner, self._give, self._drop, self._closed = inner, give, drop, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._inner:
            yield part

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._inner.aclose()
        except BaseException:
            await self._drop()
            raise
        self._give()


def check_url(url: str) -> str:
    """Return the URL if it can be POSTed to. Raises ConfigError."""
    try:
        parts = httpx.URL(url)
        port_fits = parts.port is None or 0 < parts.port < 65536
    except (httpx.InvalidURL, ValueError):  # the text of the error may quote a password
        raise ConfigError(f"--to {shown(url)!r} is no URL; in a user or password write {ENCODED}") from None
    if parts.scheme not in ("http", "https") or not parts.host or not port_fits:
        raise ConfigError(f"--to {shown(url)!r}: expected http://HOST/PATH or https://HOST/PATH")
    return url


def show_url(url: str) -> str:
    """Return the URL without user, password and query, which may be secret; "no URL" for an invalid one."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "no URL"
    if not parts.netloc:
        return parts.path or "no URL"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _followable(headers: httpx.Headers) -> httpx.Headers:
    """Return the headers of a response, with an empty Location if it is not a URL: httpx parses that even if it does
    not follow it, and its error would count as a lost connection and be retried."""
    try:
        httpx.URL(headers.get("location", ""))
    except httpx.InvalidURL:
        headers["location"] = ""
    return headers


def _failure(answer: httpx.Response, shown: str) -> httpx.HTTPStatusError:
    text = f"HTTP {answer.status_code} {answer.reason_phrase} from {shown}"
    if answer.has_redirect_location:
        text += f", which points to {show_url(answer.headers['location'])}"
    error = httpx.HTTPStatusError(text, request=answer.request, response=answer)
    said = " ".join(answer.content.decode("utf-8", "replace").split())
    if said:  # as a note, since failures are grouped by the error's text
        error.add_note(f"The answer said: {said[:NOTE_MAX]}")
    return error


def _is_redirect(error: BaseException) -> bool:
    return isinstance(error, httpx.HTTPStatusError) and 300 <= error.response.status_code < 400


def _proxy(url: str) -> str | None:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if _is_here(host) or proxy_bypass(host):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
