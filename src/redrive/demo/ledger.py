"""Prove the demo's result, in a process of its own: `python -m redrive.demo.ledger LOG STORE SENT FATES [QUEUE]`.

STORE is a URL, or `-` for the one in REDRIVE_URL; with QUEUE, only that queue of the store is read.

It joins the endpoint's log with the list of put messages and with the store, by Idempotency-Key. The ledger balances if
every event was accepted at least once or is dead with its reason, and each duplicate has a cause. The worker's log
(FATES: the outcomes of attempts) is used only to explain duplicates. Exit code 0 if it balances, 1 if not.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ..duration import parse_time
from ..message import Filter, Lane, Message
from ..store import Store
from ..stores import open_store
from .endpoint import EndpointLine

T = TypeVar("T")
SHOWN_MAX = 5


class SentEvent(Struct, frozen=True):
    """The id of an enqueued message, and of its event."""

    id: str
    event: str


class Fate(Struct, frozen=True):
    """The outcome of one attempt, as the worker's log has it."""

    id: str
    outcome: str
    time: str
    error: str = ""
    text: str = ""

    @property
    def at_ms(self) -> int:
        return round(parse_time(self.time).timestamp() * 1000)


class ProofVerdict(Struct, frozen=True, kw_only=True):
    """The result of the proof. `tries`: number of events by number of requests. `causes`: duplicates by cause."""

    events: int
    delivered: int
    dead: int
    requests: int
    tries: dict[int, int]
    reasons: dict[str, int]
    duplicates: int  # number of events that were accepted more than once
    repeats: int  # number of acceptances beyond the first, over all events
    causes: dict[str, int]  # number of repeats by their cause; the sum is `repeats`
    dead_but_accepted: int
    problems: list[str]

    @property
    def balanced(self) -> bool:
        return not self.problems


def judge(
    seen: Sequence[EndpointLine], sent: Sequence[SentEvent], fates: Sequence[Fate], messages: Sequence[Message]
) -> ProofVerdict:
    """Join the requests, the sent events, the outcomes and the stored messages, and return the verdict."""
    by_key: dict[str, list[EndpointLine]] = defaultdict(list)
    for each in seen:
        if each.key or each.event is not None:
            by_key[each.key].append(each)
    ends: dict[str, list[Fate]] = defaultdict(list)
    for fate in fates:
        ends[fate.id].append(fate)
    kept = {message.id: message for message in messages}
    known = {one.id: one.event for one in sent}
    delivered = [one for one in sent if one.id not in kept]
    dead = [one for one in sent if one.id in kept and kept[one.id].lane in (Lane.DEAD, Lane.QUARANTINE)]
    accepted = {one.id: [each for each in by_key[one.id] if each.accepted] for one in sent}
    causes = Counter(cause for one in sent for cause in _causes(accepted[one.id], ends[one.id]))
    return ProofVerdict(
        events=len(sent),
        delivered=sum(bool(accepted[one.id]) for one in delivered),
        dead=len(dead),
        requests=sum(map(len, by_key.values())),
        tries=dict(sorted(Counter(len(by_key[one.id]) for one in delivered).items())),
        reasons=dict(Counter(_reason(kept[one.id]) for one in dead).most_common()),
        duplicates=sum(len(times) > 1 for times in accepted.values()),
        repeats=sum(len(times) - 1 for times in accepted.values() if times),
        causes=dict(causes.most_common()),
        dead_but_accepted=sum(bool(accepted[one.id]) for one in dead),
        problems=_problems(by_key, known, sent, kept, accepted, causes),
    )


UNEXPLAINED = "no cause found"


def _causes(accepted: Sequence[EndpointLine], ends: Sequence[Fate]) -> Iterable[str]:
    """Yield the cause of each acceptance of an event but the last: why the event was sent again afterwards."""
    for each in accepted[:-1]:
        # Requests of one message never overlap, so the first outcome after this request is that of its attempt.
        end = next((fate for fate in ends if fate.at_ms >= each.at_ms), None)
        if each.lost is not None:
            yield each.lost
        elif end is not None and end.outcome != "done" and not end.error.endswith("HTTPStatusError"):
            yield f"the answer did not reach the sender ({end.error.rpartition('.')[2]})"
        else:
            yield UNEXPLAINED


