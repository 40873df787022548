"""Open the app or store of a command: `--app MODULE:APP`, or `--url URL`."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ..config import OUTPUTS, Settings, settings, sources, trust
from ..errors import StoreUnavailable, near_miss
from ..present.commands import AT, as_module, command, corrected, program, typed
from ..present.failure import REFUSED, UNREACHABLE, USAGE, Failure
from ..urls import shown
from .code import Distrusted, look_in
from .terminal.output import VERBOSE, Output
from .terminal.stderr import note

if TYPE_CHECKING:
    from ..app import App
    from ..store import Store

_PAUSE_S = (0.1, 2.0)  # the first pause, which doubles each time, and the longest, in seconds
_SERVERS = ("postgres", "redis")
F = TypeVar("F", bound=Callable[..., Any])


class OpenedStore(NamedTuple):
    """The store that a command opened, and its app if one was named."""

    store: Store
    app: App | None
    url: str  # for display, without a password

    @property
    def declared_queues(self) -> set[str]:
        """The names of the queues that the app declares; empty without an app."""
        return self.app.queue_names if self.app is not None else set()


def output_option(command: F, more: tuple[str, ...] = ()) -> F:
    """Add `-o FORM` and `-v` to a command; an `Output` reads the latter from click's context. `more` forms are the
    command's own."""
    command = click.option(
        "-v", "--verbose", is_flag=True, expose_value=False, callback=_note_verbose,
        help="tables: whole texts, ids and times, and every column",
    )(command)  # fmt: skip
    return click.option(
        "-o", "--output", metavar="FORM", type=click.Choice((*OUTPUTS, *more)),
        help=f"{', '.join(('table', 'tsv', 'json', 'jsonl', *more))} or ids "
        "(default: a table on a terminal, TSV elsewhere) [REDRIVE_OUTPUT]",
    )(command)  # fmt: skip


def _note_verbose(context: click.Context, option: click.Parameter, given: bool) -> None:
    if given:
        context.meta[VERBOSE] = True


def app_option(command: F) -> F:
    """Add the option `--app MODULE:APP` to a command."""
    return click.option("--app", metavar="MODULE:APP", help="the app, and with it its store [REDRIVE_APP]")(command)


def url_option(command: F) -> F:
    """Add the option `--url URL` to a command."""
    return click.option("--url", metavar="URL", help="the store, such as sqlite:///work.db [REDRIVE_URL]")(command)


def lead_on_at(app: str | None, url: str | None) -> None:
    """Store the named app and URL in click's context, for the next commands that failures and notes show."""
    flags = (("app", app), ("url", None if url is None else shown(url)))
    click.get_current_context().meta[AT] = "".join(f" --{name} {typed(given)}" for name, given in flags if given)


