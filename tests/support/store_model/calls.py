"""Calls on a store, each drawn, made, and compared with what the model answers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace
from tests.support.store_model import draws
from tests.support.store_model.draws import BEFORE, Ended, Exchanged, Wanted
from tests.support.store_model.kept import Kept
from tests.support.store_model.world import Draw, World

from redrive.message import (
    BatchMark,
    Draft,
    Edit,
    Exchange,
    Handle,
    Hasten,
    Lane,
    Postpone,
    PutResult,
    Readmit,
    Redrive,
    Replace,
    Return,
    Started,
    Swap,
    Verdict,
    WaitFields,
)

CARRIED = 12  # exported messages that may be restored


class Calls(World):
    """Each public method draws and makes one call, or a few that belong together."""

    patience_ms: ClassVar[int] = 20_000  # only a wait that misses what is due lasts so long

    # -- putting, settling, claiming

    def put(self, draw: Draw) -> None:
        drafts = [self._draft(one) for one in draw(draws.several_sent)][: self.traits.batch_max]
        swaps = self._swaps(draw(draws.outer_swaps))
        answer = self._call("put", drafts, swaps=swaps)

        def work() -> Any:
            puts = self.plain.put(drafts, self.now, answer if isinstance(answer, list) else None)
            self.plain.admit(self.now)
            self.plain.swap_all(swaps, self.now)
            return puts

        expected = self._expect(work)
        if isinstance(answer, list) and isinstance(expected, list):
            answer = [_however_parked(put, drafts) for put, drafts in zip(answer, drafts, strict=True)]
            expected = [_however_parked(put, drafts) for put, drafts in zip(expected, drafts, strict=True)]
        assert _same(answer, expected), f"put answered {answer}, expected {expected}"
        if isinstance(answer, list):
            self._remember(put.id for put in answer)

    def claim(self, draw: Draw) -> None:
        self._exchange((), draw(draws.several_wanted), ())

    def settle(self, draw: Draw) -> None:
        self._exchange(draw(draws.several_ended), (), draw(draws.outer_swaps))

    def settle_and_claim(self, draw: Draw) -> None:
        self._exchange(draw(draws.several_ended), draw(draws.several_wanted), draw(draws.outer_swaps))

    def _exchange(self, ended: Sequence[Ended], wanted: Sequence[Wanted], exchanged: Sequence[Exchanged]) -> None:
        given = self._pick([one.which for one in ended])
        pairs = [(one, self._settlement(one, end)) for one, end in zip(given, ended, strict=False)]
        asks = [self._ask(one) for one in wanted]
        swaps = self._swaps(exchanged)
        answer = self._call("exchange", [s for _, s in pairs], asks, swaps=swaps)

        def work() -> Any:
            settled = self.plain.settle(pairs, self.now)
            self.plain.swap_all(swaps, self.now)
            if isinstance(answer, Exchange):
                self.given += self.plain.claim(asks, answer.deliveries, self.now)
            return settled

        expected = self._expect(work)
        if isinstance(answer, Exchange):
            assert answer.settled == expected, f"settled {answer.settled}, expected {expected}"
            named = self.plain.named if self.traits.batches else ()
            assert answer.batches == named, f"the batches are {answer.batches}, expected {named}"
            assert not answer.clogged, f"{answer.clogged} are clogged, but nothing lies beyond what a claim looks at"
            self._remember(draft.id for _, s in pairs for draft in s.follow_ups if draft.id is not None)
        else:
            assert _same(answer, expected), f"exchange answered {answer}, expected {expected}"

    # -- leases

    def extend(self, draw: Draw) -> None:
        given = self._pick(draw(draws.ordinals))
        lease_ms, first = draw(draws.leases), draw(draws.alone)
        for alone in (first, False) if draw(draws.twice) else (first,):
            answer = self._call("extend", [one.delivery.receipt for one in given], lease_ms=lease_ms, alone=alone)
            expected = self.plain.extend(given, lease_ms, alone, self.now)
            assert answer == expected, f"extend answered {answer}, expected {expected}"

    def checkpoint(self, draw: Draw) -> None:
        for given in self._pick([draw(draws.ordinal)]):
            if not self.traits.fenced and self.plain.held(given) is None:
                continue
            state = draw(draws.states)
            answer = self._call("checkpoint", given.delivery.receipt, state)
            expected = self.plain.checkpoint(given, state)
            assert answer == expected, f"checkpoint answered {answer}, expected {expected}"

    def crash(self, draw: Draw) -> None:
        """A worker is dead, and what it had is taken back."""
        leased = [k for k in self.plain.kept.values() if k.lane is Lane.LEASED]
        worker = leased[draw(draws.ordinal) % len(leased)].worker or draw(draws.workers)
        mine, which = [k for k in leased if k.worker == worker], draw(draws.started)
        started = None if which is None else [self._started(mine[n % len(mine)], n) for n in which if mine]
        fault = draw(draws.deaths)
        for known in (started, []) if draw(draws.twice) else (started,):
            answer = self._call("reclaim", worker, known, fault=fault)
            expected = self.plain.reclaim(worker, known, fault)
            assert answer == expected, f"reclaim answered {answer}, expected {expected}"

    def _started(self, k: Kept, n: int) -> Started:
        """That its worker began to run this claim of it, or (now and then) the one before it."""
        return Started(k.id, k.fence - (n == BEFORE))

    # -- time and handles

    def advance(self, draw: Draw) -> None:
        """The clock goes on; leases end."""
        by = draw(draws.advances)
        if isinstance(by, str):
            due_ms = self.plain.next_due_ms(self.now)
            by = 0 if due_ms is None else due_ms - self.now - (by == "just before")
        self.say(lambda: f"the clock goes on by {by} ms")
        self.clock.advance(by / 1000)

    def next_day(self, draw: Draw) -> None:
        """What was done a day ago is forgotten, unless it is kept for retention."""
        before = [k.id for k in self.plain.kept.values() if k.expires_ms is not None]
        ended = [batch for batch, looked in self.plain.batches.looked.items() if looked.expires_ms is not None]
        for by in ("1d", "2m"):
            self.clock.advance(by)
            self._call("exchange", [], [])
        assert self.store.find(before) == [None] * len(before), "a done message is never forgotten"
        assert not ended or not {*ended} & {*self.store.batch_ids()}, "an ended batch is never forgotten"

    def reopen(self, draw: Draw) -> None:
        self.store.close()
        self.handles.remove(self.store)
        self.handles.append(self.open_store(self.clock))
        self.store = self.handles[-1]

    def use_another_handle(self, draw: Draw) -> None:
        if len(self.handles) < 2:
            self.handles.append(self.open_store(self.clock))
        self.store = next(handle for handle in self.handles if handle is not self.store)

    def wait(self, draw: Draw) -> None:
        """A wait ends when something is due, and when it is nudged."""
        asks = [self._ask(one) for one in draw(draws.several_wanted)]
        due = any(ask.limit and self.plain.claimable(ask, self.now) for ask in asks)
        if not due:
            self.store.nudge()
        before = time.monotonic()
        self.store.wait(asks, timeout_ms=self.patience_ms)
        why = "something was due" if due else "it was nudged"
        assert time.monotonic() - before < self.patience_ms / 1000, f"wait({asks}) slept though {why}"

    # -- by hand

    def cancel(self, draw: Draw) -> None:
        ids = self._some_ids(draw(draws.few))
        answer = self._call("cancel", ids)
        expected = self.plain.cancel(ids, self.now)
        assert answer == expected, f"cancel answered {answer}, expected {expected}"

    def triage(self, draw: Draw) -> None:
        verdict, (first, *others), stale = draw(draws.verdicts), draw(draws.ordinals), draw(draws.stale)
        every = [*self.plain.kept.values()]
        fit = self._fit(verdict) or self._resting() or every
        chosen = [fit[first % len(fit)], *((every if n % 3 else fit)[-1 - n % len(fit)] for n in others)]
        if isinstance(verdict, Redrive) and verdict.delays_ms:
            verdict = replace(verdict, delays_ms=verdict.delays_ms[: len(chosen)])
        if isinstance(verdict, Postpone):
            chosen = [*{k.id: k for k in chosen}.values()]
            verdict = replace(verdict, dues_ms=tuple(self.now + verdict.dues_ms[0] + n for n in range(len(chosen))))
        if isinstance(verdict, Edit):
            chosen = [*{k.id: k for k in chosen}.values()]
            verdict = replace(verdict, to=tuple(self._at_times(to) for to in verdict.to[:1] for _ in chosen))
        self._judge(chosen, verdict, stale, self._swaps(draw(draws.outer_swaps)))
        if isinstance(verdict, Redrive) and verdict.run is not None and draw(draws.twice):
            self._judge(chosen, Return(verdict.run), None, [])

    def _at_times(self, to: WaitFields) -> WaitFields:
        deadline_ms = to.deadline_ms and self.now + to.deadline_ms
        return to._replace(deadline_ms=deadline_ms, due_ms=None if to.due_ms is None else self.now + to.due_ms)

    def replace(self, draw: Draw) -> None:
        resting = self._resting() or [*self.plain.kept.values()]
        chosen = resting[draw(draws.ordinal) % len(resting)]
        draft = self._draft(draw(draws.several_sent)[0], own_id=True)
        if draw(draws.twice):
            draft = replace(draft, task=chosen.sent.task, key=chosen.sent.key)
        self._judge([chosen], Replace(draft, "mended"), draw(draws.stale), self._swaps(draw(draws.outer_swaps)))

    def _judge(self, chosen: Sequence[Kept], verdict: Verdict, stale: str | None, swaps: Sequence[Swap]) -> None:
        handles = [_handle(Handle(k.id, k.redrives, k.lane), stale) for k in chosen]
        answer = self._call("triage", handles, verdict, swaps=swaps)
        expected = self._expect(lambda: self.plain.triage(handles, verdict, swaps, self.now))
        assert _same(answer, expected), f"triage answered {answer}, expected {expected}"
        if isinstance(verdict, Replace) and answer == [True]:
            self._remember([verdict.draft.id or ""])

    def _fit(self, verdict: Verdict) -> list[Kept]:
        """What the verdict is mostly for."""
        match verdict:
            case Return(run):
                moved = [k for k in self.plain.kept.values() if k.run == run and k.lane is Lane.READY]
                return [k for k in moved if k.attempt] or moved
            case Postpone(run, _, True):
                moved = [k for k in self.plain.kept.values() if k.run is not None and k.lane is Lane.READY]
                return [k for k in moved if k.run == run] or moved
            case Edit(run, _, True, True):
                ended = [k for k in self.plain.kept.values() if k.reason == "cancelled"]
                return [k for k in ended if (k.run or "").partition("@")[0] == run] or ended
            case Hasten() | Postpone() | Edit():
                return [k for k in self.plain.kept.values() if k.lane is Lane.READY]
            case Readmit():
                return [k for k in self._resting() if k.lane is Lane.QUARANTINE]
            case Redrive(run="replay"):
                return [k for k in self.plain.kept.values() if k.lane is Lane.DONE]
            case _:
                return self._resting()

    def carry(self, draw: Draw) -> None:
        """Some that rest are exported; of all that ever were, some are restored."""
        found = self.store.find([k.id for k in self._resting()])
        self.carried = [*self.carried, *(m for m in found if m is not None)][-CARRIED:]
        among = [m for m in self.carried if m.id not in self.plain.kept] or self.carried
        messages = [among[-1 - n % len(among)] for n in draw(draws.ordinals) if among]
        messages = [m for m in messages if not self.plain.batches.may_be_forgotten(m.batch, self.now)]
        answer = self._call("restore", messages)
        expected = self.plain.restore(messages, self.now)
        assert answer == expected, f"restore answered {answer}, expected {expected}"

    def configure(self, draw: Draw) -> None:
        self.set_rules(draw(draws.queues), draw(draws.settings))

    def set_rules(self, queue: str, said: Mapping[str, Any]) -> None:
        answer = self._call("configure", queue, **said)
        groups = {name: value for name, value in said.items() if name != "paused"}
        expected = self._expect(lambda: self.plain.configure(queue, said.get("paused"), self.now, **groups))
        assert _same(answer, expected), f"configure answered {answer}, expected {expected}"

    def configure_group(self, draw: Draw) -> None:
        queue, group, width, resume = (draw(pool) for pool in (draws.queues, draws.groups, draws.widths, draws.resumes))
        answer = self._call("configure_group", queue, group, width=width, resume=resume)
        expected = self._expect(lambda: self.plain.configure_group(queue, group, width, resume, self.now))
        assert _same(answer, expected), f"configure_group answered {answer}, expected {expected}"

    def retain(self, draw: Draw) -> None:
        queue, done, dead = draw(draws.queues), draw(draws.keeps), draw(draws.keeps)
        answer = self._call("retain", queue, done=done, dead=dead)
        found = self.store.find([*self.plain.kept])
        expected = tuple(
            self.plain.retain(queue, lane, keep, found, self.now)
            for lane, keep in ((Lane.DONE, done), (Lane.DEAD, dead))
        )
        self.plain.admit(self.now)
        assert answer == expected, f"retain answered {answer}, expected {expected}"

    def mark(self, draw: Draw) -> None:
        """Batches were looked at. Only one in which nothing can change may be forgotten."""
        marks: list[BatchMark] = []
        for one in draw(draws.several_marked):
            among = self.plain.batches.news() or sorted(self.plain.batches.looked)
            batch = among[one.which % len(among)]
            counts = self.plain.batches.looked[batch].counts
            ended = not (counts.open or counts.dead or counts.quarantine)
            if one.wrong is not None:
                counts = replace(counts, **{one.wrong: getattr(counts, one.wrong) + 1})
            marks.append(BatchMark(batch, counts, one.keep_ms if ended else None))
        assert self._call("mark_batches", marks) is None
        for mark in marks:
            self.plain.batches.mark(mark, self.now)

    def swap_cells(self, draw: Draw) -> None:
        swaps = self._swaps(draw(draws.several_exchanged))
        answer = self._call("cells.swap", swaps, durable=draw(draws.durable))
        expected = [self.plain.cells.swap(swap, self.now) for swap in swaps]
        assert answer == expected, f"swap answered {answer}, expected {expected}"


def _handle(handle: Handle, stale: str | None) -> Handle:
    match stale:
        case "redrives":
            return handle._replace(redrives=handle.redrives + 1)
        case "lane":
            return handle._replace(lane=Lane.DEAD if handle.lane is Lane.QUARANTINE else Lane.QUARANTINE)
        case _:
            return handle


def _however_parked(put: PutResult, draft: Draft) -> PutResult:
    """Of a group, whether it is ready or stands in line is seen when the commit is over."""
    waits = draft.group is not None and put.state in ("ready", "scheduled")
    return replace(put, state="ready") if waits else put


def _same(answer: Any, expected: Any) -> bool:
    if isinstance(answer, type) and isinstance(expected, type):
        return issubclass(answer, expected)
    return bool(answer == expected)