def _reason(message: Message) -> str:
    last = message.faults[-1].text if message.faults else ""
    return f"{message.reason}: {last.partition(' from ')[0]}"


def _problems(
    by_key: dict[str, list[EndpointLine]],
    known: dict[str, str],
    sent: Sequence[SentEvent],
    kept: dict[str, Message],
    accepted: dict[str, list[EndpointLine]],
    causes: Counter[str],
) -> list[str]:
    waits = [one.event for one in sent if one.id in kept and kept[one.id].lane in (Lane.READY, Lane.LEASED)]
    mute = [one.event for one in sent if one.id in kept and kept[one.id].rested_ms and not kept[one.id].reason]
    strange = [each for requests in by_key.values() for each in requests if each.key not in known]
    mixed = [
        e for key, requests in by_key.items() for e in requests if key in known and e.event not in (None, known[key])
    ]
    problems = {
        "lost: neither accepted by the endpoint nor dead": [
            o.event for o in sent if o.id not in kept and not accepted[o.id]
        ],
        "unfinished: still waiting in the store": waits,
        "dead without a reason": mute,
        "in the store, but never sent": [id for id in kept if id not in known],
        "sent twice under two keys": [event for event, n in Counter(known.values()).items() if n > 1],
        "unexpected: the endpoint saw a key that was never sent": [each.key or "(no key)" for each in strange],
        "mixed up: the endpoint saw another event under a key": [str(each.event) for each in mixed],
        f"accepted again, {UNEXPLAINED}": [str(causes[UNEXPLAINED])] if causes[UNEXPLAINED] else [],
        "refused for a wrong signature": [
            str(e.event) for requests in by_key.values() for e in requests if e.answer == "401"
        ],
    }
    return [f"{name}: {_some(ids)}" for name, ids in problems.items() if ids]


def _some(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - SHOWN_MAX} more" if len(ids) > SHOWN_MAX else ""
    return ", ".join(ids[:SHOWN_MAX]) + more


def lines(path: str | Path, kind: type[T]) -> list[T]:
    """Return the lines of a log decoded as `kind`, without an unfinished last line."""
    decode = msgspec.json.Decoder(kind).decode
    return [decode(line) for line in Path(path).read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def messages_of(store: Store, queue: str | None = None) -> list[Message]:
    """Return all messages of the store, or of one queue."""
    messages: list[Message] = []
    cursor = None
    while True:
        page = store.peek(None, where=Filter(queue=queue), limit=500, cursor=cursor)
        messages += page.messages
        cursor = page.cursor
        if cursor is None:
            return messages


def read_fates(path: str | Path) -> list[Fate]:
    """Return the outcomes of attempts in the worker's log, without notices."""
    return [msgspec.convert(line, Fate) for line in lines(path, dict) if "outcome" in line]


def main(arguments: Sequence[str]) -> int:
    if len(arguments) not in (4, 5):
        print("usage: python -m redrive.demo.ledger LOG STORE SENT FATES [QUEUE]", file=sys.stderr)
        return 2
    log, url, sent, fates, queue = [*arguments, None][:5]
    store = open_store(os.environ["REDRIVE_URL"] if url == "-" else str(url))
    try:
        verdict = judge(
            lines(str(log), EndpointLine),
            lines(str(sent), SentEvent),
            read_fates(str(fates)),
            messages_of(store, queue),
        )
    finally:
        store.close()
    report: dict[str, Any] = {**msgspec.to_builtins(verdict), "balanced": verdict.balanced}
    print(msgspec.json.format(msgspec.json.encode(report)).decode())
    return 0 if verdict.balanced else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
