"""`redrive dlq auto`: the machines that redrive automatically."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import chain
from typing import Any

import click

from ...duration import show
from ...present.commands import command, onward, program
from ...present.failure import USAGE, Failure
from ...present.formats import timestamp
from ...present.groups import auto_redrive_record, pace_record
from ...present.table import field_lines
from ...triage.auto import machine
from ...triage.auto.machine import Machine
from ..opening import OpenedStore, at_store
from ..selecting import signature, stated, understood
from ..terminal.output import Column, Output
from ..terminal.stderr import note


def _columns(now_ms: int) -> tuple[Column, ...]:
    def ahead(time: str | None) -> str:
        left_ms = 0.0 if time is None else datetime.fromisoformat(time).timestamp() * 1000 - now_ms
        return "–" if time is None else f"in {show(left_ms / 1000)}" if left_ms > 0 else "now"

    return (
        Column("scope", shrinks=True),
        Column("phase"),
        Column("why", shrinks=True),
        Column("next_at", "looks again", ahead),
        Column("run", spare=True),
        Column("redriven"),
        Column("done"),
        Column("failed"),
        Column("isolated"),
        Column("discarded", spare=True),
    )


@click.command()
@click.argument("scope", required=False)
@click.option("--pause", is_flag=True, help="start no more runs until it is resumed; an open run continues")
@click.option("--resume", is_flag=True, help="continue")
@signature(required=False)
@at_store()
def auto(
    opened: OpenedStore, out: Output, scope: str | None, pause: bool, resume: bool, actor: str | None, reason: str
) -> None:
    """List the machines that redrive automatically; or show one with its story, pause it, resume it.

    SCOPE is `queue/NAME`, which an app declares by auto_redrive=, or `fingerprint/FP`, by a standing rule; the name
    alone is enough. --pause and --resume need a --reason.
    """
    if pause and resume:
        raise click.UsageError("give --pause or --resume, not both")
    if scope is None:
        if pause or resume:
            raise Failure("no SCOPE is given", "one is paused at a time", f"{command()}", USAGE)
        _list(opened, out)
        return
    if pause or resume:
        act = machine.pause if pause else machine.resume
        with understood(onward("dlq auto")):
            changed = act(opened.store, scope, reason=stated(reason), actor=actor)
    else:
        with understood(onward("dlq auto")):
            (changed,) = machine.machines(opened.store, scope)
    record = _record(changed, opened.store.now_ms())
    out.record(record, id="scope", table=lambda: _lines(out.hidden(record), out))


COMMANDS = (auto,)


def _list(opened: OpenedStore, out: Output) -> None:
    now_ms = opened.store.now_ms()
    rows = [_row(machine, now_ms) for machine in machine.machines(opened.store)]
    if not out.rows(rows, _columns(now_ms), id="scope"):
        note(f"nothing drives dead messages of {opened.url} back by itself: no worker with an auto_redrive= was there")
    if any(not row["worked"] and row["phase"] != "ended" for row in rows):
        note(f"some have no worker now: is a worker of their app running? {program()} worker --help")


def _row(machine: Machine, now_ms: int) -> dict[str, Any]:
    ahead = machine.phase == "asleep" and machine.worked(now_ms)
    return {
        "scope": machine.scope,
        "phase": machine.phase,
        "why": machine.why or None,
        "next_at": timestamp(machine.next_ms) if ahead else None,
        "run": machine.run or None,
        "redriven": machine.redriven,
        "done": machine.done,
        "failed": machine.failed,
        "changed": machine.changed,
        "isolated": machine.isolated,
        "discarded": machine.discarded,
        "worked": machine.worked(now_ms),
    }


def _record(machine: Machine, now_ms: int) -> dict[str, Any]:
    auto = machine.auto
    return {
        **_row(machine, now_ms),
        "auto": None
        if auto is None
        else {
            **auto_redrive_record(auto), "batch": auto.batch, "concurrency": auto.concurrency,
            "health": auto.gates.health, "approval": auto.gates.approval, "window": auto.gates.window,
            "breaker": auto.gates.breaker, **pace_record(auto),
        },
        "worked_by": machine.owner if machine.worked(now_ms) else None,
        "story": [{"at": timestamp(line.at_ms), "text": line.text} for line in machine.story],
    }  # fmt: skip


def _lines(record: dict[str, Any], out: Output) -> Iterator[str]:
    shown = {n: v for n, v in record.items() if n not in ("story", "auto", "worked") and v not in (None, 0)}
    if record["auto"] is not None:
        shown["auto"] = ", ".join(
            f"{name.replace('_', ' ')} {value:g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
            for name, value in record["auto"].items()
            if value is not None and not isinstance(value, bool)
        )
    named = {name.replace("_", " "): value for name, value in shown.items()}
    return chain(field_lines(named), (f"{out.dim(line['at'])}  {line['text']}" for line in record["story"]))
