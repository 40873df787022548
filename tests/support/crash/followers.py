"""The worker that test_follow_ups starts and kills: `python -m tests.support.crash.followers follower PLAN`, and the
check that each ack and its follow-ups, each death and its compensation, are both there or neither.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from tests.support.crash.ledger import Journal, everything, handled, opened, read, url_of
from tests.support.crash.programs import Plan, hook

import redrive
from redrive import Context
from redrive.message import Lane, Message

KINDS = ("fan", "doomed", "fan_thread", "tired", "chain", "shaky")
MOURNED = {"doomed": "mourn", "tired": "undo"}  # the kinds that die, and the task that their death enqueues
WORKED, RESTING = "worked", "resting"  # the queues: what is put to the second stays there
LARGE = "x" * 6000  # more than a page, so that a commit is several writes


def make_app(place: Path, journal: Journal) -> redrive.App:
    """Every run writes down its start, which follow-ups it made, and its end."""
    app = redrive.App(url_of(place))
    soon = redrive.Retry(max_attempts=2, backoff=redrive.Backoff.fixed("10ms"))

    def begin(c: Context) -> None:
        note = f"{c.message.task}<{c.message.causation_id or ''}"
        journal.write("start", c.message_id, attempt=c.attempt, crashes=c.crashes, fence=c.fence, note=note)

    def promise(c: Context, ref: redrive.enqueue.Ref) -> None:
        journal.write("promise", c.message_id, fence=c.fence, note=ref.id)

    def end(c: Context) -> None:
        journal.write("end", c.message_id, fence=c.fence)

    @app.task(name="child", queue=WORKED, ctx=True)
    async def child(c: Context, n: int, text: str = "") -> None:
        begin(c)

    def enqueue_some(c: Context, n: int) -> None:
        promise(c, c.enqueue(child, n))
        promise(c, c.enqueue(child.using(queue=RESTING, group=f"tenant-{n % 3}"), n, LARGE))
        promise(c, c.enqueue(child.using(queue=RESTING, key=f"key-{n}"), n))

    def enqueue_more(c: Context, n: int) -> None:
        promise(c, c.enqueue(child.using(queue=RESTING, delay="1h", priority=0), n))
        promise(c, c.enqueue(child.using(group=f"tenant-{n % 3}", priority=3), n))

    @app.task(name="fan", queue=WORKED, ctx=True)
    async def fan(c: Context, n: int, pause_ms: int) -> None:
        begin(c)
        enqueue_some(c, n)
        await asyncio.sleep(pause_ms / 1000)
        enqueue_more(c, n)
        end(c)

    @app.task(name="fan_thread", queue=WORKED, ctx=True)
    def fan_thread(c: Context, n: int, pause_ms: int) -> None:
        begin(c)
        other = threading.Thread(target=enqueue_some, args=(c, n))
        other.start()
        time.sleep(pause_ms / 1000)
        enqueue_more(c, n)
        other.join()
        end(c)

    @app.task(name="shaky", queue=WORKED, ctx=True, retry=soon)
    async def shaky(c: Context, n: int, pause_ms: int) -> None:
        begin(c)
        enqueue_some(c, n)
        await asyncio.sleep(pause_ms / 1000)
        if c.attempt == 1:
            raise ConnectionError("the first attempt always fails")
        end(c)

    @app.task(name="chain", queue=WORKED, ctx=True)
    def chain(c: Context, n: int, pause_ms: int) -> None:
        begin(c)
        time.sleep(pause_ms / 1000)
        if n > 0:
            promise(c, c.enqueue(chain, min(n, 3) - 1, pause_ms))
        end(c)

    @app.task(name="mourn", queue=RESTING)
    def mourn(n: int, pause_ms: int) -> None: ...

    @app.task(name="undo", queue=WORKED, ctx=True)
    async def undo(c: Context, n: int, pause_ms: int) -> None:
        begin(c)

    @app.task(name="doomed", queue=WORKED, ctx=True, on_dead=mourn)
    async def doomed(c: Context, n: int, pause_ms: int) -> None:
        begin(c)
        promise(c, c.enqueue(child, n))
        raise redrive.Reject("never wanted")

    @app.task(name="tired", queue=WORKED, ctx=True, retry=soon, on_dead=undo)
    def tired(c: Context, n: int, pause_ms: int) -> None:
        begin(c)
        promise(c, c.enqueue(child, n))
        time.sleep(pause_ms / 1000)
        raise ConnectionError("fails every time")

    return app


def fill(place: Path, count: int, pause_ms: int = 4) -> dict[str, str]:
    """Put so many parents, the kinds in turn; their kinds by id."""
    journal = Journal(handled(place))
    app = make_app(place, journal)
    refs = app.enqueue_many(app.tasks[KINDS[n % len(KINDS)]].draft(n, pause_ms) for n in range(count))
    app.store.close()
    journal.close()
    return {ref.id: ref.task for ref in refs}


class Books:
    """What the journal says in `place` of parents and their follow-ups, and what the store holds of them now."""

    def __init__(self, place: Path, kinds: Mapping[str, str]) -> None:
        self.kinds = dict(kinds)  # of all parents; those of a chain are added
        self.children: dict[str, dict[str, str]] = defaultdict(dict)  # what there is or was: parent -> child -> task
        self.promised: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))  # parent -> fence -> ids
        self.ended: dict[str, set[int]] = defaultdict(set)  # fences of the runs that came to their end
        self.points = [r.note for r in read(handled(place)) if r.what == "killing"]
        store = opened(place)
        self.damage = store.check()
        self.stored = {m.id: m for m in everything(store)}
        store.close()
        for message in self.stored.values():
            self._there(message.id, message.task, message.causation_id)
        for record in read(handled(place)):
            match record.what:
                case "start":
                    task, _, parent = record.note.partition("<")
                    self._there(record.id, task, parent)
                case "promise":
                    self.promised[record.id][record.fence].add(record.note)
                case "end":
                    self.ended[record.id].add(record.fence)

    def _there(self, id: str, task: str, parent: str | None) -> None:
        if parent:
            self.children[parent][id] = task
        if task == "chain":
            self.kinds[id] = task

    def problems(self) -> list[str]:
        """Empty when every ack and death came with all that follows from it, and nothing came without."""
        found = [f"check: {line}" for line in self.damage]
        for id, kind in self.kinds.items():
            check = self._death if kind in MOURNED else self._ack
            found += [f"{kind} message {id} {problem}" for problem in check(id, kind, self.stored.get(id))]
        strangers = self.children.keys() - self.kinds.keys()
        return found + [f"message {id} has follow-ups, and is no parent" for id in strangers]

    def _ack(self, id: str, kind: str, message: Message | None) -> Iterator[str]:
        found = set(self.children[id])
        if message is not None:
            if message.lane not in (Lane.READY, Lane.LEASED):
                yield f"is {message.lane}"
            if found:
                yield f"is still there, and so are {len(found)} follow-ups"
            return
        acked = [self.promised[id][fence] for fence in self.ended[id]]
        if not acked:
            yield "is gone without a run that ended"
        elif found not in acked:
            yield f"is gone with {len(found)} follow-ups; runs of it that ended made {[*map(len, acked)]}"

    def _death(self, id: str, kind: str, message: Message | None) -> Iterator[str]:
        found = [*self.children[id].values()]
        if message is None:
            yield "is gone"
        elif message.lane is Lane.DEAD and found != [MOURNED[kind]]:
            yield f"is dead, and its follow-ups are {found}; expected {MOURNED[kind]}"
        elif message.lane is not Lane.DEAD and found:
            yield f"is {message.lane}, though {found} followed"

    def left(self) -> int:
        """How many messages are still to be worked."""
        return sum(m.queue == WORKED and m.lane in (Lane.READY, Lane.LEASED) for m in self.stored.values())

    def settled(self) -> int:
        """How many parents are done or dead."""
        return sum((m := self.stored.get(id)) is None or m.lane is Lane.DEAD for id in self.kinds)


def work(plan: Plan) -> None:
    place = Path(plan.place)
    journal = Journal(handled(place))
    journal.write("up")
    app = make_app(place, journal)
    store = app.store
    hook(store, journal, plan)
    app.run_worker({WORKED: plan.concurrency}, prefetch=plan.prefetch, lease=plan.lease, drain=plan.drain)
    store.close()
    journal.write("exit")


if __name__ == "__main__":
    assert sys.argv[1] == "follower"
    work(msgspec.json.decode(sys.argv[2], type=Plan))