def at_store(
    *, create: bool = False, absent: bool = False, begins: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds options for app, store and output. The command gets OpenedStore and Output, and the
    store is closed after it.

    Without `create`, a store that does not exist is an error: reading must leave no empty file in the wrong directory.
    With `absent`, an app's store that does not exist yet is replaced by an empty one in memory; with `begins`, it is
    created, as only a URL can be mistyped.
    """

    def wrap(command: Callable[..., Any]) -> Callable[..., Any]:
        @url_option
        @app_option
        @output_option
        @functools.wraps(command)
        def run(*args: Any, app: str | None, url: str | None, output: str | None, **options: Any) -> Any:
            chosen = settings({"app": app, "url": url, "output": output})
            lead_on_at(app, url)
            opened = find(
                chosen, app_flag=app is not None, url_flag=url is not None, create=create, absent=absent, begins=begins
            )
            if not absent:
                _refuse_private(opened)
            try:
                _refuse_unseen(opened)
                if opened.store.traits.read_only:
                    note(f"{opened.store.traits.read_only}: nothing can be changed from here")
                out = Output(chosen.output)
                out.now_ms = opened.store.now_ms
                return command(opened, out, *args, **options)
            finally:
                opened.store.close()

        return run

    return wrap


def _refuse_private(opened: OpenedStore) -> None:
    if not opened.store.traits.shared:
        why = "it is in the memory of another process"
        raise Failure(
            f"the store {opened.url} cannot be reached from here", why, f"{command()} --url sqlite:///work.db", REFUSED
        )


def _refuse_unseen(opened: OpenedStore) -> None:
    """Raise Unsupported if the current command acts on dead letters and the store cannot read them."""
    context = click.get_current_context()
    group = context.parent.info_name if context.parent is not None else None
    if opened.store.traits.triages or group not in ("dlq", "run") or context.info_name == "move":
        return
    from ..stores.sqs.cells import need

    need(None)


def find(
    chosen: Settings, *, app_flag: bool = False, url_flag: bool = False, create: bool = False, absent: bool = False,
    begins: bool = False,
) -> OpenedStore:  # fmt: skip
    """Open the app or store that flags and settings name. The app wins, unless only the URL is a flag."""
    from .terminal.warnings import tell_warnings

    tell_warnings()
    if chosen.app is not None and (app_flag or not url_flag):
        app = load_app(chosen.app, chosen.folder)
        if url_flag:
            move(app, chosen.url)
        named = app.store.traits.name if app.url is None else shown(app.url)
        if absent and app.url is not None and not _is_there(app.url):
            note(f"{named} does not exist yet: nothing was ever enqueued in it")
            app.url = "memory://"
        return OpenedStore(_existing(app, create or begins), app, named)
    if not create:
        require(chosen.url, named=url_flag or _is_named("url"))
    return OpenedStore(_with_blobs(_open(chosen.url), chosen.blobs), None, shown(chosen.url))


def _open(url: str) -> Store:
    """Open the store at `url` without an app, with the keys in REDRIVE_KEYS, if any."""
    from ..stores import open_store

    if not os.environ.get("REDRIVE_KEYS", "").strip():
        return open_store(url)
    from ..crypto import Box, Keys, sealed_by

    box = Box(Keys.from_env())  # before the store is opened, which would stay open after an error of the keys
    return sealed_by(open_store(url), box)


def url_of(chosen: Settings, *, app_flag: bool, url_flag: bool) -> str:
    """Return the URL of the store that flags and settings name, without opening it. Raises Failure if the app was given
    a store object."""
    if chosen.app is None or (url_flag and not app_flag):
        return chosen.url
    app = load_app(chosen.app, chosen.folder)
    if url_flag:
        move(app, chosen.url)
    if app.url is None:
        why = f"{chosen.app} was given a store object, whose URL is not known"
        raise Failure("which store is meant?", why, f"{command()} --url sqlite:///work.db", USAGE)
    return app.url


def _with_blobs(store: Store, url: str | None) -> Store:
    if url is None:
        return store
    from ..blobs import with_blobs

    return with_blobs(store, url)


def one_app(argument: str | None, flag: str | None) -> str | None:
    """Return the app that the argument or --app names. Raises Failure if they differ."""
    if argument and flag and argument != flag:
        raise Failure(
            "give the app once", f"'{argument}' and --app {flag} differ", f"{command()} {typed(argument)}", USAGE
        )
    return argument or flag


def move(app: App, url: str) -> None:
    """Give an app another URL for its store, which it has not opened yet. Raises Failure if it was given a store
    object."""
    if app.url is None:
        why = "the app was given a store object, which --url cannot replace"
        raise Failure("--url cannot be used with this app", why, "leave out --url, or --app", USAGE)
    app.url = url


def load_app(spec: str, folder: str | None = None) -> App:
    """Import the App that MODULE:APP names, from the working directory, the folder of the settings file, or Python's
    path. Raises Failure."""
    from ..app import App

    module_name, _, path = spec.partition(":")
    module, target = load_object(spec, folder)
    if isinstance(target, App):
        target.spec = spec
        return target
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    what = (
        f"module '{module_name}' has no app '{path}'"
        if target is None
        else f"'{spec}' is of type {type(target).__name__}, not an App"
    )
    near = near_miss(path, apps) or (apps[0] if apps else None)
    why = (
        f"its apps: {', '.join(apps)}"
        if apps
        else f"there is no App in {getattr(module, '__file__', None) or module_name}"
    )
    raise Failure(
        what, why, _again(spec, f"{module_name}:{near}") if near else f"{program()} init another-directory", USAGE
    )


def load_object(spec: str, folder: str | None = None) -> tuple[Any, Any]:
    """Import the module of MODULE:NAME as `load_app` does; return it and what it has by that name, or None."""
    module_name, _, path = spec.partition(":")
    target: Any = (module := _load_module(module_name, path, folder))
    for name in path.split("."):
        target = getattr(target, name, None)
    return module, target


def _load_module(name: str, path: str, folder: str | None) -> Any:
    refused = look_in([Path(each) for each in (folder, Path.cwd()) if each is not None])
    try:
        return importlib.import_module(name)
    except Distrusted as error:
        raise _distrusted(name, error.place, error.why) from None
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise _broken(name, error) from error
        for place, why in refused.items():
            raise _distrusted(name, place, why) from None
        raise _no_module(name, path) from None
    except (SystemExit, Exception) as error:
        raise _broken(name, error) from error


def _distrusted(name: str, place: Path, why: str) -> Exception:
    return trust.NotTrusted(
        f"module '{name}' is not imported from {place}", why, place if place.is_dir() else place.parent
    )


def _no_module(name: str, path: str) -> Failure:
    here = Path.cwd()
    known = [p.stem for p in here.glob("*.py")] + [p.parent.name for p in here.glob("*/__init__.py")]
    near = near_miss(as_module(name), known)
    why = f"it is neither in {here} nor on Python's path" + (f"; did you mean '{near}'?" if near else "")
    return Failure(
        f"there is no module '{name}'",
        why,
        _again(f"{name}:{path}", f"{near}:{path}") if near else f"{program()} init",
        USAGE,
    )


def _again(given: str, spec: str) -> str:
    """Return the current command with the app `spec` instead of `given`, which may come from a setting."""
    if not (next := corrected(given, spec)).endswith(" --help"):
        return next
    flag = "" if command().endswith((" worker", " scheduler")) else "--app "
    return f"{command()} {flag}{typed(spec)}"


def _broken(name: str, error: BaseException) -> Failure:
    """Return the failure that reports a module that raised an error at import, with the place in the user's code."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    mine = [f for f in frames if not f.filename.startswith(str(Path(__file__).parents[1]))] or frames
    place = f"{mine[-1].filename}:{mine[-1].lineno}" if mine else "unknown place"
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}"
    what = f"module '{name}' cannot be imported: {type(error).__name__}: {error}"
    return Failure(what, f"raised at {place}", typed(Path(sys.executable).name, "-c", f"import {name}"))


