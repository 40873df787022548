"""`redrive dlq plan` and `dlq apply`: plan a redrive, and start its run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ...config import is_shared
from ...duration import show as show_duration
from ...errors import PlanRefused
from ...files import output
from ...ids import is_id
from ...present.commands import completed, onward, program
from ...present.failure import DONE, REFUSED, USAGE, Failure
from ...present.forecasts import plan_forecast_record, plan_words
from ...present.formats import listed
from ...present.holds import hold_record, holds_text
from ...present.plans import plan_record
from ...present.runs import COUNTS, run_record
from ...present.table import field_lines
from ...redact import one_line
from ...triage.dlq import DeadLetters
from ...triage.redrive.options import COUNT_MAX, OPTIONS, OptionKind, PlanOption, settings_words
from ...triage.select.terms import Node
from ...triage.selection import QUARANTINED, Selection
from ..opening import OpenedStore, at_store
from ..selecting import filters, here, run_id, selection, selector_argument, signature, understood
from ..terminal.output import Output
from ..terminal.stderr import note
from ..terminal.types import DURATION

if TYPE_CHECKING:  # imported late at run time, as `--help` does not need these
    from ...simulate import PlanForecast
    from ...status import Hold
    from ...triage.redrive.plan import PlanHandle
    from ...triage.redrive.records import Plan

WOULD = {"redrive": "would move", "hurry": "would make due", "edit": "would change", "cancel": "would cancel"}
_FILE_MAX = 1_000_000  # the most bytes of a plan's file that are read


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option to a command for each row of `OPTIONS`, the options of a plan."""
    for option in reversed(OPTIONS):
        command = _option(option)(command)
    return command


def _option(option: PlanOption) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    flag = f"--{option.name.replace('_', '-')}"
    match option.kind:
        case OptionKind.FLAG:
            return click.option(flag, is_flag=True, help=option.help)
        case OptionKind.SWITCH:
            both = f"{flag}/--no-{flag[2:]}"
            return click.option(both, default=option.default, show_default=True, help=option.help)
        case OptionKind.DURATION:
            return click.option(flag, type=DURATION, default=None if option.default is None else "0s", help=option.help)
        case OptionKind.COUNT | OptionKind.RATE | OptionKind.RULE | OptionKind.TEXT:
            most = None if option.most == COUNT_MAX else option.most
            number = click.IntRange(option.least, most) if option.kind is OptionKind.COUNT else None
            default = {} if option.default is None else {"default": option.default, "show_default": True}
            return click.option(flag, type=number, metavar=option.metavar, help=option.help, **default)


@click.command()
@selector_argument
@filters
@plan_options
@click.option("--no-canary", is_flag=True, help="move all without waiting for the outcomes of a few")
@click.option(
    "--ignore-breaker", is_flag=True, help="move messages even while the breakers of their dependencies are open"
)
@click.option("--health", metavar="URL|NAME", help="wait while this check fails")
@click.option("--approval", metavar="NAME", help="wait until this person, or 'anyone', has approved it")
@click.option("--window", metavar="TIMES", help="move at this time of day only: '22:00-06:00 Europe/Zurich'")
@click.option("--reason", default="", help="why: stored with the plan, for `apply` to record in the audit log")
@click.option("--out", "file", type=click.Path(dir_okay=False, path_type=Path), help="write the plan to this file, too")
@at_store()
def plan(
    opened: OpenedStore,
    out: Output,
    selector: tuple[str, ...],
    chosen: Node,
    file: Path | None,
    ignore_breaker: bool,
    health: str | None,
    approval: str | None,
    window: str | None,
    reason: str,
    no_canary: bool,
    canary: int,
    **how: Any,
) -> None:
    """Show what a redrive would move, and how long it would take; move nothing.

    The plan contains exactly these messages, and how to move them. `redrive dlq apply PLAN --reason TEXT` starts it
    within 24 h. It moves five first. If they succeed, it moves the rest, slowly at first, and stops once more than 20 %
    fail. A plan of five or fewer moves all at once. --no-canary, --no-slow-start and --stop-if never switch that off.

    SELECTOR: as for `dlq list`; without one all dead messages. `lane:done task:crm.push age:<6h` plans to run kept done
    messages again, and `lane:scheduled task:crm.push` to make waiting ones due. `lane:ready task:crm.push --priority 0`
    plans to change waiting messages, and `--cancel` to cancel them. `-o ids` prints the id of the plan.
    """
    from ...flow.gates import Gates, is_url

    matching = selection(opened, selector, chosen, waiting=True)
    with understood():
        gates = Gates(not ignore_breaker, health, approval, window)
        how["canary"] = 0 if no_canary else canary
        made = matching.plan(gates=None if gates == Gates() else gates, note=reason, **how)
    if not made.total:
        raise _nothing(opened, matching, made.plan)
    if file is not None:
        _write_file(file, made.plan)
    holds = _holds(opened, made.plan)
    coming = _forecast(opened, made)
    shown = {**plan_record(made.plan), "held": [hold_record(hold) for hold in holds]}
    shown["forecast"] = plan_forecast_record(coming)
    why = holds_text(holds, opened.store.now_ms())
    out.record(shown, id="id", table=lambda: _lines(made.plan, why, coming))
    if health and not is_url(health) and opened.app is not None and health not in opened.app.healths:
        note(f"the app knows no health check '{health}': no worker of it would carry the run on")
    _note_next(made, file)


