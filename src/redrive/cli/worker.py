"""`redrive worker`: run the messages of an app, in processes under a supervisor."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..app import App
from ..config import LOGS, VARIABLES, Settings, settings, trust
from ..errors import near_miss
from ..present.commands import program
from ..present.failure import USAGE, Failure
from ..registry import Queue
from ..stores import open_store
from ..system import need_posix
from ..worker.supervisor import supervise
from .opening import app_option, lead_on_at, load_app, move, one_app, url_option, wait_for_store
from .scheduler import warn_without_schedules, write_log
from .terminal.holding import note_left, noting_waits
from .terminal.stderr import note
from .terminal.warnings import tell_warnings


@click.command()
@click.argument("app_argument", required=False, metavar="[MODULE:APP]")
@app_option
@url_option
@click.option(
    "-q",
    "--queues",
    multiple=True,
    metavar="NAME[:CONCURRENCY],…",
    help="queues in order of preference (default: all of the app) [REDRIVE_QUEUES]",
)
@click.option("--burst", is_flag=True, default=None, help="end when nothing is due or running [REDRIVE_BURST]")
@click.option(
    "--drain",
    is_flag=True,
    default=None,
    help="end when nothing is left, waiting for scheduled messages [REDRIVE_DRAIN]",
)
@click.option("--processes", metavar="N", help="worker processes (default: 1) [REDRIVE_PROCESSES]")
@click.option("--concurrency", metavar="N", help="messages at once per process, over all queues [REDRIVE_CONCURRENCY]")
@click.option(
    "--prefetch", metavar="N", help="messages claimed ahead per process (default: its concurrency) [REDRIVE_PREFETCH]"
)
@click.option(
    "--lease", metavar="DURATION", help="how long a claim holds unless renewed (default: 30s) [REDRIVE_LEASE]"
)
@click.option(
    "--grace", metavar="DURATION", help="how long to let runs finish at the end (default: 30s) [REDRIVE_GRACE]"
)
@click.option(
    "--park-for",
    metavar="DURATION",
    help="how long messages with an unknown task, version or argument wait while no living worker knows them "
    "(default: 5m) [REDRIVE_PARK_FOR]",
)
@click.option(
    "--name", help="a name that stays the same over restarts, to take its own leases back at once [REDRIVE_NAME]"
)
@click.option(
    "--recycle-after",
    metavar="N",
    help="messages a child process runs before it is replaced (default: any number) [REDRIVE_RECYCLE_AFTER]",
)
@click.option(
    "--recycle-memory",
    metavar="SIZE",
    help="resident memory a child process may reach before it is replaced (default: any) [REDRIVE_RECYCLE_MEMORY]",
)
@click.option(
    "--suspect-processes",
    metavar="N",
    help="child processes for suspects of a crash, over all its processes (default: two for each processor) "
    "[REDRIVE_SUSPECT_PROCESSES]",
)
@click.option(
    "--ingest",
    is_flag=True,
    default=None,
    help="on sqs://, take the dead letters of these queues into the triage store too [REDRIVE_INGEST]",
)
@click.option("--scheduler", is_flag=True, default=None, help="enqueue the app's schedules too [REDRIVE_SCHEDULER]")
@click.option(
    "--log",
    type=click.Choice(LOGS),
    help="a line for each message on stderr (default: text on a terminal, otherwise json) [REDRIVE_LOG]",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="serve Prometheus metrics of all its processes (default: none; host: 127.0.0.1) [REDRIVE_METRICS]",
)
@click.option(
    "--emf",
    is_flag=True,
    default=None,
    help="write CloudWatch metrics to stdout, in the embedded metric format [REDRIVE_EMF]",
)
@click.option(
    "--otel", is_flag=True, default=None, help="trace by OpenTelemetry, and export metrics by it [REDRIVE_OTEL]"
)
@click.option(
    "--notify",
    metavar="URL",
    help="post alerts to this webhook: messages dead or quarantined, breakers open, runs stopped, and the thresholds "
    "that the app declares (default: none) "
    "[REDRIVE_NOTIFY]",
)
@click.option(
    "--notify-every",
    metavar="DURATION",
    help="post the same alert at most this often, over all processes (default: 10m) [REDRIVE_NOTIFY_EVERY]",
)
@click.option(
    "--reload", is_flag=True, help="for development: restart when a .py or .toml file below this folder changes"
)
@click.option("--metrics-dir", hidden=True)  # the directory to which a child process writes its counts
@click.option("--child", is_flag=True, hidden=True)
def worker(
    app_argument: str | None,
    app: str | None,
    url: str | None,
    child: bool,
    reload: bool,
    metrics_dir: str | None,
    queues: tuple[str, ...],
    **flags: Any,
) -> int:
    """Run the messages of an app's queues until SIGTERM or Ctrl-C.

    After the first signal, running messages may finish within the grace period, and the others are given back
    uncounted; the second signal gives all back at once. A parent process restarts workers that die or hang, except on memory://.
    """
    need_posix("a worker")
    if reload:
        return _reload()
    given = {"app": one_app(app_argument, app), "url": url, "queues": queues or None, **flags}
    chosen = settings(given)
    lead_on_at(given["app"], url)
    if flags["otel"]:
        os.environ[VARIABLES["otel"]] = "true"  # the app of each process reads this when it opens its store
    if chosen.app is None:
        why = "neither an argument, REDRIVE_APP nor redrive.toml names it"
        raise Failure("which app does the worker run?", why, f"{program()} worker tasks:app", USAGE)
    loaded = load_app(chosen.app, chosen.folder)
    if url is not None:
        move(loaded, chosen.url)
    if flags["park_for"] is not None:
        loaded.park_for_s = chosen.park_for_s
    if flags["recycle_after"] is not None:
        loaded.recycle_after = chosen.recycle_after
    if flags["recycle_memory"] is not None:
        loaded.recycle_memory = chosen.recycle_memory
    tell_warnings(chosen.log, quiet=child)
    loaded.schedules_watched = child  # a parent process has warned of missing schedulers already
    if not child and (chosen.drain or not chosen.burst):  # a timer starts a burst again, so it does not wait
        wait_for_store(loaded)
    if child or not loaded.store.traits.shared:
        return _work(loaded, chosen, metrics_dir, child)
    _warn(loaded, chosen)
    from ..worker.preflight import preflight

    preflight(loaded, loaded.store, [queue.name for queue in loaded.queues_of(_sizes(loaded, chosen.queues))])
    code = _supervise(loaded, chosen, url)
    if chosen.burst and loaded.url is not None:
        with contextlib.closing(open_store(loaded.url)) as store:  # the app's store is closed
            note_left(store, loaded, [queue.name for queue in loaded.queues_of(_sizes(loaded, chosen.queues))])
    return code


def _reload() -> int:
    """Run the command that this process was started with, but for `--reload`, again after each change."""
    from .reload import reload

    argv = sys.argv[1:]
    argv.remove("--reload")
    return reload([*trust.python(), "-m", "redrive", *argv], Path.cwd())


def _supervise(app: App, chosen: Settings, url: str | None) -> int:
    store, directory = app.store, None
    if chosen.notify is not None:
        os.environ["REDRIVE_NOTIFY"] = chosen.notify  # not by a flag of child processes, which any user can list
    with contextlib.ExitStack() as ending:
        if chosen.metrics is None:
            store.close()
        else:
            from .admin.metrics import serve_workers

            ending.callback(store.close)
            directory = ending.enter_context(serve_workers(app, chosen.metrics))
        return supervise(
            _child(app, chosen, url, directory),
            processes=chosen.processes,
            state_dir=store.state_dir,
            lease_s=chosen.lease_s,
            grace_s=chosen.grace_s,
            lock_file=store.lock_file,
        )


def _child(app: App, chosen: Settings, url: str | None, metrics_dir: Path | None) -> list[str]:
    """Return the command of a child process, with all current settings as flags, so that the child has the
    same ones."""
    flags: dict[str, object] = {
        "--metrics-dir": metrics_dir,
        "--app": chosen.app,
        "--url": url,
        "--processes": chosen.processes,
        "--concurrency": chosen.concurrency,
        "--prefetch": chosen.prefetch,
        "--lease": f"{chosen.lease_s!r}s",
        "--grace": f"{chosen.grace_s!r}s",
        "--park-for": None if app.park_for_s is None else f"{app.park_for_s!r}s",
        "--recycle-after": app.recycle_after or chosen.recycle_after,
        "--recycle-memory": app.recycle_memory or chosen.recycle_memory,
        "--suspect-processes": _share(chosen.suspect_processes, chosen.processes),
        "--name": chosen.name,
        "--log": chosen.log,
        "--notify-every": f"{chosen.notify_every_s!r}s",
    }
    if chosen.queues is not None:
        flags["--queues"] = ",".join(name if n is None else f"{name}:{n}" for name, n in chosen.queues.items())
    argv = [*trust.python(), "-m", "redrive", "worker", "--child"]
    for flag, value in flags.items():
        argv += [flag, str(value)] if value is not None else []
    switches = (
        ("--burst", chosen.burst),
        ("--drain", chosen.drain),
        ("--scheduler", chosen.scheduler),
        ("--ingest", chosen.ingest),
        ("--emf", chosen.emf),
    )
    return argv + [flag for flag, on in switches if on]


def _share(suspect_processes: int | None, processes: int) -> int:
    """Return how many of the child processes for suspects each worker process may have."""
    from ..worker.executors.processes import suspects_max

    return max(1, (suspect_processes or suspects_max()) // processes)


def _work(app: App, chosen: Settings, metrics_dir: str | None, child: bool) -> int:
    with contextlib.ExitStack() as ending:
        if metrics_dir is not None:
            from ..observe.shared_tally import share

            share(app, Path(metrics_dir))
        elif chosen.metrics is not None and not child:  # only with memory://, whose worker has no child processes
            from .admin.metrics import serve_app

            ending.enter_context(serve_app(app, chosen.metrics))
        if chosen.emf:
            from ..aws.cloudwatch import Emf

            ending.callback(Emf(app).close)
        if chosen.notify is not None:
            from ..observe.webhook import notify
            from ..thresholds import post

            post(app, chosen.notify)
            notify(app, chosen.notify, chosen.notify_every_s, chosen.app)
        return _run(app, chosen)


def _run(app: App, chosen: Settings) -> int:
    from ..worker.process import run

    write_log(app, chosen.log)
    worker = app.worker(
        _sizes(app, chosen.queues),
        concurrency=chosen.concurrency,
        lease=chosen.lease_s,
        grace=chosen.grace_s,
        prefetch=chosen.prefetch,
        burst=chosen.burst,
        drain=chosen.drain,
        name=chosen.name,
        ingest=chosen.ingest,
        suspect_processes=chosen.suspect_processes,
    )
    with contextlib.ExitStack() as beside:
        if chosen.scheduler:
            beside.enter_context(app.scheduler())
        if chosen.drain:
            beside.enter_context(noting_waits(app.store, app, [queue.name for queue in worker.queues]))
        run(worker)
    if chosen.burst and not app.store.traits.shared:
        note_left(app.store, app, [queue.name for queue in worker.queues])
    return 0


def _sizes(app: App, queues: Mapping[str, int | None] | None) -> dict[str, int] | None:
    if queues is None:
        return None
    return {name: n or app.queues.get(name, Queue(name)).concurrency for name, n in queues.items()}


def _warn(app: App, chosen: Settings) -> None:
    """Note on stderr settings that are allowed, but probably mistakes."""
    if not app.tasks:
        note(f"warning: {chosen.app} has no tasks; what it meets waits for a newer worker, then it is unroutable")
    if chosen.scheduler:
        warn_without_schedules(app, str(chosen.app))
    elif app.schedules:
        from ..schedule import warning

        if (late := warning(app, app.store)) is not None:
            note(f"warning: {late}")
    from ..worker.preflight import doubts

    for line in doubts(app):
        note(f"warning: {line}")
    known = {task.queue for task in app.tasks.values()} | {s.queue for s in app.schedules.values()} | set(app.queues)
    for name in chosen.queues or ():
        if name not in known:
            near = near_miss(name, known)
            meant = f"did you mean '{near}'?" if near else f"they name: {', '.join(sorted(known)) or 'none'}"
            note(f"warning: no task of {chosen.app} is on queue '{name}'; {meant}")
