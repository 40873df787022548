"""Run now: make messages due that wait for their time, by hand, and say what holds those that still do not run."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..audit import Audit
from ..duration import show
from ..message import Hasten, Lane, Message, Swap
from ..registry import Registry
from ..store import Store
from .hold import Hold
from .reasons import Reasons

WORDS = {"due": "due now", "held": "held", "running": "running already", "too_late": "at rest", "unknown": "unknown"}


class RunNow(Struct, frozen=True):
    """What became of one message: `result` is `due`, `held`, `running`, `too_late` (it is dead or done) or `unknown`.

    `text` says it in words, for `held` with what holds it, as in `holds`. `was_due_ms` is when it was due before, if
    that was changed.
    """

    id: str
    result: str
    text: str
    was_due_ms: int | None = None
    holds: tuple[Hold, ...] = ()


def run_now(
    store: Store, app: Registry | None, ids: Sequence[str], *, actor: str | None = None, reason: str = ""
) -> list[RunNow]:
    """Make messages due that wait for their time, in one commit with one entry in the audit log; one answer per id.

    Attempts, history and priority stay. A pause and a group hold a message that is due, too; one that flow control
    deferred keeps its time, which may be a slot that it was granted. Raises ConfigError, StoreError, Unsupported
    without `traits.hastens`.
    """
    if not store.traits.hastens:
        store.triage([], Hasten())  # raises Unsupported, with the store's own reason
    named, now_ms = list(dict.fromkeys(ids)), store.now_ms()
    before = {message.id: message for message in store.find(named) if message is not None}
    waiting = [message for message in before.values() if _waits(message, now_ms) and message.deferral is None]
    moved = _hasten(store, waiting, actor, reason) if waiting else {}
    after = dict(zip(named, store.find(named), strict=True))
    reasons = Reasons(store, app)
    answers = {id: _answer(id, after[id], moved.get(id), reasons) for id in named}
    return [answers[id] for id in ids]


def told(answers: Sequence[RunNow]) -> str:
    """Return the answers as one line; that of a single message says what holds it."""
    if len(answers) == 1:
        return answers[0].text
    counts = {word: sum(answer.result == result for answer in answers) for result, word in WORDS.items()}
    return "; ".join(f"{count:,} {word}" for word, count in counts.items() if count)


def _waits(message: Message, now_ms: int) -> bool:
    return message.lane is Lane.READY and (message.due_ms or 0) > now_ms


def _hasten(store: Store, waiting: Sequence[Message], actor: str | None, reason: str) -> dict[str, int]:
    """Make the messages due; return those that still waited, with their due times before."""
    audit, ids = Audit(store), [message.id for message in waiting]
    left_s = [((message.due_ms or 0) - store.now_ms()) // 1000 for message in waiting]
    text = f"{show(max(0, left_s[0]))} before its time" if len(ids) == 1 else ""
    entry = audit.by_hand("run-now", "", actor, reason, text, ids=ids)

    def write(swaps: list[Swap]) -> list[bool]:
        return store.triage([message.handle for message in waiting], Hasten(), swaps=swaps)

    words = audit.beside(entry, write)
    moved = {m.id: m.due_ms or 0 for m, word in zip(waiting, words, strict=True) if word}
    if len(moved) < len(ids):
        audit.amend(entry, ids=list(moved))
    return moved


def _answer(id: str, message: Message | None, was_due_ms: int | None, reasons: Reasons) -> RunNow:
    if message is None or message.lane is not Lane.READY:
        if was_due_ms is not None:  # a worker took it since
            return RunNow(id, "due", WORDS["due"], was_due_ms)
        if message is None:
            return RunNow(id, "unknown", "no message has this id, or it is done: done messages are deleted")
        if message.lane is Lane.LEASED:
            return RunNow(id, "running", WORDS["running"])
        return RunNow(id, "too_late", f"it is {message.state_at(reasons.now_ms)}")
    if holds := tuple(hold for hold in reasons.of(message) if hold.kind != "turn"):
        word = "held" if was_due_ms is None else "due now, and held"
        return RunNow(id, "held", f"{word}: {holds[0].line(reasons.now_ms)}", was_due_ms, holds)
    early = "" if was_due_ms is None else f", {show(max(0, was_due_ms - reasons.now_ms) // 1000)} before its time"
    return RunNow(id, "due", f"{WORDS['due']}{early}", was_due_ms)