@click.command()
@click.argument("plan", metavar="PLAN|FILE")
@signature(required=False)
@click.option("--max-age", type=DURATION, help="refuse a plan that is older (default: 24h)")
@click.option("--watch", is_flag=True, help="watch the run until it is over, as `run watch` does")
@at_store()
def apply(
    opened: OpenedStore, out: Output, plan: str, reason: str, actor: str | None, max_age: float | None, watch: bool
) -> int:
    """Apply a plan: start its run. Any worker of the app runs it.

    PLAN is its id, or the file that `dlq plan --out` wrote. Exit 4, and nothing is moved, if the plan was altered,
    applied before or drawn up too long ago, or if neither it nor --reason says why. The run leaves single messages
    alone that have changed since, and counts them as `changed`. With --watch, exit 1 if the run stopped itself or was
    cancelled.
    """
    from ...triage.redrive.plan import MAX_AGE

    with _refusing(opened):
        handle = _found(opened, plan)
    with _refusing(opened, handle.id):
        why = reason or handle.plan.settings.note
        started = handle.start(reason=why, actor=actor, max_age=MAX_AGE if max_age is None else max_age)
    if watch:
        from .run import watched

        return watched(opened, out, started)
    view = started.view()
    record = run_record(view)
    brief = {name: record[name] for name in ("id", "state", *COUNTS, "selector")}
    out.record(record, id="id", table=lambda: field_lines(brief))
    note("started: any worker of the app carries it on; see: " + onward(f"run watch {view.id}"))
    return DONE


COMMANDS = (plan, apply)


def _holds(opened: OpenedStore, plan: Plan) -> Sequence[Hold]:
    """Return the holds that will apply to the plan's messages once they are moved."""
    from ...status import Reasons

    return Reasons(opened.store, opened.app).of_plan(plan)


def _forecast(opened: OpenedStore, made: PlanHandle) -> PlanForecast | None:
    """Return what the plan's run will do; kept with the plan, for `redrive forecast score`."""
    from ...simulate import foretell

    return foretell(opened.store, opened.app, made)


def _lines(plan: Plan, why: str = "", coming: PlanForecast | None = None) -> Iterator[str]:
    """Yield lines about a plan: the messages that it moves or leaves out, its settings and its duration; `why` says
    what will hold its messages, `coming` what its run will do."""
    shown = {"plan": plan.id, "chosen by": plan.selector or "all that is dead"}
    would, ages = WOULD[plan.settings.kind], "at rest for" if plan.settings.kind == "redrive" else "due in"
    shown[would] = f"{plan.total:,} in about {show_duration(plan.eta_s)}" if plan.total else "nothing"
    some = {"queues": plan.by_queue, "tasks": plan.by_task, ages: plan.by_age, "left out": plan.excluded}
    shown |= {name: listed(counts, 5) for name, counts in some.items() if counts}
    shown["how"] = "; ".join(settings_words(plan.settings))
    if plan.lasting:
        shown["undo"] = f"not of {plan.lasting:,}, in groups or batches, which go on without them"
    if plan.dependencies:
        shown["calls"] = ", ".join(sorted(set(plan.dependencies.values())))
    if why:
        shown["held by"] = why
    if coming is not None:
        shown["forecast"] = "; ".join(plan_words(coming))
    if plan.settings.note:
        shown["why"] = plan.settings.note
    yield from field_lines({name: one_line(text) for name, text in shown.items()})


