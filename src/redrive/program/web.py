"""`redrive web`: the pages on a store."""

from __future__ import annotations

import signal
import webbrowser

import click

from ..cli.opening import OpenedStore, at_store
from ..cli.terminal.output import Output
from ..cli.terminal.stderr import note
from ..present.commands import command
from ..present.failure import USAGE, Failure
from ..read_model import ReadModel


@click.command()
@click.option("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
@click.option("--port", type=click.IntRange(0, 65535), default=8787, help="the port; 0: a free one (default: 8787)")
@click.option("--base-path", default="", metavar="PATH", help="where a proxy shows the pages, such as /jobs")
@click.option(
    "--token", envvar="REDRIVE_WEB_TOKEN", help="anyone with this token may do everything [REDRIVE_WEB_TOKEN]"
)
@click.option("--allowed-host", "hosts", multiple=True, metavar="NAME", help="a name in the Host of requests; *: any")
@click.option("--read-only", is_flag=True, help="answer every change with 405")
@click.option("--open", "open_", is_flag=True, help="open the pages in a browser")
@at_store(begins=True)
def web(
    opened: OpenedStore,
    out: Output,
    host: str,
    port: int,
    base_path: str,
    token: str | None,
    hosts: tuple[str, ...],
    read_only: bool,
    open_: bool,
) -> None:
    """Show the fleet, its dead letters and redrives as web pages, until SIGTERM or Ctrl-C.

    Without --token only this machine is let in, on loopback. With --url alone, tasks, schedules and policies are
    unknown. An app's store that does not exist yet is created. To mount the pages in an application of yours, with its
    own login, use `app.dashboard(authorize=…)`.

    \b
      redrive web --app tasks:app --open
    """
    from ..web import Site
    from ..web.access import is_loopback
    from ..web.serve import PagesServer, listening

    if token is None and not is_loopback(host):
        next = f"read -rs REDRIVE_WEB_TOKEN && export REDRIVE_WEB_TOKEN && {command()} --host {host}"
        raise Failure(f"{host} can be reached from other machines", "the pages would be open to all", next, USAGE)
    app = opened.app if opened.app is not None else ReadModel(store=opened.store)
    site = Site(
        app, registry=opened.app, token=token, read_only=read_only, hosts=(host, *hosts), base_path=base_path,
        url=opened.url,
    )  # fmt: skip
    try:
        socket = listening(host, port)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (")[0].lower()
        raise Failure(f"{host}:{port} cannot be listened on", why, f"{command()} --port 0") from error

    def ready(url: str) -> None:
        note(f"open {url}")
        if not any(opened.store.counts_by_queue()):
            note("nothing was enqueued yet: the first page shows the command")
        if open_:
            webbrowser.open(url)

    with socket:
        server = PagesServer(site, ready)
        for each in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal once more after its end
            signal.signal(each, server.end)
        server.run([socket])
