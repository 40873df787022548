"""`redrive metrics`: serve or print Prometheus metrics of a store and its workers."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...config import LOOPBACK, address
from ...observe.shared_tally import read
from ..main import Subcommands
from ..opening import Opened, at_store
from ..terminal.failure import Failure, command, note
from ..terminal.output import Output

if TYPE_CHECKING:
    from ...app import App
    from ...store import Store

PORT = 9464  # what exporters of OpenTelemetry use for Prometheus; nothing of ours depends on it

_dir_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="REDRIVE_METRICS_DIRECTORY",
    help="add what workers count there: `redrive worker --metrics` says where [REDRIVE_METRICS_DIRECTORY]",
)


@click.group(cls=Subcommands)
def metrics() -> None:
    """Serve or print Prometheus metrics: depths of queues, and what workers counted.

    Workers serve theirs by `redrive worker --metrics PORT`; an app by `redrive.observe.prometheus.Metrics`.
    """


@metrics.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    envvar="REDRIVE_METRICS_PORT",
    help=f"where to listen, 0: any free one (default: {PORT}) [REDRIVE_METRICS_PORT]",
)
@click.option(
    "--host",
    default=LOOPBACK,
    envvar="REDRIVE_METRICS_HOST",
    help=f"at which address (default: {LOOPBACK}, reached from this machine only) [REDRIVE_METRICS_HOST]",
)
@_dir_option
@at_store()
def serve(opened: Opened, out: Output, port: int, host: str, directory: Path | None) -> None:
    """Serve metrics over HTTP until SIGTERM or Ctrl-C. Reads only."""
    asked = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, asked)  # before there are threads that could get them
    with _served(_registry(opened.store, directory, opened.app), address(f"{host}:{port}")):
        signal.sigwait(asked)


@metrics.command(name="print")
@_dir_option
@at_store()
def print_(opened: Opened, out: Output, directory: Path | None) -> None:
    """Print what one scrape would get, in Prometheus' text format whatever -o says."""
    sys.stdout.write(_client().generate_latest(_registry(opened.store, directory, opened.app)).decode())


@contextlib.contextmanager
def serve_workers(app: App, at: str) -> Iterator[Path]:
    """Serve the depths of the app's store, and the counts of children in this directory, until the block ends."""
    with contextlib.ExitStack() as ending:
        registry = _registry(app.store, None, app)
        store, port = app.store, ending.enter_context(_served(registry, at))
        if store.state_dir is not None:
            directory = store.state_dir / f"metrics-{port}"  # by port: two parents on one store count apart
        else:
            directory = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="redrive-metrics-")))
        _add_counters(registry, directory)
        note(f"redrive: workers count in {directory}")
        yield directory


@contextlib.contextmanager
def serve_app(app: App, at: str) -> Iterator[None]:
    """Serve the metrics of an app whose worker runs in this process, until the block ends."""
    from ...observe.prometheus import Metrics

    registry = _client().CollectorRegistry()
    Metrics(app).register(registry)
    with _served(registry, at):
        yield


@contextlib.contextmanager
def _served(registry: Any, at: str) -> Iterator[int]:
    """Serve a registry at HOST:PORT from a thread; yields the port."""
    host, _, port = at.rpartition(":")
    try:
        server, thread = _client().start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        why = f"{error.strerror or error}; another program may listen there"
        raise Failure(f"metrics cannot be served at {at}", why, f"{command()} --help") from error
    try:
        note(f"redrive: metrics at http://{host}:{server.server_port}/metrics")
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _registry(store: Store, directory: Path | None, app: App | None) -> Any:
    from ...observe.prometheus import Depths

    registry = _client().CollectorRegistry()
    registry.register(Depths(lambda: store, app))
    if directory is not None:
        _add_counters(registry, directory)
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):  # what handlers count by prometheus_client themselves
        from prometheus_client.multiprocess import MultiProcessCollector

        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry


def _add_counters(registry: Any, directory: Path) -> None:
    from ...observe.prometheus import Counters

    registry.register(Counters(lambda: read(directory)))


def _client() -> Any:
    import prometheus_client

    return prometheus_client
