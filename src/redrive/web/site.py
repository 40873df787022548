"""Answer requests: find the page or action, check the user, run its function on a thread, and write HTML or JSON."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from ..config import page_address, settings
from ..errors import ConfigError, RedriveError
from ..present.permissions import Permission, User
from ..redact import one_line
from ..urls import shown
from . import answers
from .access import SESSION, SESSION_S, Access, Answered, Authorize, client_of, cookies
from .ask import Done, Download, MenuPage, PageAnswer, PageRequest, Problem, Record
from .forms import form_again
from .guard import (
    CSRF,
    SAID,
    check_host,
    check_origin,
    csrf_of,
    drop_cookie,
    from_elsewhere,
    harden,
    host_names,
    is_below,
    path_of,
    root_of,
    said,
    say,
    set_cookie,
)
from .live import BILLED_EVERY_S, EVERY_S, Glance, Live
from .requests import LOGIN_MAX, form_of, wants_json
from .sums import WAITED_S, KeptValue, Sums
from .table import ACTIONS, MENU, PAGES, Action, SitePage
from .vigil import Readings, Vigil, key_of

if TYPE_CHECKING:
    from ..read_model import ReadModel
    from ..registry import Registry
    from ..status import Status

T = TypeVar("T")
_ANY_CSRF = secrets.token_urlsafe(32)  # a placeholder in shared pages, which each user's own token replaces
SMALL_BYTES = 1_000  # bytes: a shorter answer is not compressed
PATIENCE_S = {False: 0.3, True: 10.0}  # seconds to wait for a new sum if the cached one is old; True: for JSON
_log = logging.getLogger("redrive.web")


class _PageName(Convertor[str]):
    """Matches the rest of an address, with slashes and also line breaks, which Starlette's own convertor excludes."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


_NAME = "redrive_name"
register_url_convertor(_NAME, _PageName())