def _write_file(file: Path, plan: Plan) -> None:
    try:
        with output(file, shared=is_shared()) as out:
            out.write(msgspec.json.format(msgspec.json.encode(plan_record(plan)), indent=2) + b"\n")
    except OSError as error:
        what = f"{file} cannot be written: {error.strerror or error}"
        raise Failure(
            what,
            f"the plan is kept all the same, as {plan.id}",
            onward(_apply(plan.id, "" if plan.settings.note else "…")),
        ) from error


def _apply(plan: str, reason: str = "…") -> str:
    return f"dlq apply {shlex.quote(plan)}" + (f" --reason '{reason}'" if reason else "")


def _nothing(opened: OpenedStore, matching: Selection, plan: Plan) -> Failure:
    """Return the failure that reports an empty plan: no message matches the selection, or all are left out."""
    if not plan.excluded:
        return here(opened).matched(matching, "planned")
    why = f"left out: {listed(plan.excluded, 5)}"
    next = "dlq list --quarantine" if set(plan.excluded) == {QUARANTINED} else "dlq groups"
    return Failure(
        f"nothing was planned: all {sum(plan.excluded.values()):,} that match are left out", why, onward(next)
    )


def _note_next(made: PlanHandle, file: Path | None) -> None:
    apply = _apply(str(file or made.id), "" if made.plan.settings.note else "…")
    note("nothing was moved; next: " + onward(apply))


@contextmanager
def _refusing(opened: OpenedStore, id: str = "") -> Iterator[None]:
    """Turn PlanRefused into a Failure with the next command. `id` is the refused plan's, if known."""
    try:
        yield
    except PlanRefused as error:
        next, what, why = f"{program()} dlq plan --help", error.what, error.why
        if error.word == "unknown":
            what, why = f"{what} in {opened.url}", f"a plan of another store is not known here, and {why}"
        elif error.word == "reason":
            next = completed("--reason", "the CRM is up again")
        elif error.word == "applied":
            next = onward(f"run show {id}")
        raise Failure(what, why, next, REFUSED) from error


def _found(opened: OpenedStore, plan: str) -> PlanHandle:
    id = plan if Path(plan).is_file() else run_id(opened, plan)
    return DeadLetters(opened.store, opened.app).plan(id) if is_id(id) else _of_file(opened, plan)


def _of_file(opened: OpenedStore, given: str) -> PlanHandle:
    """Return the plan that the file `given` names. Raises Failure if there is no such file, PlanRefused if it differs
    from the stored plan."""
    file = Path(given)
    try:
        content = msgspec.json.decode(file.read_bytes()[:_FILE_MAX], type=dict[str, Any])
        id, _ = content["id"], content["digest"]
    except OSError as error:
        why = f"there is neither a plan of this id nor a file that can be read: {error.strerror or error}"
        raise Failure(f"which plan is {given}?", why, f"{program()} dlq plan --help", USAGE) from error
    except (ValueError, KeyError) as error:
        raise PlanRefused(
            f"{file} is no plan, or was altered", "it is not as dlq plan --out writes it", "altered"
        ) from error
    handle = DeadLetters(opened.store, opened.app).plan(str(id))
    own = msgspec.json.decode(msgspec.json.encode(plan_record(handle.plan)))
    for name in ("held", "forecast"):  # what `dlq plan -o json` adds to the plan
        content.pop(name, None)
    altered = [name for name, value in content.items() if own.get(name, ...) != value]
    if altered:
        why = f"{', '.join(altered)} is not as the plan has it; draw up another, to change one"
        raise PlanRefused(f"{file} was altered", why, "altered")
    return handle
