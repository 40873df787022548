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

from ...config import LOOPBACK, address, settings
from ...observe.shared_tally import read
from ...present.commands import command
from ...present.failure import Failure
from ..opening import OpenedStore, at_store
from ..subcommands import Subcommands
from ..terminal.output import Output
from ..terminal.stderr import note
from ..terminal.types import DURATION

if TYPE_CHECKING:
    from ...app import App
    from ...store import Store

PORT = 9464  # the usual port of OpenTelemetry's Prometheus exporters

_dir_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="REDRIVE_METRICS_DIRECTORY",
    help="add the counts of workers in this folder: `redrive worker --metrics` names it [REDRIVE_METRICS_DIRECTORY]",
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
def serve(opened: OpenedStore, out: Output, port: int, host: str, directory: Path | None) -> None:
    """Serve metrics over HTTP until SIGTERM or Ctrl-C. Reads only."""
    asked = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, asked)  # before any thread starts, which could get the signal
    with _served(_registry(opened.store, directory, opened.app), address(f"{host}:{port}")):
        signal.sigwait(asked)


@metrics.command(name="print")
@_dir_option
@at_store()
def print_(opened: OpenedStore, out: Output, directory: Path | None) -> None:
    """Print the result of one scrape, always in Prometheus' text format."""
    sys.stdout.write(_client().generate_latest(_registry(opened.store, directory, opened.app)).decode())


@metrics.command()
@click.option("--waiting", type=float, default=5000, help="messages due in a queue (default: 5000)")
@click.option("--dead", type=float, default=100, help="dead messages of a queue (default: 100)")
@click.option("--growth", type=float, default=10, help="deaths in 15 minutes (default: 10)")
@click.option("--age", type=DURATION, default="15m", help="wait of the oldest that is due (default: 15m)")
@click.option("--errors", type=float, default=0.3, help="share of failed runs in 15 minutes (default: 0.3)")
@click.option("--wave", type=float, default=5000, help="retries due in the next 10 minutes (default: 5000)")
@click.option("--slow", type=DURATION, default="30s", help="the time that 95 of 100 runs may take (default: 30s)")
@click.option("--stuck", type=DURATION, default="1h", help="how long a run may last (default: 1h)")
@click.option("--skew", type=DURATION, default="5s", help="how far a clock may be away (default: 5s)")
@click.option("--late", type=DURATION, default="1m", help="how late a schedule may be (default: 1m)")
@click.option("--runbooks", metavar="URL", help="where the runbook pages are [REDRIVE_RUNBOOK_URL]")
def rules(runbooks: str | None, **of: float) -> None:
    """Print recording and alerting rules for Prometheus as YAML. Each alert links to its runbook page, and to the web
    pages if the setting web_url has their address.

    Load them with `rule_files:` in prometheus.yml. They need `redrive worker --metrics`. Rules about the store need
    `redrive metrics serve`, or one of the two with an app.
    """
    from ...observe.rules import Thresholds, prometheus_rules

    seconds = {f"{name}_s": of.pop(name) for name in ("age", "slow", "stuck", "skew", "late")}
    chosen = settings()
    rules = prometheus_rules(Thresholds(**of, **seconds), runbooks or chosen.runbook_url, chosen.web_url)
    sys.stdout.write(rules)


@metrics.command()
def grafana() -> None:
    """Print a Grafana dashboard as JSON, to be imported. Its data source, queues and tasks are variables."""
    from ...observe.dashboard import dashboard_json

    sys.stdout.write(dashboard_json())


@contextlib.contextmanager
def serve_workers(app: App, at: str) -> Iterator[Path]:
    """Serve the depths of the app's store and the counts of worker processes at `at`, until the block ends; yield the
    directory to which these processes write their counts."""
    with contextlib.ExitStack() as ending:
        registry = _registry(app.store, None, app)
        store, port = app.store, ending.enter_context(_served(registry, at))
        if store.state_dir is not None:
            directory = store.state_dir / f"metrics-{port}"  # by port, as each parent counts its own processes
        else:
            directory = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="redrive-metrics-")))
        _add_counters(registry, directory)
        note(f"redrive: workers count in {directory}")
        yield directory


@contextlib.contextmanager
def serve_app(app: App, at: str) -> Iterator[None]:
    """Serve at `at` the metrics of an app whose worker runs in this process, until the block ends."""
    from ...observe.prometheus import Metrics

    registry = _client().CollectorRegistry()
    Metrics(app).register(registry)
    with _served(registry, at):
        yield


@contextlib.contextmanager
def _served(registry: Any, at: str) -> Iterator[int]:
    """Serve a registry at `at`, HOST:PORT, on a thread until the block ends; yield the port."""
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
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):  # where handlers write metrics of their own
        from prometheus_client.multiprocess import MultiProcessCollector

        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry


def _add_counters(registry: Any, directory: Path) -> None:
    from ...observe.prometheus import Counters

    registry.register(Counters(lambda: read(directory)))


def _client() -> Any:
    import prometheus_client

    return prometheus_client