def _existing(app: App, create: bool) -> Store:
    if app.url is not None and not create:
        require(app.url)
    return app.store


def _is_named(setting: str) -> bool:
    return any(sourced.name == setting and sourced.source != "default" for sourced in sources())


def _is_there(url: str) -> bool:
    from ..stores.upkeep import is_there

    return is_there(url)


def require(url: str, *, named: bool = True) -> None:
    """Raise Failure if the store at `url` does not exist, as reading must not create one. `named`: a flag or a setting
    names the URL."""
    if _is_there(url):
        return
    why = "nothing was ever enqueued there, or the app's store is elsewhere"
    next = f"{program()} config show"
    if not named:
        why = "neither a flag, a REDRIVE_ variable nor redrive.toml names the app or the store, and this is the default"
        next = f"{command()} --app tasks:app"
    raise Failure(f"there is no store at {_where(url)}", why, next, UNREACHABLE)


def _where(url: str) -> str:
    """Return the path of an SQLite file, or the URL of a server without its password."""
    from ..stores import engine_of, sqlite_path

    return str(Path(sqlite_path(url)).absolute()) if engine_of(url) == "sqlite" else shown(url)


def note_unknown_queues(opened: OpenedStore, names: Sequence[str]) -> None:
    """Note each of these queues that neither the store nor the app has, with the nearest known name."""
    known = sorted({*opened.store.queues(), *opened.declared_queues})
    for name in names:
        if name not in known:
            near = near_miss(name, known)
            note(f"queue '{name}' holds nothing yet" + (f"; did you mean '{near}'?" if near else ""))


def wait_for_store(app: App) -> None:
    """Open the store of an app; wait while its server refuses connections, loads or recovers. Other errors are raised
    at once (a wrong password, a missing database), and so is any error of a store without a server."""
    if not (app.url or settings().url).startswith(_SERVERS):
        return
    pause_s, noted = _PAUSE_S[0], False
    ending = (
        signal.signal(signal.SIGTERM, _end_waiting) if threading.current_thread() is threading.main_thread() else None
    )
    try:
        while True:
            try:
                app.store.now_ms()
            except StoreUnavailable as error:
                if not noted:
                    note(f"waiting for the store, which cannot be reached yet: {error}")
                noted = True
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S[1])
            else:
                break
    finally:
        if ending is not None:
            signal.signal(signal.SIGTERM, ending)
    if noted:
        note("the store is there")


def _end_waiting(number: int, frame: FrameType | None) -> None:
    sys.exit(0)
