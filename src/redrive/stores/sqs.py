"""The SQS store: messages lie in queues of SQS, dead letters and shared state in a store and cells of other engines.

SQS hides a received message for a while: that is the lease. It commits nothing with anything else, so what has to be
elsewhere is sent first and the message deleted last: a crash leaves a duplicate, never a loss (`_sqs_settle.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ..errors import ConfigError, EnqueueError, StoreError, StoreUnavailable, Unsupported
from ..fault import Fault
from ..ids import new_id
from ..message import (
    RESTING,
    Ack,
    Ask,
    Cancel,
    Cell,
    Counts,
    Delivery,
    Draft,
    Exchange,
    FailureGroup,
    Group,
    GroupOrder,
    Handle,
    Hold,
    Keep,
    Lane,
    Message,
    OnDead,
    Page,
    Put,
    Receipt,
    Settled,
    Settlement,
    Started,
    Swap,
    Verdict,
    Where,
    version_of,
)
from ..routes import Routes
from ..store import Cells, OpenCells, Store, Work
from . import _door, _lifecycle, shown
from ._aws import REFUSED
from ._clock import wall_ms
from ._counts import total
from ._later import Later
from ._seam import no_seam
from ._sqs_adopted import WAITED_MS, Adopted
from ._sqs_batches import EntryRefused, Job, run
from ._sqs_client import THREADS, Sqs
from ._sqs_counts import Counting
from ._sqs_crowds import Crowds
from ._sqs_envelope import read
from ._sqs_facts import Looks
from ._sqs_find import Finding
from ._sqs_held import Held, Holding
from ._sqs_kept import Kept, claimed, decode, revived, with_kept
from ._sqs_keys import Putting, Told
from ._sqs_order import Order, group_of
from ._sqs_outbox import Outbox
from ._sqs_parts import cells_of, opened_cells, opened_store, traits_of
from ._sqs_pauses import EVERY_S as PAUSES_EVERY_S
from ._sqs_pauses import Pauses
from ._sqs_queues import Place, Queues
from ._sqs_receive import THREADS as RECEIVERS
from ._sqs_receive import Received, Receivers
from ._sqs_resting import NO_CELLS, NoCells, apply_swaps, check_swaps, need, with_triage
from ._sqs_settle import RECORDS, Send, Settling, Step, is_final, record_swap, unavailable
from ._sqs_tail import HIDE, End, Tail
from ._sqs_track import RECORDS as TRACKS
from ._sqs_track import Track, read_record
from ._sqs_triage import Triage
from ._sqs_url import SqsUrl
from ._state_dir import state_dir

FRESH_SHARE = 0.5  # of a lease: what waited here longer is hidden anew before it is handed out
_UNSEEN = "SQS can look at no message that waits or runs in it"


class SqsStore:
    """Queues of SQS under one prefix.

    `clock_ms` replaces this machine's clock in tests; `triage` and `cells`, open already, stand for those that the URL
    names, and are closed with it. `requests` counts the calls of SQS, by action. Raises ConfigError for a URL that
    cannot be, or where boto3 is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        clock_ms: Callable[[], int] | None = None,
        triage: Store | None = None,
        cells: OpenCells | None = None,
    ) -> None:
        self.seam: Callable[[str], None] = no_seam  # tests put a function here that kills or fails at a named point
        self.at = at = SqsUrl.parse(url)
        self._clock_ms = clock_ms or wall_ms
        self._tell_to: Callable[[str, str], None] | None = None
        self._sqs = Sqs(at.region, at.endpoint, connections=THREADS + RECEIVERS)
        self.state_dir: Path | None = state_dir(f"sqs/{shown(at.endpoint or at.region)}/{at.prefix}")
        self.requests: Counter[str] = self._sqs.requests
        self.processed = 0
        self.places = places = Queues(self._sqs, at)
        self.triage_store = rests = triage or (opened_store(at.triage) if at.triage else None)
        self._own_cells = cells or opened_cells(at.cells, at.region)
        self.cells: Cells = cells_of(self._own_cells, rests)
        kept = None if isinstance(self.cells, NoCells) else self.cells
        if at.track and kept is None:
            raise ConfigError(f"store URL {at.shown!r}: track=true needs a place for its records. {NO_CELLS}")
        seam: Callable[[str], None] = lambda point: self.seam(point)  # noqa: E731
        self._track = Track(self.cells, now_ms=self.now_ms) if at.track else None
        self._putting = (
            None if self._track is None
            else Putting(self._track, self.cells, rests, now_ms=self.now_ms, seam=seam)
        )  # fmt: skip
        self.routes = Routes()
        self.blobs_place = f"sqs-{at.region}-{at.prefix}"  # its part of a blob storage that others use too
        self.traits = traits_of(at, cells=kept is not None, triage=rests is not None)
        self._pauses = Pauses(kept)
        self._triage = None if rests is None else Triage(
            rests, self.send, self._putting, place=f"{at.region}/{at.prefix}",
            ordered=lambda queue: places.of(queue).fifo, traits=self.traits, now_ms=self.now_ms, tell=self._tell,
        )  # fmt: skip
        self._receivers = Receivers(
            self._sqs, poll_s=at.poll_s, most=at.receivers, now_ms=self.now_ms, tell=self._tell,
            give_back=lambda place, received: self._tail.end(self._given_back(place, received), last=True),
        )  # fmt: skip
        self._tail = Tail(self._sqs, now_ms=self.now_ms, tell=self._tell)
        self._settling = Settling(
            at, self._sqs, places, kept, rests,
            track=self._track, now_ms=self.now_ms, crowded=Crowds(places, self._receivers, tell=self._tell).crowded,
            seam=seam, tell=self._tell,
        )  # fmt: skip
        self._looks = Looks(self._sqs, at, places, cells=kept is not None, triage=rests is not None)
        self._holding = Holding()
        self._order = Order()
        self._adopted = Adopted()
        self._finding = Finding(self._holding, rests, self._track)
        self._counting = Counting(places, self._receivers, self._holding, rests, now_ms=self.now_ms)
        self._at_once = at.poll_s == 0  # with short polls a call does all it can before it returns
        self._closed = False

    @property
    def sqs(self) -> Sqs:
        """How SQS is called."""
        return self._sqs

    @property
    def outbox(self) -> Outbox:
        """The way back of what rests. Raises Unsupported where there is no triage store."""
        return need(self._triage).outbox

    def now_ms(self) -> int:
        return self._clock_ms()

    def listen(self, tell: Callable[[str, str], None]) -> None:
        """Have this called with the name of a notice and a text where something is odd."""
        self._tell_to = tell

    def _tell(self, about: str, text: str) -> None:
        if self._tell_to is not None:
            self._tell_to("sqs", f"{about}: {text}")

    # -- putting

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[Put]:
        if tx is not None:
            raise Unsupported("SQS has no transactions to write in; enqueue without tx=")
        self._alive()
        if not drafts and swaps and self.triage_store is not None and (self._own_cells is None or with_triage(swaps)):
            return self.triage_store.put([], swaps=swaps)  # one commit, as runs need it
        self._admit(drafts)
        if swaps and not self.traits.cells:
            raise Unsupported(NO_CELLS)
        now = self.now_ms()
        messages = [_lifecycle.enqueued(draft, draft.id or new_id(now), now) for draft in drafts]
        check_swaps(self.cells, swaps)
        self.seam("put")
        told = self._told(messages, drafts)
        self.seam("acknowledge")
        failed = [word for word in told if word is not None and not isinstance(word, str)]
        if failed:
            sent = len(told) - len(failed)
            raise type(failed[0])(f"{failed[0]}; {sent} of {len(told)} messages were sent, the others were not")
        apply_swaps(self.cells, swaps)
        states = self._states([word for word in told if isinstance(word, str)])
        return [
            Put(word, True, states[word]) if isinstance(word, str) else Put(message.id, state=message.state(now))
            for message, word in zip(messages, told, strict=True)
        ]

    def _told(self, messages: Sequence[Message], drafts: Sequence[Draft]) -> Sequence[Told]:
        if self._putting is None:
            return self.send(messages)
        self._putting.refuse_known([m for m, draft in zip(messages, drafts, strict=True) if draft.id is not None])
        return self._putting.put(messages, self.send, keys_for_ms=[draft.key_for_ms for draft in drafts])

    def _states(self, ids: Sequence[str]) -> dict[str, str]:
        """Of who holds a key; of one that is no more, and was to hold it longer, done."""
        now, found = self.now_ms(), self.find(ids) if ids else []
        return {id: "done" if one is None else one.state(now) for id, one in zip(ids, found, strict=True)}

    def _alive(self) -> None:
        if self._closed:
            raise StoreError("this SQS store is closed; open another")

    def _admit(self, drafts: Sequence[Draft]) -> None:
        _door.admit(drafts, self.traits)
        ids = Counter(draft.id for draft in drafts if draft.id is not None)
        if len(ids) < ids.total():
            raise EnqueueError(f"id {ids.most_common(1)[0][0]} is given twice in one call; nothing was sent")

    def send(self, messages: Sequence[Message]) -> list[StoreError | ConfigError | None]:
        """Send these messages, as they are, to their queues; what went wrong with each."""
        return self._settling.sent([Send(self.places.of(message.queue), message) for message in messages])

    # -- settling and claiming

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[Ask], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        self._alive()
        self._admit([draft for s in settlements for draft in s.follow_ups])
        if not self.traits.cells and (swaps or any(s.swaps for s in settlements)):
            raise Unsupported(NO_CELLS)
        try:
            for draft in (draft for s in settlements for draft in s.follow_ups):
                self._find_for(draft)
            check_swaps(self.cells, swaps)
            settled = self._settle(settlements)
            apply_swaps(self.cells, swaps)
            try:
                return Exchange(settled, self._claim(asks, patient=self._at_once or not settlements))
            except (StoreError, ConfigError):
                if not settlements:
                    raise
                return Exchange(settled, [])  # what is settled is settled; the next claim says what is wrong
        except ConfigError as error:
            if not self._receivers.received:
                raise
            raise StoreUnavailable(str(error)) from error  # all was right when the worker began, and may be so again

    def _find_for(self, draft: Draft) -> None:
        """Raises EnqueueError where there is no queue for this follow-up: then nothing is settled."""
        try:
            self.places.of(draft.queue)
        except ConfigError as error:
            if REFUSED in str(error):
                raise
            raise EnqueueError(f"a follow-up of task {draft.task!r}: {error}; nothing was settled") from error

    def _settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Raises StoreUnavailable if something could not be sent or kept: the same call goes on from there. What that
        does not concern ends now."""
        if not settlements:
            return []
        if self._track is not None:
            self._see_cancels(self._track, settlements)
        pairs: list[tuple[Receipt, Step | None]] = []
        for settlement in settlements:
            receipt, held = settlement.receipt, self._holding.held.get(settlement.receipt)
            step = self._settling.ended(receipt) if held is None else self._settling.step(held, settlement)
            pairs.append((receipt, step))
        steps = [step for _, step in pairs if step is not None and not step.ended]
        self._settling.stop(steps)
        if self._putting is not None:
            self._follow(self._putting, steps)
        self._settling.send([step for step in steps if step.error is None])
        self._refuse(pairs)
        self._settling.keep(steps)
        done = [step for step in steps if step.error is None]
        self._leave([step.held for step in done if step.word is not Settled.OK])
        self._end([step for step in done if step.word is Settled.OK], pairs)
        for step in done:
            step.ended = True
        errors = [step.error for step in steps if step.error is not None]
        if errors:
            for receipt, step in pairs:
                if step is not None:
                    self._settling.remember(receipt, step)
            raise unavailable(errors)
        return [Settled.STALE if step is None else _word(step) for _, step in pairs]

    def _see_cancels(self, track: Track, settlements: Sequence[Settlement]) -> None:
        """Whatever is not done ends, if that was asked for."""
        undone = [s.receipt for s in settlements if not isinstance(s.decision, Ack)]
        running = [held for receipt in undone if (held := self._holding.held.get(receipt)) is not None]
        asked = track.asked([held.message.id for held in running])
        for held in running:
            if held.message.id in asked:
                held.message = replace(held.message, cancel=True)

    def _follow(self, putting: Putting, steps: Sequence[Step]) -> None:
        """Send what follows, but for what another message of its key makes needless."""
        todo = [step for step in steps if not step.sent and step.word is Settled.OK]
        sends = [(step, send) for step in todo for send in step.sends if send.message.id != step.held.message.id]
        if not sends:
            return
        ending = {step.held.message.id for step in todo if step.gives_key_back}
        keys_for_ms = [send.key_for_ms for _, send in sends]
        told = putting.put([send.message for _, send in sends], self.send, keys_for_ms=keys_for_ms, ending=ending)
        for (step, send), word in zip(sends, told, strict=True):
            if word is None or isinstance(word, str):
                step.sends.remove(send)
            elif is_final(word):
                step.sends.remove(send)
                step.refused = word
            else:
                step.error = word

    def _refuse(self, pairs: Sequence[tuple[Receipt, Step | None]]) -> None:
        """Raises EnqueueError for a follow-up that SQS never takes; what else was sent is known when it comes again."""
        errors = [step.refused for _, step in pairs if step is not None and step.refused is not None]
        if errors:
            for receipt, step in pairs:
                if step is not None and step.refused is None:
                    self._settling.remember(receipt, step)
            raise EnqueueError(f"SQS takes no such follow-up: {errors[0]}")

    def _end(self, steps: Sequence[Step], pairs: Sequence[tuple[Receipt, Step | None]] = ()) -> None:
        now, holding = self.now_ms(), self._holding
        with holding.lock:
            for receipt, step in pairs:
                if step is None or (step.error is None and step.word is Settled.OK):
                    holding.held.pop(receipt, None)
                self._settling.forget(receipt)
        last = self._at_once or not holding.is_working(now)
        holding.hide([(step.held, step.hide_until_ms) for step in steps if step.hide_until_ms is not None], now)
        self.processed += sum(step.is_over for step in steps)
        back = self._next_in_groups(steps)
        self.seam("end")
        self._tail.end([*self._adopted.without_deletes([_end(step, now) for step in steps]), *back], last=last)
        self.seam("ended")

    def _next_in_groups(self, steps: Sequence[Step]) -> list[End]:
        """Of FIFO queues: those behind a message that is done with come next, those behind one that will come again go
        back."""
        back: list[End] = []
        for step in steps:
            held = step.held
            if held.group is not None:
                waiting = self._order.over(held.group)
                self._receivers.stir(held.place)
                if step.hide_until_ms is None:
                    self._receivers.put_back(held.place, waiting)
                else:
                    back += self._given_back(held.place, waiting)
        return back

    def _claim(self, asks: Sequence[Ask], *, patient: bool) -> list[Delivery]:
        if asks and self._triage is not None:
            if self._at_once:
                self._triage.outbox.pump(sum(ask.limit for ask in asks))
            else:
                self._triage.outbox.begin()
        paused = self.paused() if asks else frozenset()
        placed = [(ask, self.places.of(ask.queue)) for ask in asks if ask.queue not in paused and ask.limit > 0]
        deliveries, errors = list[Delivery](), list[StoreError | ConfigError]()
        for (ask, place), received in zip(placed, self._receivers.ask(placed, patient=patient), strict=True):
            if received:
                fresh, records = self._known(place, self._fresh(place, received), errors)
                heads = self._order.heads(place.url, fresh) if place.fifo else fresh
                deliveries += self._deliver(ask, place, heads, records)
        if errors and not deliveries:
            raise errors[0]
        return deliveries

    def _known(
        self, place: Place, received: Sequence[Received], errors: list[StoreError | ConfigError]
    ) -> tuple[Sequence[Received], dict[str, Cell]]:
        """Those of which all is known that it takes to deliver them, and their records. The others wait here for the
        next claim; of a FIFO queue all, as they have an order."""
        try:
            records = self._records(received, place if self._track is not None else None)
            if any(_is_again(one) for one in received):
                self.places.bounds(place)
        except (StoreError, ConfigError) as error:
            errors.append(error)
            all_late = place.fifo or self._track is not None
            late = [one for one in received if all_late or _is_again(one)]
            self._receivers.put_back(place, late, first=place.fifo)
            return [one for one in received if not all_late and not _is_again(one)], {}
        return received, records

    def _deliver(
        self, ask: Ask, place: Place, received: Sequence[Received], records: dict[str, Cell]
    ) -> list[Delivery]:
        now, deliveries, hops = self.now_ms(), list[Delivery](), list[Step]()
        for one in received:
            held = self._held_of(place, one, ask, records.get(one.raw["MessageId"]))
            if held.receives > 1:
                self._holding.drop_earlier(held.sqs_id)
            track = None if self._track is None else records.get(TRACKS + held.message.id)
            if track is not None and read_record(track.value).cancel:
                hops.append(self._settling.dropped(held))
                continue
            due_ms = held.kept.due_ms or 0
            if due_ms > now:
                hops.append(self._settling.early(held, due_ms))
                continue
            message = claimed(
                held.message, held.kept, ask, receives=held.receives, counts_all=self._settling.counts_all,
                until_ms=held.until_ms,
            )  # fmt: skip
            if self._settling.is_last(held):
                hops.append(self._settling.anew(held, message))
                continue
            held.message = message
            if held.receives > 1:
                self._holding.show(held.sqs_id)
            receipt = Receipt(held.handle, held.message.fence)
            with self._holding.lock:
                self._holding.held[receipt] = held
            deliveries.append(Delivery(held.message, receipt, held.until_ms))
        if hops:
            self._hop(hops)
        return deliveries

    def _held_of(self, place: Place, one: Received, ask: Ask, record: Cell | None) -> Held:
        message, kept = read(one.raw, queue=ask.queue, routes=self.routes)
        if kept.reason is not None:  # a dead letter that a move task brought back
            kept = revived(kept, int(one.raw["Attributes"]["SentTimestamp"]))
            message = with_kept(message, kept)
        version = 0
        if record is not None:
            kept, version = decode(record.value), record.version
            message = with_kept(message, kept)
        return Held(
            message=message,
            kept=kept,
            place=place,
            handle=one.raw["ReceiptHandle"],
            sqs_id=one.raw["MessageId"],
            receives=int(one.raw["Attributes"]["ApproximateReceiveCount"]),
            sent_ms=int(one.raw["Attributes"]["SentTimestamp"]),
            received_ms=one.at_ms,
            until_ms=one.until_ms,
            version=version,
            group=(place.url, group_of(one)) if place.fifo else None,
        )

    # -- what somebody else received

    def adopt(self, queue: str, raws: Sequence[dict[str, Any]], *, lease_ms: int, worker: str = "") -> list[Delivery]:
        """Deliveries of messages that somebody else received, as Lambda does for a function, and holds for `lease_ms`.

        They are settled as any others, but that none is deleted: `let_go` says which of them whoever received them is
        to delete. One whose time has not come is put off here, and is not among the deliveries.
        """
        place, now = self.places.of(queue), self.now_ms()
        self._adopted.add([raw["ReceiptHandle"] for raw in raws])
        self._receivers.received += len(raws)
        ask = Ask(queue, len(raws), lease_ms, worker=worker)
        received = [Received(raw, now - WAITED_MS, now + lease_ms) for raw in raws]
        records = self._records(received, place if self._track is not None else None)
        return self._deliver(ask, place, received, records)

    def let_go(self, handles: Collection[str]) -> set[str]:
        """Forget these adopted messages; those that nothing is left to be done with, once the others are hidden."""
        self._tail.flush()
        done = {end.handle for end in self._adopted.over(handles)}
        self._adopted.forget(handles)
        self._holding.drop_handles(handles)
        return done

    def delete_adopted(self, handles: Collection[str]) -> set[str]:
        """Delete now what nothing is left to be done with of these adopted messages; those others are as before."""
        ends = self._adopted.over(handles)
        self._tail.end(ends, last=True)
        return {end.handle for end in ends}

    def _records(self, received: Sequence[Received], tracked: Place | None = None) -> dict[str, Cell]:
        """The records of those that were delivered before, by SQS's id; with `tracked`, their queue, also the cells of
        what is tracked of each, by their keys."""
        if not self.traits.cells:
            return {}
        names = {one.raw["MessageId"]: RECORDS + one.raw["MessageId"] for one in received if _is_again(one)}
        if tracked is not None:
            ids = (read(one.raw, queue=tracked.queue, routes=self.routes)[0].id for one in received)
            names |= {(key := TRACKS + id): key for id in ids}
        found = self.cells.read([*names.values()]) if names else []
        return {id: cell for id, cell in zip(names, found, strict=True) if cell is not None}

    def _hop(self, steps: Sequence[Step]) -> None:
        """What fails comes back when its visibility ends, and hops then."""
        self._settling.send(steps)
        self._settling.keep(steps)
        done = [step for step in steps if step.error is None and step.word is Settled.OK]
        self._leave([step.held for step in steps if step not in done])
        self._end(done)

    def _leave(self, left: Sequence[Held]) -> None:
        """These come again when their lease ends, and in FIFO queues those behind them after them."""
        for held in left:
            if held.group is not None:
                self._tail.end(self._given_back(held.place, self._order.over(held.group)), last=False)

    def _fresh(self, place: Place, received: Sequence[Received]) -> Sequence[Received]:
        """Without those whose lease ran out here, and with new leases for those that waited long."""
        now = self.now_ms()
        if all(one.until_ms - now > FRESH_SHARE * (one.until_ms - one.at_ms) for one in received):
            return received
        alive = [one for one in received if one.until_ms > now]
        lease_ms = max((one.until_ms - one.at_ms for one in alive), default=0)
        hidden = self._hide_for(place, [one.raw["ReceiptHandle"] for one in alive], math.ceil(lease_ms / 1000))
        return [Received(one.raw, one.at_ms, now + lease_ms) for one, ok in zip(alive, hidden, strict=True) if ok]

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[Hold]:
        now, words = self.now_ms(), [Hold.HELD] * len(receipts)
        jobs: dict[str, tuple[Job, list[int]]] = {}
        for at, receipt in enumerate(receipts):
            held = self._holding.held.get(receipt)
            seconds = 0 if held is None else min(math.ceil(lease_ms / 1000), held.stays_s(now))
            if held is None or (held.until_ms <= now and seconds <= 0):
                words[at] = Hold.LOST
                continue
            if alone:
                self._mark_alone(held)
            if seconds > 0:
                job, mine = jobs.setdefault(held.place.url, (Job(HIDE, held.place.url, []), []))
                job.entries.append({"ReceiptHandle": held.handle, "VisibilityTimeout": seconds})
                mine.append(at)
                if held.group is not None:  # those behind it stay with it, which nothing depends on
                    more = [one.raw["ReceiptHandle"] for one in self._order.behind(held.group)]
                    if all(self._hide_for(held.place, more, seconds)):
                        self._order.renewed(held.group, now + seconds * 1000)
        run(self._sqs, [job for job, _ in jobs.values()])
        for job, mine in jobs.values():
            for at, entry, error in zip(mine, job.entries, job.answers, strict=True):
                if error is None:
                    held = self._holding.held[receipts[at]]
                    held.until_ms = now + entry["VisibilityTimeout"] * 1000
                    held.message = replace(held.message, due_ms=held.until_ms)
                elif not isinstance(error, EntryRefused):
                    raise StoreUnavailable(str(error)) from error
                else:
                    words[at] = Hold.LOST
        self._lose([receipt for receipt, word in zip(receipts, words, strict=True) if word is Hold.LOST])
        if self._track is not None:
            ids = {
                at: self._holding.held[receipts[at]].message.id for at, word in enumerate(words) if word is Hold.HELD
            }
            asked = self._track.asked([*ids.values()])
            words = [Hold.CANCEL if ids.get(at) in asked else word for at, word in enumerate(words)]
        return words

    def _lose(self, receipts: Sequence[Receipt]) -> None:
        lost = self._holding.drop(receipts)
        for receipt in receipts:
            self._settling.forget(receipt)
        self._leave(lost)

    def _hide_for(self, place: Place, handles: Sequence[str], seconds: int) -> list[bool]:
        """Hide these so much longer; whether each is."""
        job = Job(HIDE, place.url, [{"ReceiptHandle": handle, "VisibilityTimeout": seconds} for handle in handles])
        run(self._sqs, [job])
        return [error is None for error in job.answers]

    def _mark_alone(self, held: Held) -> None:
        kept = held.kept
        if self.traits.cells and kept.alone < held.receives:
            before = kept.alone > kept.receives  # that run ended as a crash: this one is another
            self._write_record(held, replace(kept, alone=held.receives, crashes_alone=kept.crashes_alone + before))

    def _write_record(self, held: Held, kept: Kept) -> bool:
        swap = record_swap(held, kept)
        if not self.cells.swap([swap])[0]:
            return False
        held.kept, held.version = kept, version_of(self.cells.read([swap.key])[0])
        return True

    def release(self, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None) -> tuple[int, int]:
        return 0, 0  # nobody knows what a dead worker had: it comes back when its visibility ends

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        if not self.traits.cells:
            raise Unsupported(f"a checkpoint needs a place to be kept. {NO_CELLS}")
        held = self._holding.held.get(receipt)
        if held is None or not self._write_record(held, replace(held.kept, progress=state)):
            return False
        held.message = replace(held.message, progress=state)
        return True

    # -- waiting

    def wait(self, asks: Sequence[Ask], *, timeout_ms: int) -> None:
        paused = self.paused() if asks else frozenset()
        if paused.intersection(ask.queue for ask in asks):
            timeout_ms = min(timeout_ms, int(PAUSES_EVERY_S * 1000))
        places = [self.places.of(ask.queue) for ask in asks if ask.queue not in paused and ask.limit > 0]
        self._receivers.wait(places, timeout_ms=timeout_ms)

    def nudge(self) -> None:
        self._receivers.nudge()

    def hush(self) -> None:
        """A worker drains: until somebody asks again, what was received and not claimed is for others."""
        self._receivers.hush()

    # -- looking

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        self._alive()
        return self._finding.find(ids)

    def counts(self, queue: str | None = None) -> Counts:
        if queue is None:
            return total([self.counts(name) for name in self.queues()])
        return self._counting.of(queue)

    def counts_by_queue(self) -> dict[str, Counts]:
        return {queue: self.counts(queue) for queue in self.queues()}

    def queues(self) -> list[str]:
        resting = [] if self.triage_store is None else self.triage_store.queues()
        return sorted({*self.places.names(), *resting})

    def peek(self, lane: Lane | None, *, where: Where = Where(), limit: int = 100, cursor: str | None = None) -> Page:
        _door.read_cursor(cursor)
        if lane not in RESTING:
            how = "by its state (--state dead)" if self.triage_store is not None else "where the URL has triage="
            raise Unsupported(f"{_UNSEEN}; what is dead or in quarantine can be listed {how}")
        return need(self.triage_store).peek(lane, where=where, limit=limit, cursor=cursor)

    def failure_groups(self, *, where: Where = Where(), trend: bool = False) -> list[FailureGroup]:
        return need(self.triage_store).failure_groups(where=where, trend=trend)

    # -- changing by hand

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        return need(self._triage).judge(handles, verdict, swaps)

    def restore(self, messages: Sequence[Message]) -> list[bool]:
        return need(self._triage).restore(messages)

    def cancel(self, ids: Sequence[str]) -> list[Cancel]:
        if self._track is None:
            raise Unsupported(
                f"{_UNSEEN}, so none can be cancelled; let the handler ask whether its work is still wanted, or keep a "
                "record of each message: track=true in the store's URL"
            )
        self._alive()
        return self._finding.cancel(self._track, ids)

    def configure(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        group_width: int | None = None,
        group_order: GroupOrder | None = None,
        on_dead: OnDead | None = None,
    ) -> None:
        _door.admit_width(group_width, 1)
        fifo = group_order is not None and self.places.of(queue).fifo
        wide, blocks = group_width not in (None, 1), on_dead is OnDead.BLOCK
        if wide or blocks or (group_order is not None and fifo != (group_order is GroupOrder.STRICT)):
            raise Unsupported(
                f"queue {queue!r}: SQS serves the groups of a FIFO queue (its name ends in .fifo) one message at a "
                "time, in order, and skips a dead one; a standard queue has no order, and no width"
            )
        if paused is not None:
            self._pauses.set(queue, paused)
            self.nudge()

    def configure_group(self, queue: str, group: str | None, *, width: int | None = None, resume: bool = False) -> None:
        _door.admit_width(width, 0)
        _door.admit_group(group)
        if width not in (None, 0, 1) or resume:
            raise Unsupported(f"queue {queue!r}: SQS has no widths of groups, and no group waits for a dead message")

    def groups(self, queue: str) -> list[Group]:
        raise Unsupported(f"queue {queue!r}: SQS does not say which groups a queue holds")

    def retain(self, queue: str, *, done: Keep = Keep(), dead: Keep = Keep()) -> tuple[int, int]:
        return (0, 0) if self.triage_store is None else self.triage_store.retain(queue, done=done, dead=dead)

    def paused(self) -> frozenset[str]:
        return self._pauses.queues()

    # -- keeping

    def check(self) -> list[str]:
        return [] if self.triage_store is None else self.triage_store.check()

    def doctor(self) -> list[str]:
        parts = [part for part in (self.triage_store, self._own_cells) if part is not None]
        return [*self._looks.doctor(), *(line for part in parts for line in part.doctor())]

    def vet(self, works: Sequence[Work], *, advise: bool = False, function_s: float | None = None) -> list[str]:
        """Why these works cannot be done, each line with the fix; with `advise` also what is doubtful. `function_s`:
        the timeout of a Lambda function that does them. Raises ConfigError for a queue that is not there, and what
        opening the stores of the URL raises."""
        for part in (self.triage_store, getattr(self._own_cells, "store", None)):
            if isinstance(part, Later):
                part.opened()
        return self._looks.vet(works, advise=advise, function_s=function_s)

    def about(self) -> dict[str, str | int]:
        said: dict[str, str | int] = {"engine": f"SQS in {self.at.region}", "mode": self.at.mode.value}
        if self.triage_store is not None:
            said["dead letters"] = str(self.triage_store.about().get("engine", self.triage_store.traits.name))
        return said

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._triage is not None:
            self._triage.outbox.close()
        for place, received in self._receivers.drop():
            self._tail.end(self._given_back(place, received), last=False)
        self._tail.close()
        for part in (self.triage_store, self._own_cells):
            if part is not None:
                part.close()
        self._sqs.close()

    def _given_back(self, place: Place, received: Sequence[Received]) -> list[End]:
        """What it takes to let others have what was received and never claimed, at once; where there are cells, no
        attempt is lost."""
        if not received:
            return []
        if self.traits.cells:
            ask = Ask(place.queue, 1, 0)
            with suppress(StoreError, ConfigError):  # then they count a crash more than they had
                records = self._records(received)
                holding = [self._held_of(place, one, ask, records.get(one.raw["MessageId"])) for one in received]
                self.cells.swap([record_swap(held, replace(held.kept, receives=held.receives)) for held in holding])
        now = self.now_ms()
        return [End(place.url, one.raw["ReceiptHandle"], one.until_ms, until_ms=now) for one in received]


def _is_again(one: Received) -> bool:
    """Whether it was delivered before."""
    return bool(one.raw["Attributes"]["ApproximateReceiveCount"] != "1")


def _word(step: Step) -> Settled:
    return Settled.CANCELLED if step.cancelled and step.word is Settled.OK else step.word


def _end(step: Step, now: int) -> End:
    held = step.held
    most_s = max(0, held.stays_s(now))
    return End(held.place.url, held.handle, held.until_ms, step.hide_until_ms, most_s)
