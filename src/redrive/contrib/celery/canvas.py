"""Celery's canvas: chains, groups and chords, in each other. Pure.

A task's next step is enqueued with its ack. A chord is a message of the task `celery.canvas`, which runs when the step
before it is done, and enqueues the tasks of the chord's header as members of a batch. The batch's callback, again a
message of `celery.canvas`, enqueues the body. `translation` makes these messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .envelope import ChordEnd, Signature, signatures

TIMES = ("countdown", "eta", "expires")  # the options of a group or chord that hold for its tasks


class CanvasStep(Struct, frozen=True, omit_defaults=True):
    """What a message of `celery.canvas` does: `run` a chord with what the step before it returned, `join` the results
    of a chord and run its body with them, or `save` the results so far of a chord that waits for a dead task.

    `chain` has the steps after it, the next one last; `end` is the chord that waits for the result.
    """

    act: Literal["run", "join", "save"]
    signature: Signature | None = None
    args: Sequence[Any] = ()
    chain: Sequence[Signature] = ()
    end: ChordEnd | None = None


def steps_of(chain: Signature) -> list[Signature]:
    """Return the steps of a chain as Celery would run them: without empty groups, chains in the chain laid flat, and a
    group before another step made a chord of both."""
    steps = list[Signature]()
    for step in _flat(chain):
        if steps and steps[-1].subtask_type == "group":
            both = {"header": msgspec.to_builtins(steps[-1]), "body": msgspec.to_builtins(step)}
            steps[-1] = Signature("celery.chord", kwargs=both, subtask_type="chord")
        else:
            steps.append(step)
    return steps


def _flat(chain: Signature) -> Iterator[Signature]:
    steps = [step for step in signatures(chain.kwargs["tasks"]) if step.subtask_type != "group" or tasks_of(step)]
    for n, step in enumerate(steps):
        if n == 0 and chain.args and not step.immutable:
            step = replace(step, args=(*chain.args, *step.args))
        if n == len(steps) - 1:
            step = linked(step, chain.options)
        yield from _flat(step) if step.subtask_type == "chain" else [step]


def tasks_of(group: Signature) -> list[Signature]:
    """Return the tasks of a group, those of groups in it too, each with the group's times; without empty chains."""
    tasks = list[Signature]()
    for one in signatures(group.kwargs["tasks"]):
        if one.subtask_type != "chain" or one.kwargs["tasks"]:
            tasks += tasks_of(one) if one.subtask_type == "group" else [one]
    return [timed(task, group.options) for task in tasks]


def header_of(chord: Signature) -> list[Signature]:
    """Return the tasks of a chord's header."""
    header = chord.kwargs["header"]
    tasks = [header] if isinstance(header, Mapping) else header
    return tasks_of(Signature("celery.group", kwargs={"tasks": tasks}, options=chord.options))


def body_of(chord: Signature) -> Signature:
    """Return the body of a chord, with the links of the chord."""
    (body,) = signatures(chord.kwargs["body"])
    expires = {"expires": chord.options.get("expires")}
    return linked(timed(body, expires), chord.options)


def timed(signature: Signature, options: Mapping[str, Any]) -> Signature:
    times = {name: options[name] for name in TIMES if options.get(name) is not None}
    return replace(signature, options={**signature.options, **times}) if times else signature


def linked(signature: Signature, options: Mapping[str, Any]) -> Signature:
    links = {
        name: [msgspec.to_builtins(one) for one in (*signatures(signature.options.get(name)), *signatures(more))]
        for name in ("link", "link_error")
        if (more := options.get(name))
    }
    return replace(signature, options={**signature.options, **links}) if links else signature


def results(signature: Signature) -> int:
    """Return how many results a chord gets of this task of its header."""
    match signature.subtask_type:
        case "group":
            return sum(map(results, tasks_of(signature)))
        case "chain":
            steps = steps_of(signature)
            return results(steps[-1]) if steps else 0
        case "chord":
            return results(body_of(signature))
        case _:
            return 1


def results_at_once(signature: Signature, chain: Sequence[Signature] = ()) -> int:
    """Return how many of these results are those of tasks that run, one by one, from this message on: not those of what
    runs after another chord, which are announced by its body."""
    steps = [*reversed(chain)] if signature.subtask_type is None else [signature, *reversed(chain)]
    flat = [one for step in steps for one in (steps_of(step) if step.subtask_type == "chain" else [step])]
    if any(step.subtask_type is not None for step in flat[:-1]):
        return 0
    last = flat[-1] if flat else signature
    match last.subtask_type:
        case "group":
            return sum(map(results_at_once, tasks_of(last)))
        case "chord":
            return 0
        case _:
            return 1


def leaf(signature: Signature) -> str:
    """Return the name of the first task in it, to display it and to choose its queue."""
    while signature.subtask_type in ("group", "chain", "chord"):
        kwargs = signature.kwargs
        inner = signatures(kwargs.get("tasks") or kwargs.get("body"))
        if not inner:
            break
        signature = inner[0]
    return signature.task


def arranged(found: Mapping[str, Any]) -> list[Any]:
    """Return results by their places, such as "0" and "1.0", in the order of the list that a body gets."""
    tree: dict[int, Any] = {}
    inner: dict[int, dict[str, Any]] = {}
    for place, value in found.items():
        first, _, rest = place.partition(".")
        if rest:
            inner.setdefault(int(first), {})[rest] = value
        else:
            tree[int(first)] = value
    tree |= {n: arranged(part) for n, part in inner.items()}
    return [tree[n] for n in sorted(tree)]
