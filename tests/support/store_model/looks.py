"""All that can be seen of a store, compared with the model."""

from __future__ import annotations

from msgspec.structs import replace
from tests.support.store_model import draws
from tests.support.store_model.world import REMEMBERED, Draw, World

from redrive.message import TREND_MS, BatchCounts, Filter, Lane, Message

HOUR_MS = 3_600_000


class Looks(World):
    """`peek` draws a filter; the others look at everything."""

    def peek(self, draw: Draw) -> None:
        lane, where, limit = draw(draws.lanes), draw(draws.filters), draw(draws.limits)
        if lane in (None, Lane.DONE):  # what is done shows no fault
            where = replace(where, error=None, fingerprint=None)
        if not self.traits.batches:
            where = replace(where, batch=None)
        times = [k.enqueued_ms if k.rested_ms is None else k.rested_ms for k in self.plain.kept.values()] or [self.now]
        at_ms = times[draw(draws.ordinal) % len(times)]
        since, until = (None if at is None else at_ms for at in (where.since_ms, where.until_ms))
        where = replace(where, since_ms=since, until_ms=until)
        seen = self._pages(lane, where, limit)
        for message in seen:
            assert message.id in self.plain.kept, f"peek showed {message}, which is not stored"
            self.plain.check(self.plain.kept[message.id], message)
        ids = [message.id for message in seen]
        assert len(set(ids)) == len(ids), f"peek showed a message twice: {ids}"
        expected = self.plain.peek(lane, where)
        assert set(ids) == expected, f"peek({lane}, {where}) showed {ids}, expected {expected}"
        rested = [message.rested_ms or 0 for message in seen]
        assert rested == sorted(rested), f"peek({lane}) is not oldest first"
        assert self.store.check() == [], "the store says that it is damaged"

    def _pages(self, lane: Lane | None, where: Filter, limit: int) -> list[Message]:
        page = self.store.peek(lane, where=where, limit=limit)
        seen = list(page.messages)
        while page.cursor is not None and len(seen) <= len(self.plain.kept):
            assert len(page.messages) <= limit, "a page is longer than was asked"
            page = self.store.peek(lane, where=where, limit=limit, cursor=page.cursor)
            seen += page.messages
        return seen

    def _look_at_failure_groups(self) -> None:
        expected = self.plain.failure_groups(Filter())
        trend = self._looks % 2 == 0
        found = self.store.failure_groups(trend=trend)
        assert {(g.fingerprint, g.task) for g in found} == expected.keys(), f"failure groups {found}"
        assert [g.count for g in found] == sorted((g.count for g in found), reverse=True), "not largest first"
        for group in found:
            members = expected[group.fingerprint, group.task]
            rested = [k.rested_ms for k in members if k.rested_ms is not None]
            assert (group.count, group.first_ms, group.last_ms) == (len(members), min(rested), max(rested)), group
            sample = next((k.fatal for k in members if k.id == group.sample_id), None)
            told = (sample.error, sample.text) if sample else ("", "")
            ages_ms = [self.now - at_ms for at_ms in rested] if trend else []
            recent = sum(age_ms <= TREND_MS for age_ms in ages_ms)
            earlier = sum(TREND_MS < age_ms <= HOUR_MS for age_ms in ages_ms)
            assert (group.recent, group.earlier) == (recent, earlier), group
            assert group.sample_id in {k.id for k in members} and (group.error, group.text) == told, group

    def agrees_with_the_model(self) -> None:
        """Everything, after every step."""
        ids = [*self.plain.kept, *self.ids[-REMEMBERED:]]
        assert self.store.now_ms() == self.now
        self.plain.find(ids, self.store.find(ids), self.now)
        cells = self.store.cells.read(draws.CELLS)
        for key, cell in zip(draws.CELLS, cells, strict=True):
            self.plain.cells.check(key, cell, self.now)
        assert self.store.paused() == {queue for queue, paused in self.plain.paused.items() if paused}
        queues = self.store.queues()
        assert queues == self.plain.queues(), f"queues are {queues}, expected {self.plain.queues()}"
        self._look_at_failure_groups()
        for queue in draws.QUEUES:
            groups, lines = self.store.groups(queue), self.plain.lines.groups(queue, self.plain.kept.values())
            assert groups == lines, f"groups({queue}) are {groups}, expected {lines}"

        if self.traits.batches:
            self._look_at_batches()

    def _look_at_batches(self) -> None:
        batches, kept = self.plain.batches, self.plain.kept
        batches.notice(kept.values())
        ids = self.store.batch_ids()
        for batch in [batch for batch in batches.looked if batch not in ids]:
            assert batches.may_be_forgotten(batch, self.now), f"batch {batch} is forgotten: {batches.looked[batch]}"
            batches.forget(batch, kept.values())
        assert ids == sorted(batches.looked), f"batch_ids are {ids}, expected {sorted(batches.looked)}"
        counted = batches.count(kept.values())
        for batch, counts in zip(draws.BATCHES, self.store.batch_counts(draws.BATCHES), strict=True):
            expected = counted.get(batch, BatchCounts())
            assert counts == expected, f"batch {batch} counts {counts}, expected {expected}"
        after, limit = ("", 100) if self._looks % 3 else (draws.BATCHES[self._looks % len(draws.BATCHES)], 1)
        failed = [batch for batch in ids if batch in counted and counted[batch].dead + counted[batch].quarantine]
        for what, every, some in (
            ("batch_ids", ids, self.store.batch_ids(after=after, limit=limit)),
            ("failed batch_ids", failed, self.store.batch_ids(after=after, limit=limit, failed=True)),
            ("changed_batches", batches.news(), self.store.changed_batches(after=after, limit=limit)),
        ):
            expected_ids = [batch for batch in every if batch > after][:limit]
            assert some == expected_ids, f"{what}({after!r}, {limit}) are {some}, expected {expected_ids}"
        if self._looks % 4 == 0:
            assert self.store.check() == [], "the store says that it is damaged"

    def nothing_is_lost_and_nothing_is_in_two_places(self) -> None:
        self._looks += 1
        seen = self._pages(None, Filter(), 5 if self._looks % 4 == 0 else 50)
        ids = sorted(message.id for message in seen)
        assert ids == sorted(self.plain.kept), "what can be seen is not what was accepted and has not left"
        assert len(ids) == self.plain.stored
        if not self.traits.exact_counts:
            return
        counted = {queue: self.plain.counts(queue, self.now) for queue in self.plain.queues()}
        for queue in (None, *draws.QUEUES):
            counts = self.store.counts(queue)
            expected = counted[queue] if queue in counted else self.plain.counts(queue, self.now)
            assert counts == expected, f"counts({queue}) says {counts}, expected {expected}"
        assert self.store.counts_by_queue() == counted, "counts_by_queue"
