"""`redrive enqueue`: enqueue one message, by hand or from a script."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import IO, Any

import click
import msgspec

from ..app import App
from ..duration import milliseconds
from ..enqueue import Bound, Task
from ..errors import Unreadable, near_miss
from ..message import NORMAL, PRIORITIES, Draft
from ..redact import clip, one_line
from .opening import Opened, at_store
from .terminal.failure import USAGE, Failure, note, program, typed
from .terminal.output import Output
from .terminal.types import DURATION, TIME

SHOWN, SHOWN_FROM = 60, 20_000  # characters of arguments that an error quotes, and what they are taken from


@click.command()
@click.argument("task")
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
@click.option("--correlation-id", help="its correlation id")
@at_store(create=True)
def enqueue(
    opened: Opened,
    out: Output,
    task: str,
    arguments: str | None,
    raw: IO[bytes] | None,
    queue: str | None,
    headers: Sequence[str],
    **options: Any,
) -> None:
    """Put a message on a queue and print its id.

    JSON holds the arguments: an object by name, or an array in order; '-' reads it from stdin. With --app they are
    checked against the task; with --url the task is unknown, and they are stored unchecked. The message is durable once
    its id is printed.

    \b
      redrive enqueue crm.push '{"record_id": 42}' --delay 5m
    """
    if raw is not None and arguments is not None:
        raise Failure("give JSON or --raw, not both", "either is the whole body", f"{program()} enqueue --help", USAGE)
    if options["delay"] is not None and options["at"] is not None:
        raise Failure(
            "give --delay or --at, not both", "both say when it may run", f"{program()} enqueue --help", USAGE
        )
    if options["key_for"] is not None and options["key"] is None:
        raise Failure("--for needs --key", "it says how long the key is held", f"{program()} enqueue --help", USAGE)
    options |= {"queue": queue, "headers": _headers(headers)}
    known = None if opened.app is None else opened.app.tasks.get(task)
    if raw is not None:
        draft = _draft(task, known, raw.read(), options, content="raw")
    elif opened.app is not None:
        draft = _checked(_known(opened.app, task), _arguments(arguments), options)
    else:
        draft = _draft(task, None, _object(_text(arguments)), options)
    if opened.app is None and queue is None:
        note(f"put on queue 'default': only --app knows the queue of task '{task}'")
    put = opened.store.put([draft])[0]
    if put.duplicate:
        note(f"not put: message {put.id} holds the key '{draft.key}' and is {put.state}")
    record = {"id": put.id, "task": draft.task, "queue": draft.queue, "state": put.state, "duplicate": put.duplicate}
    if out.form in ("json", "jsonl"):
        out.record(record)
    else:
        click.echo(one_line(put.id))


def _known(app: App, name: str) -> Task[Any, Any]:
    if name in app.tasks:
        return app.tasks[name]
    near = near_miss(name, app.tasks)
    why = f"its tasks: {', '.join(sorted(app.tasks)) or 'none'}" + (f"; did you mean '{near}'?" if near else "")
    next = f"{program()} enqueue {typed(near)} …" if near else "declare it with @app.task(…), or use --raw"
    raise Failure(f"the app has no task '{name}'", why, next, USAGE)


def _checked(task: Task[Any, Any], arguments: Any, options: dict[str, Any]) -> Draft:
    """The draft that `task.using(…)` makes. Its body is decoded once, as a worker will do."""
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
        example = ", ".join(f'"{name}": …' for name in task.codec.signature.parameters)
        next = typed(program(), "enqueue", task.name, f"{{{example}}}")
        raise Failure(f"these arguments do not fit task '{task.name}'", why, next, USAGE) from None
    return draft


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


def _arguments(arguments: str | None) -> Any:
    text = _text(arguments)
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise _not_json(text, str(error)) from None
    if not isinstance(value, dict | list):
        raise _not_json(text, f"it is a {type(value).__name__}, not an object or an array")
    return value


def _object(text: bytes) -> bytes:
    """A draft for an unknown task: arguments by name, stored unchecked."""
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise _not_json(text, str(error)) from None
    if not isinstance(value, dict):
        why = "without --app the names of its parameters are not known"
        raise Failure("the arguments must be a JSON object", why, f"{program()} enqueue TASK '{{\"name\": …}}'", USAGE)
    return text


def _not_json(text: bytes, why: str) -> Failure:
    shown = clip(text.decode(errors="backslashreplace"), SHOWN_FROM, SHOWN)
    return Failure(
        f"the arguments cannot be read: {shown}", why, f'{program()} enqueue TASK \'{{"name": "value"}}\'', USAGE
    )


def _headers(pairs: Sequence[str]) -> dict[str, str] | None:
    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise Failure(
                f"--header {name!r} has no value", "expected NAME=VALUE", f"{program()} enqueue --help", USAGE
            )
        headers[name] = value
    return headers or None