class Site:
    """The pages of an app, as an ASGI application that a server runs or another application mounts.

    `authorize(request)` returns the user as a `User`, a name, `(name, permissions)`, or None; it may be async. The
    holder of `token` may do everything. Without either, only this machine has access. `read_only` answers each change
    with 405. `hosts` are the site's names beside loopback; None: any, if `authorize` is given. `base_path` is the path
    at which a proxy mounts the site, whether it strips the path or not; so it cannot begin with the name of a page.
    Raises ConfigError.
    """

    app: ReadModel
    registry: Registry | None
    read_only: bool
    environment: str | None
    url: str
    access: Access
    sums: Sums
    vigil: Vigil
    live: Live
    readings: Readings

    def __init__(
        self,
        app: ReadModel,
        *,
        registry: Registry | None = None,
        authorize: Authorize | None = None,
        token: str | None = None,
        read_only: bool = False,
        hosts: Collection[str] | None = None,
        base_path: str = "",
        url: str | None = None,
    ) -> None:
        base_path = _base_path(base_path)
        self.app, self.registry = app, registry
        self.menu: Sequence[MenuPage] = MENU
        self.read_only, self.environment = read_only, settings().environment
        self.url = url or shown(app.url or "")  # the store's URL for display, without a password
        self.access, self.sums = Access(authorize, token), Sums()
        self.base_path = base_path
        self._hosts = host_names(hosts if hosts is not None or authorize is not None else ())
        self.vigil = Vigil(lambda: self.app.store)
        self.live = Live(Glance(lambda: self.app.store, self._told), self._every_s, self.vigil.heard, self.vigil.doubt)
        self.readings = Readings(self.url, self.vigil)
        handlers = {HTTPException: self._refused}
        self._routes = Starlette(routes=list(self._table()), exception_handlers=handlers)
        # A page that another site requests comes without our cookies, so its size tells nothing of their tokens.
        self._small = GZipMiddleware(self._routes, minimum_size=SMALL_BYTES, compresslevel=5)

    def _table(self) -> list[Route]:
        self._pages = [
            (
                page,
                Route(
                    page.path.replace(":path}", f":{_NAME}}}"),
                    self._guarded(partial(self._page, page)),
                    methods=["GET", "POST"] if page.form else ["GET"],
                ),
            )
            for page in PAGES
        ]
        actions = [
            Route(f"/do/{each.name}", self._guarded(partial(self._act, each)), methods=["POST"]) for each in ACTIONS
        ]
        own = [
            Route("/live", self._guarded(self._stream)),
            Route("/login", self._guarded(self._login), methods=["GET", "POST"]),
            Route("/static/{file}", self._guarded(answers.static)),
            Route(f"/{{rest:{_NAME}}}", self._guarded(self._nowhere), methods=["GET", "POST"]),
        ]
        return [*actions, *own[:3], *(route for _, route in self._pages), own[3]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._routes(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._routes(scope, receive, send)
            return

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                harden(MutableHeaders(scope=message))
            await send(message)

        streams = scope["path"].endswith("/live")  # each event is sent at once
        await (self._routes if streams else self._small)(self._mounted(scope), receive, hardened)

    def _mounted(self, scope: Scope) -> Scope:
        """Return the scope with the base path as part of its root, whether the proxy stripped it or not."""
        if not self.base_path or scope["type"] != "http":
            return scope
        root, path = scope.get("root_path", ""), scope["path"]
        inner = path.removeprefix(root)
        if inner == self.base_path or inner.startswith(f"{self.base_path}/"):
            return {**scope, "root_path": root + self.base_path}
        return {**scope, "root_path": root + self.base_path, "path": root + self.base_path + inner}

    def _every_s(self) -> float:
        return EVERY_S if self.app.store.usage() is None else BILLED_EVERY_S

    @property
    def lost(self) -> bool:
        """True if the store did not answer the last call."""
        return self.vigil.lost

    def status(self, patience_s: float = 0.0) -> KeptValue[Status]:
        """Return the store's status, as `redrive status` shows it, with its age. Raises StoreError."""
        return self.sums.get("status", self._read_status, patience_s)

    def _read_status(self) -> Status:
        from ..status import read_status

        return read_status(self.app.store, self.registry)

    def _told(self) -> Any:
        """Return what the status says beside counts, so that pages follow its change: needs, holds, workers. Reads it
        at most as often as `sums` allows, and not for this alone if each call is billed."""
        if self.app.store.usage() is not None:
            status = self.sums.peek("status")
        else:
            kept = self.sums.within(WAITED_S, "status", self._read_status)
            status = None if kept is None else kept.value
        if status is None:
            return None
        holds = sorted({(hold.kind, hold.by, hold.actor) for hold in status.holds})
        return [each.text for each in status.needs], holds, [(each.name, each.state) for each in status.workers]

    def begin_sums(self) -> None:
        """Read the sums of the first page into the cache. Requests meanwhile share them, and report their errors."""
        with contextlib.suppress(Exception):
            self.status()

    async def close(self) -> None:
        """End the live updates of browsers. The store stays open."""
        await self.live.close()

    def _guarded(self, answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def guarded(request: Request) -> Response:
            try:
                check_host(request, self._hosts)
                response: Response = await answer(request)
            except Answered as answered:
                return answered.response
            except ClientDisconnect:  # the client has gone, or was too slow
                return Response(status_code=400)
            except Exception as error:  # any error is shown as a page with what, why and next
                return self._failed(request, error)
            return response

        return guarded

    def _failed(self, request: Request, error: Exception) -> Response:
        problem = answers.problem_of(error, self.url)
        self._note(request, problem, error)
        if problem.status == 401 and self.access.takes_token and request.method == "GET" and not wants_json(request):
            return RedirectResponse(page_address(root_of(request), "login", next=path_of(request)), 303)
        response = answers.failed(self, request, problem)
        if isinstance(error, HTTPException):
            response.headers.update(error.headers or {})
        return response

    def _note(self, request: Request, problem: Problem, error: Exception) -> None:
        """Log an error that may be a bug."""
        path = one_line(path_of(request))
        if problem.status == 500:
            _log.error("%s %s failed", request.method, path, exc_info=error)
        elif isinstance(error, ValueError) and not isinstance(error, RedriveError):  # a bug, or invalid input
            _log.info("%s %s was refused", request.method, path, exc_info=error)

    async def _refused(self, request: Request, error: Exception) -> Response:
        """Answer a request that no route accepts, such as one with an unknown method, with the page of its error."""
        return self._failed(request, error)

    async def _page(self, page: SitePage, request: Request) -> Response:
        if from_elsewhere(request):
            return answers.once_more(request)
        user = await self._admitted(request, page.permission)
        form, lists = await form_of(request, page.most)
        if request.method == "POST":
            check_origin(request, form, bears_token=self.access.bears_token(request))
        ask = self._ask(request, user, form, lists)
        version = self.live.version
        # After a change, many browsers request the same page at once.
        if request.method == "GET" and request.headers.get("x-redrive-live"):
            return await self._shown_to_many(page, request, ask, version)
        if request.method == "POST":
            return await self._show(page, request, user, await self.readings.call(page.read, ask), version)
        return await self._show(page, request, user, await self.readings.seen(page, request, ask), version)

    async def _shown_to_many(self, page: SitePage, request: Request, ask: PageRequest, version: int) -> Response:
        """Return a page that is read and rendered once for all users who request it after a change. Each gets a token
        for forms of their own; the result of the last action is left to the next page that a person opens."""
        record = await self.readings.seen(page, request, ask, version)
        answer = record if isinstance(record, PageAnswer) else PageAnswer(record)
        if wants_json(request) or answer.to:
            return await self._show(page, request, ask.user, answer, version)
        key = (*key_of(request, ask), root_of(request), "lost" in answer)
        html = partial(
            asyncio.to_thread, answers.html, self, request, ask.user, page, answer, csrf=_ANY_CSRF, said="",
            version=version,
        )  # fmt: skip
        shared = await self.readings.once(key, version, html)
        csrf = csrf_of(request)
        response = HTMLResponse(shared.replace(_ANY_CSRF, csrf), answer.status)
        set_cookie(response, request, CSRF, csrf)
        return response

    async def _show(self, page: SitePage, request: Request, user: User, record: Record, version: int) -> Response:
        answer = record if isinstance(record, PageAnswer) else PageAnswer(record)
        if wants_json(request):
            return answers.as_json(answer, answer.status)
        if answer.to:
            return RedirectResponse(page_address(root_of(request), *answer.to), 303)
        csrf = csrf_of(request)
        text = await asyncio.to_thread(
            answers.html, self, request, user, page, answer, csrf=csrf, said=said(request), version=version
        )
        html = HTMLResponse(text, answer.status)
        set_cookie(html, request, CSRF, csrf)
        if SAID in request.cookies:
            drop_cookie(html, request, SAID)
        return html

    async def _act(self, action: Action, request: Request) -> Response:
        if self.read_only:
            why = "it was started with --read-only"
            problem = Problem("this site is read-only; nothing was done", why, "use the command line", 405)
            return answers.failed(self, request, problem, allow="GET")
        user = await self._admitted(request, action.permission)
        form, lists = await form_of(request, action.most)
        check_origin(request, form, bears_token=self.access.bears_token(request))
        ask = self._ask(request, user, form, lists)
        try:
            done = await self.readings.call(action.act, ask)
        except (Problem, RedriveError, ValueError) as error:
            problem = answers.problem_of(error, self.url)
            if problem.status not in (409, 422) or wants_json(request):
                raise
            self._note(request, problem, error)
            again = await self.readings.call(form_again, ask, action, problem, self._pages)
            if again is None:
                raise
            done = again
        finally:
            self.sums.spoil()
            self.readings.forget()
            self.live.bump()
        if isinstance(done, PageAnswer):
            page = next(page for page in PAGES if page.name == done.name)
            return await self._show(page, request, user, done, self.live.version)
        if isinstance(done, Download):
            name = quote(done.name)
            named = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
            return Response(done.content, media_type=done.type, headers=named)
        return self._done(request, done)

    def _done(self, request: Request, done: Done) -> Response:
        at = page_address(root_of(request), *done.to, **done.query)
        if wants_json(request):
            return answers.as_json({"done": done.text, "at": at, **done.record})
        response = RedirectResponse(at, 303)
        say(response, request, done.text)
        return response

    async def _stream(self, request: Request) -> Response:
        """Answer with server-sent events; under WSGI with 204, as each stream would occupy a thread."""
        user = await self._admitted(request, Permission.VIEW)
        if "wsgi_environ" in request.scope:
            return Response(status_code=204)
        headers = {"X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            return Response(media_type="text/event-stream", headers=headers)
        reader = user.name, client_of(request), *cookies(request, SESSION)
        return StreamingResponse(self.live.events(reader), media_type="text/event-stream", headers=headers)

    async def _login(self, request: Request) -> Response:
        if not self.access.takes_token:
            raise Problem("there is no login here", "these pages take no token", status=404)
        if request.method != "POST":
            return answers.login(self, request)
        form, _ = await form_of(request, LOGIN_MAX)
        check_origin(request, form, bears_token=False)
        if (session := self.access.session(request, form.get("token", ""))) is None:
            return answers.login(self, request, wrong=True)
        root, to = root_of(request), request.query_params.get("next", "")
        response = RedirectResponse(to if is_below(root, to) else page_address(root, ""), 303)
        set_cookie(response, request, SESSION, session, max_age=SESSION_S)
        return response

    async def _nowhere(self, request: Request) -> Response:
        raise Problem("there is no such page", request.scope["path"], "start from the overview", 404)

    async def _admitted(self, request: Request, permission: Permission) -> User:
        user = await self.access.user(request)
        for each in (Permission.VIEW, permission):
            user.need(each)
        return user

    def _ask(
        self, request: Request, user: User, form: Mapping[str, str], lists: Mapping[str, list[str]]
    ) -> PageRequest:
        query = dict(request.query_params)
        both = {name: request.query_params.getlist(name) for name in query} | dict(lists)
        path, patience_s = dict(request.path_params), PATIENCE_S[wants_json(request)]
        return PageRequest(
            site=self, user=user, path=path, query=query, form=form, lists=both, patience_s=patience_s
        )  # fmt: skip


def _base_path(given: str) -> str:
    """Return the base path `given` without a trailing slash. Raises ConfigError if it begins like a page's path."""
    path = given.rstrip("/")
    if path and (not path.startswith("/") or "//" in path or set(path) & set("?#%\\ ")):
        raise ConfigError(f"base_path={given!r}: expected a path such as '/jobs'")
    first = f"/{path[1:].partition('/')[0]}"
    if path and any(first == f"/{each.path[1:].partition('/')[0]}" for each in PAGES if each.path != "/"):
        raise ConfigError(f"base_path={given!r} begins as the page {first} does; choose another, such as '/jobs{path}'")
    return path
