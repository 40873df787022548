"""`redrive enqueue`: enqueue one message, or one for each line of a file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from ..app import App
from ..duration import milliseconds, rfc3339
from ..duration import show as show_duration
from ..enqueue import Bound, Task
from ..errors import Unreadable, near_miss
from ..message import NORMAL, PRIORITIES, Draft, labelled
from ..present.commands import again, onward, program, typed
from ..present.failure import DONE, FAILED, USAGE, Failure
from ..redact import clip, one_line
from .opening import OpenedStore, at_store
from .terminal.nothing import unknown
from .terminal.output import Output
from .terminal.stderr import note
from .terminal.types import DURATION, TIME

if TYPE_CHECKING:
    from ..deliver import Ledger
    from ..deliver.backfill import Drafts

FILES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_EXAMPLES: dict[Any, Any] = {int: 1, float: 1.5, str: "text", bool: True, list: [], dict: {}}
# In JSON's words.
_NAMES = {int: "a number", float: "a number", str: "a text", bool: "true or false", type(None): "null"}
_BY_NAME = """enqueue {} '{{"name": "value"}}'"""
UNWORKED_S = 5  # seconds that a message is due, without a leased one in its queue, until the queue counts as unworked
QUEUES_MAX = 5  # the most queues of a file that are checked for workers
# The most characters of arguments that an error quotes, and of the text that it quotes from.
SHOWN, SHOWN_FROM = 60, 20_000


@click.command()
@click.argument("task", metavar="TASK|FILE")
@click.argument("arguments", required=False, metavar="[JSON]")
@click.option("--raw", type=click.File("rb"), help="take the body from this file, byte by byte ('-' is stdin)")
@click.option("-q", "--queue", help="another queue than the task's")
@click.option("--delay", type=DURATION, help="run no earlier than this from now")
@click.option("--at", type=TIME, help="run no earlier than this point in time")
@click.option("--key", help="enqueue it only if no message of the task holds this key")
@click.option("--for", "key_for", type=DURATION, help="hold the key for at least this long")
@click.option("--group", help="its group: messages of a group run in order")
@click.option(
    "--priority", type=click.IntRange(PRIORITIES[0], PRIORITIES[-1]), default=NORMAL, help="0 is served first [2]"
)
@click.option("--deadline", type=TIME, help="do not run it after this point in time")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="a header; may be given many times")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="a label; may be given many times")
@click.option("--correlation-id", help="its correlation id")
@click.option("--task", "of_lines", metavar="TASK", help="of FILE: the task of all lines, which hold its arguments")
@click.option("--again", "repeat", is_flag=True, help="of FILE: enqueue all its lines again")
@at_store(create=True)
def enqueue(
    opened: OpenedStore,
    out: Output,
    task: str,
    arguments: str | None,
    raw: IO[bytes] | None,
    queue: str | None,
    headers: Sequence[str],
    labels: Sequence[str],
    of_lines: str | None,
    repeat: bool,
    **options: Any,
) -> int:
    """Put a message on a queue and print its id; or a message for each line of a file.

    JSON holds the arguments: an object by name, or an array in order; '-' reads it from stdin. With --app they are
    checked against the task; with --url the task is unknown, and they are stored unchecked. The message is durable once
    its id is printed.

    FILE holds JSON lines, plain or gzipped; '-' is standard input. A line names its task and arguments, and may have an
    id, a key and the other options: {"task": "crm.push", "args": {"record_id": 42}, "key": "42", "delay": "5m"}. With
    --task a line is the arguments alone. All lines are checked first: a bad one stops the command before anything is
    enqueued. If you run the command again, it continues after the last stored line, and enqueues no line twice.
    """
    if arguments is None and raw is None and _names_file(task, opened.app):
        _refuse_options(options | {"label": labels or None}, headers)
        return _backfill(opened, out, task, of_lines, queue, repeat=repeat)
    if of_lines is not None or repeat:
        why = "--task and --again are for a file of lines, which ends in .jsonl or is '-'"
        raise Failure(f"'{task}' is not such a file", why, f"{program()} enqueue --help", USAGE)
    if raw is not None and arguments is not None:
        raise Failure("give JSON or --raw, not both", "either is the whole body", f"{program()} enqueue --help", USAGE)
    if options["delay"] is not None and options["at"] is not None:
        raise Failure(
            "give --delay or --at, not both", "both say when it may run", f"{program()} enqueue --help", USAGE
        )
    if options["key_for"] is not None and options["key"] is None:
        raise Failure("--for needs --key", "it says how long the key is held", f"{program()} enqueue --help", USAGE)
    options |= {"queue": queue, "headers": labelled(_pairs("--header", headers), _pairs("--label", labels))}
    known = None if opened.app is None else opened.app.tasks.get(task)
    if raw is not None:
        draft = _draft(task, known, raw.read(), options, content="raw")
    elif opened.app is not None:
        declared = _known(opened.app, task)
        draft = _checked(declared, _arguments(arguments, _example(declared)), options)
    else:
        draft = _draft(task, None, _object(_text(arguments), onward(_BY_NAME.format(typed(task)))), options)
    if opened.app is None and queue is None:
        note(f"put on queue 'default': only --app knows the queue of task '{task}'")
    with _counting(opened) as app:
        put = app.put([draft])[0]
    _warn_unworked(opened, [draft.queue])
    if put.duplicate:
        note(f"not put: message {put.id} holds the key '{draft.key}' and is {put.state}")
    record = {"id": put.id, "task": draft.task, "queue": draft.queue, "state": put.state, "duplicate": put.duplicate}
    if out.form in ("json", "jsonl"):
        out.record(record)
    else:
        click.echo(one_line(put.id))
    return DONE


def _names_file(word: str, app: App | None) -> bool:
    if app is not None and word in app.tasks:
        return False
    return word == "-" or word.endswith(FILES) or ("/" in word and Path(word).is_file())


def _refuse_options(options: dict[str, Any], headers: Sequence[str]) -> None:
    """Raise Failure if an option of a single message is given for a file, as each line has its own."""
    given = [name for name, value in (options | {"header": headers or None}).items()
             if value is not None and (name, value) != ("priority", NORMAL)]  # fmt: skip
    for name in given[:1]:
        option = "--for" if name == "key_for" else f"--{name.replace('_', '-')}"
        field = {"header": "headers", "label": "labels"}.get(name, name)
        why = f'each line has its own: {{"task": …, "args": …, "{field}": …}}'
        raise Failure(f"{option} is for one message, not for a file", why, f"{program()} enqueue --help", USAGE)


def _backfill(opened: OpenedStore, out: Output, file: str, task: str | None, queue: str | None, *, repeat: bool) -> int:
    from ..deliver import LINE_MAX, ProgressBar, check, readable, spool_folder, spool_path
    from ..deliver.backfill import Drafts

    def make(name: str, arguments: Any, options: dict[str, Any]) -> Draft:
        try:
            if opened.app is not None:
                return _checked(_known(opened.app, name), arguments, options)
            return _draft(name, None, _object(msgspec.json.encode(arguments), ""), options)
        except Failure as failure:
            raise ValueError(f"{failure.what}: {failure.why}") from None

    drafts = Drafts(opened.store, make, task=task, queue=queue)
    folder, limit = spool_folder(opened.store), min(LINE_MAX, opened.store.traits.body_bytes_max)
    path = readable(file, folder)
    with ProgressBar() as bar, path.open("rb") as lines:
        checked = check(lines, limit=limit, tick=bar.checked, judge=drafts.why_bad)
    name = "standard input" if file == "-" else file
    try:
        for line in checked.first_bad:
            note(f"{name}:{line.number}: {line.why}")
        if checked.bad:
            expected = "the arguments, as an object or an array" if task else '{"task": "…", "args": {…}}'
            raise Failure(
                f"{checked.bad:,} of {checked.bad + checked.good:,} lines cannot be enqueued",
                f"nothing was enqueued; expected of each line: {expected}", f"{program()} enqueue --help", FAILED,
            )  # fmt: skip
        ledger = drafts.ledger(opened.store, checked.digest)
        return _put_lines(opened, out, drafts, ledger, file, repeat, (path, checked.stamp, limit), checked.good)
    finally:
        spool_path(folder, checked.digest).unlink(missing_ok=True)


def _put_lines(
    opened: OpenedStore, out: Output, drafts: Drafts, ledger: Ledger, file: str, repeat: bool, read: Any, total: int
) -> int:
    from ..deliver import FileRecord
    from ..deliver.backfill import Backfill

    store, name = opened.store, "standard input" if file == "-" else file
    if ledger.record is None or (repeat and ledger.record.complete):
        ledger.write(FileRecord(name, "", "", total, 0, store.now_ms()))
    start = ledger.record
    assert start is not None
    if start.complete and total:
        note(f"all {total:,} lines were enqueued before, at {rfc3339(start.started_ms)}; nothing was enqueued now")
        note(f"to enqueue them again: {again(_words(file, drafts, '--again'))}")
    elif start.done:
        note(f"going on: {start.done:,} of {total:,} lines were enqueued before")
    try:
        with _counting(opened) as app:
            backfill = Backfill(drafts, app, ledger, *read)
            backfill.run()
    except (Exception, KeyboardInterrupt):
        left = ledger.record or start
        if store.traits.cells:
            twice = "" if store.traits.atomic_moves else ", and may enqueue some of the next 500 twice"
            note(f"{left.done:,} of {total:,} lines are enqueued; the same command goes on after these{twice}")
        else:
            rest = f"tail -n +{left.number + 1} {typed(file)} | {again(_words('-', drafts))}"
            note(f"lines up to {left.number:,} are enqueued, and perhaps some of the next 500; to go on: {rest}")
        raise
    _warn_unworked(opened, sorted(backfill.queues)[:QUEUES_MAX])
    done = (ledger.record or start).done - start.done
    counts = {"before": start.done, "enqueued": done - backfill.known, "known": backfill.known}
    out.record({"file": name, "lines": total, **counts}, id="file")
    return DONE


@contextlib.contextmanager
def _counting(opened: OpenedStore) -> Iterator[App]:
    """Yield the command's app, or one for its store, and write the counts of what it enqueued to the history at the
    end."""
    app = opened.app or App(store=opened.store)
    try:
        yield app
    finally:
        if app.flusher is not None:
            app.flusher.finish()


def _warn_unworked(opened: OpenedStore, queues: Iterable[str]) -> None:
    """On a terminal, warn of queues that no worker runs: paused ones, those that no living worker runs, and those that
    a worker of the app would leave out. If workers do not report, a queue counts as unworked when a message has been
    due in it for UNWORKED_S and none is leased."""
    if not sys.stderr.isatty():
        return
    from ..status import worked, worker_reports

    app, store = opened.app, opened.store
    mine = None if app is None else {queue.name for queue in app.queues_of(None)}
    worker = f"{program()} worker {typed((app and app.spec) or 'MODULE:APP')}"
    reports = worker_reports(store)
    known = worked(reports)
    begins = reports is not None and not reports  # no worker is listed: none has run yet, or all have ended
    for queue in queues:
        counts = store.counts(queue)
        if queue in store.paused():
            note(f"warning: queue '{queue}' is paused; to go on: {onward(f'queue resume {typed(queue)}')}")
        elif mine is not None and queue not in mine:
            note(f"warning: a worker of this app runs queue '{queue}' only if it is named: {worker} -q {typed(queue)}")
        elif begins and not counts.leased:
            note(f"no worker runs yet; to start one: {worker}")
        elif known is not None and queue not in known and not counts.leased:
            note(f"warning: no worker that is alive runs queue '{queue}'; to start one: {worker}")
        elif known is None and counts.ready and not counts.leased and counts.oldest_age_s >= UNWORKED_S:
            due = f"{counts.ready:,} due, the oldest for {show_duration(round(counts.oldest_age_s))}, none running"
            note(f"warning: no worker seems to run queue '{queue}': {due}; to start one: {worker}")


def _words(file: str, drafts: Drafts, *more: str) -> str:
    """Return the words of the command that enqueues this file with these drafts, and `more` options."""
    given = {"--task": drafts.task, "--queue": drafts.queue}
    return typed(file, *(word for name, value in given.items() if value for word in (name, value)), *more)


def _known(app: App, name: str) -> Task[Any, Any]:
    if name in app.tasks:
        return app.tasks[name]
    more = "" if near_miss(name, app.tasks) else "; declare it with @app.task(…), or use --raw"
    raise unknown("task", name, sorted(app.tasks), "the app", more=more, look="schema export")


def _checked(task: Task[Any, Any], arguments: Any, options: dict[str, Any]) -> Draft:
    """Return the draft of `task.using(…)` with these arguments and options, after decoding its body once, as a worker
    will."""
    args, kwargs = (arguments, {}) if isinstance(arguments, list) else ([], arguments)
    bound: Bound[..., Any] = task.using(
        delay=options["delay"],
        at=options["at"],
        key=options["key"],
        for_=options["key_for"],
        group=options["group"],
        queue=options["queue"],
        priority=options["priority"],
        deadline=options["deadline"],
        headers=options["headers"],
        correlation_id=options["correlation_id"],
    )
    try:
        draft = bound.draft(*args, **kwargs)
        task.codec.decode(draft.body)
    except (TypeError, Unreadable) as error:
        why = str(error).removeprefix(f"task {task.name!r}: ").removeprefix("body does not fit ")
        raise Failure(f"these arguments do not fit task '{task.name}'", why, _example(task), USAGE) from None
    return draft


def _example(task: Task[Any, Any]) -> str:
    """Return a command that enqueues the task with valid arguments; if no example fits, one that prints its schema."""
    needed = [p.name for p in task.codec.signature.parameters.values() if p.default is p.empty]
    kinds = [task.codec.kinds.get(name) for name in needed]
    if any(kind not in _EXAMPLES for kind in kinds):
        return onward(f"schema export --task {typed(task.name)}")
    example = dict(zip(needed, (_EXAMPLES[kind] for kind in kinds), strict=True))
    return onward(f"enqueue {typed(task.name, msgspec.json.encode(example).decode())}")


def _draft(
    task: str, known: Task[Any, Any] | None, body: bytes, options: dict[str, Any], content: str = "json"
) -> Draft:
    return Draft(
        task=task,
        queue=options["queue"] or (known.queue if known is not None else "default"),
        body=body,
        content=content,
        version=1 if known is None else known.version,
        delay_ms=_ms(options["delay"]),
        due_ms=_at_ms(options["at"]),
        key=options["key"],
        key_for_ms=_ms(options["key_for"]),
        group=options["group"],
        priority=options["priority"],
        deadline_ms=_at_ms(options["deadline"]),
        headers=options["headers"],
        correlation_id=options["correlation_id"],
        producer=f"redrive enqueue, pid {os.getpid()}",
    )


def _ms(seconds: float | None) -> int:
    return 0 if seconds is None else milliseconds(seconds)


def _at_ms(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1000)


def _text(arguments: str | None) -> bytes:
    text = sys.stdin.buffer.read() if arguments == "-" else (arguments or "{}").encode(errors="surrogateescape")
    return text.strip() or b"{}"


def _arguments(arguments: str | None, next: str) -> Any:
    text = _text(arguments)
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise _not_json(text, str(error), next) from None
    if not isinstance(value, dict | list):
        raise _not_json(text, f"it is {_NAMES[type(value)]}, not an object or an array", next)
    return value


def _object(text: bytes, next: str) -> bytes:
    """Return the text as the body of a draft for an unknown task: a JSON object of arguments, unchecked. Raises Failure
    for other texts."""
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise _not_json(text, str(error), next) from None
    if not isinstance(value, dict):
        why = "without --app the names of its parameters are not known"
        raise Failure("the arguments must be a JSON object", why, next, USAGE)
    return text


def _not_json(text: bytes, why: str, next: str) -> Failure:
    shown = clip(text.decode(errors="backslashreplace"), SHOWN_FROM, SHOWN)
    return Failure(f"the arguments cannot be read: {shown}", why, next, USAGE)


def _pairs(option: str, pairs: Sequence[str]) -> dict[str, str] | None:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise Failure(
                f"{option} {name!r} has no value", "expected NAME=VALUE", f"{program()} enqueue --help", USAGE
            )
        found[name] = value
    return found or None
