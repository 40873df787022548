"""The pages of an app in each place where they may be mounted, as ASGI applications that a browser of
`tests/support/sites.py` asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from a2wsgi import ASGIMiddleware, WSGIMiddleware
from starlette.applications import Starlette
from starlette.routing import Mount as Route
from starlette.types import ASGIApp, Receive, Scope, Send

from redrive import App

MOUNTS = (
    "plain",
    "--base-path, a proxy that strips it",
    "--base-path, a proxy that leaves it",
    "a proxy that strips it, and uvicorn --root-path",
    "FastAPI",
    "Starlette within Starlette",
    "Django (ASGI)",
    "Flask (WSGI)",
    "Django (WSGI)",
)


@dataclass(frozen=True)
class Mount:
    """An application that has the pages below `root`."""

    app: ASGIApp
    root: str
    is_wsgi: bool = False
    answered: set[str] = field(default_factory=set)  # addresses that were asked for


def mounted(name: str, app: App, **options: Any) -> Mount:
    """The pages of an app mounted in the way that MOUNTS names."""
    match name:
        case "plain":
            return Mount(app.dashboard(**options), "")
        case "--base-path, a proxy that strips it":
            return Mount(stripped(app.dashboard(base_path="/ops/jobs", **options), "/ops/jobs"), "/ops/jobs")
        case "--base-path, a proxy that leaves it":
            return Mount(app.dashboard(base_path="/jobs/", **options), "/jobs")
        case "a proxy that strips it, and uvicorn --root-path":
            return Mount(stripped(rooted(app.dashboard(**options), "/jobs"), "/jobs"), "/jobs")
        case "FastAPI":
            from fastapi import FastAPI

            web = FastAPI()
            web.mount("/jobs", app.dashboard(**options))
            return Mount(web, "/jobs")
        case "Starlette within Starlette":
            inner = Starlette(routes=[Route("/jobs", app.dashboard(**options))])
            return Mount(Starlette(routes=[Route("/ops", inner)]), "/ops/jobs")
        case "Django (ASGI)":
            from django.core.asgi import get_asgi_application

            configured()
            routes = [Route("/jobs", app.dashboard(**options)), Route("/", get_asgi_application())]
            return Mount(Starlette(routes=routes), "/jobs")
        case "Flask (WSGI)":
            from flask import Flask
            from werkzeug.middleware.dispatcher import DispatcherMiddleware

            flask = Flask("shop")
            flask.wsgi_app = DispatcherMiddleware(  # type: ignore[method-assign]
                flask.wsgi_app,
                {"/jobs": ASGIMiddleware(app.dashboard(**options))},  # type: ignore[arg-type]
            )
            return Mount(served(flask), "/jobs", is_wsgi=True)
        case _:
            from django.core.wsgi import get_wsgi_application
            from werkzeug.middleware.dispatcher import DispatcherMiddleware

            configured()
            pages = ASGIMiddleware(app.dashboard(**options))  # type: ignore[arg-type]
            return Mount(served(DispatcherMiddleware(get_wsgi_application(), {"/jobs": pages})), "/jobs", is_wsgi=True)


def served(application: Any) -> ASGIApp:
    """A WSGI application, as a server of WSGI asks it."""
    asked: Any = WSGIMiddleware(application)
    return asked  # type: ignore[no-any-return]


def stripped(app: ASGIApp, prefix: str) -> ASGIApp:
    """A proxy before the app that takes the prefix off."""

    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["path"].startswith(prefix), scope["path"]
        path = scope["path"].removeprefix(prefix) or "/"
        await app({**scope, "path": path, "raw_path": path.encode()}, receive, send)

    return pass_on


def rooted(app: ASGIApp, root: str) -> ASGIApp:
    """What uvicorn does with `--root-path`."""

    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "path": root + scope["path"], "root_path": root}, receive, send)

    return pass_on


def configured() -> None:
    """Settings of Django for this process, where there are none yet."""
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(SECRET_KEY="x", ALLOWED_HOSTS=["*"], USE_TZ=True, ROOT_URLCONF="tests.support.mounts")
        django.setup()


urlpatterns: list[Any] = []  # of Django, beside the pages
