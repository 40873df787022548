"""Run the demo: enqueue, deliver, prove; redrive too early, repair the endpoint, redrive, prove again."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import msgspec
from rich.console import Console

from ..app import App
from ..deliver import (
    LINE_MAX,
    Checked,
    FileRecord,
    Ledger,
    LineIngest,
    Summary,
    check,
    close,
    first_record,
    read_secret,
    readable,
    record_key,
    remove,
    summarize,
)
from ..deliver.run import DeliveryOptions, FileDelivery
from ..deliver.sending import UrlTarget
from ..duration import show
from ..errors import Unsupported
from ..message import Filter
from ..observe.logs import JsonLog
from ..policy import Backoff, Retry
from ..store import Store
from ..stores import open_store
from ..triage.redrive.plan import PlanHandle
from ..urls import shown
from .causes import NamingPoster
from .ledger import ProofVerdict, SentEvent, messages_of
from .outage import Side, show_outage
from .plan import DATA, FOR_GOOD, LASTING, PASSING, FailurePlan, draw, event_ids
from .processes import LIMIT_S, SECRET, TIMEOUT_S, DemoFailed, EndpointProcess, proved
from .redrive import Came, Redrives
from .view import Report, View

CONCURRENCY = 16
HAND_S = 300.0  # seconds that a person has to redrive in the pages
WATCHED_PER_S = 25.0  # requests a second while a person watches the pages
# The selector of messages that a redrive can deliver once the endpoint is fixed.
WORTH_IT = " ".join(f'-text:"HTTP {status}"' for status in sorted(FOR_GOOD))
# Delays below a second, as the demo must not take hours; `redrive policy preview` shows realistic ones.
POLICY = Retry(max_attempts=10, max_elapsed=None, backoff=Backoff("150ms", 2, "800ms", "equal"))


class DemoResult(msgspec.Struct, frozen=True):
    seed: int
    balanced: bool
    took_s: float
    ledgers: tuple[ProofVerdict, ...]
    runs: tuple[Came, ...]
    driven_back: int
    outage: tuple[Side, Side]
    folder: str | None = None


class ServedPages(Protocol):
    """Pages served at `url`, read-only at first. `hand_over` lets them redrive, or not any more; `stay` serves them
    until Ctrl-C."""

    url: str

    def hand_over(self, is_on: bool) -> None: ...

    def stay(self) -> None: ...


PagesOf = Callable[[Store, str], AbstractContextManager[ServedPages]]  # serves the pages of (store, URL for display)


class Demo:
    """One run of the demo in `folder`, on the store at `url` or a file in the folder, printed to `console`."""

    def __init__(
        self, folder: Path, seed: int, console: Console, url: str | None = None, *, pages: PagesOf | None = None
    ) -> None:
        """Take the folder, seed and console. With `pages`, it is slowed down, and pages show its store meanwhile."""
        self._pages_of = pages
        self._folder, self._seed, self._console, self._report = folder, seed, console, Report(console)
        self._log, self._sent, self._fates = (folder / f"{name}.jsonl" for name in ("endpoint", "sent", "fates"))
        self._url = url or f"sqlite:///{quote(str(folder / 'demo.db'))}"
        self._store = open_store(self._url)
        if not self._store.traits.finds:
            self._store.close()
            raise Unsupported(
                f"the demo follows each event, and store {self._store.traits.name} cannot look up what waits in it; "
                "expected an SQLite, PostgreSQL or Redis URL"
            )
        self._alone = url is None  # True if the store has no other messages

    def run(self, kept: bool) -> DemoResult:
        began_s = time.monotonic()
        try:
            with self._pages(kept) as pages, self._endpoint() as endpoint, self._fates.open("w") as fates:
                self._introduce(draw(self._seed, event_ids()))
                self._log_fates = JsonLog(fates)
                first = self._deliver_all(endpoint.port)
                verdicts = [self._prove("The ledger: the endpoint's own log, read by another process")]
                early = self._too_early(first, verdicts)
                outage = show_outage(self._folder, self._report) if pages is not None else None
                endpoint.fix()
                late = self._in_time() if pages is None else self._by_hand(pages)
                verdicts.append(self._prove("The ledger again"))
                endpoint.end()
                outage = outage or show_outage(self._folder, self._report)
                took_s = round(time.monotonic() - began_s, 1)
            if not (kept or self._alone):
                self._forget()
        finally:
            self._store.close()
        return DemoResult(
            self._seed,
            all(v.balanced for v in (*verdicts, *(side.verdict for side in outage))),
            took_s,
            tuple(verdicts),
            (early, late),
            late.counts["done"],
            outage,
            str(self._folder) if kept else None,
        )

    @contextlib.contextmanager
    def _pages(self, kept: bool) -> Iterator[ServedPages | None]:
        """Serve the pages, if there are any, during the block, and then until Ctrl-C if the store is kept."""
        if self._pages_of is None:
            yield None
            return
        with self._pages_of(self._store, shown(self._url)) as pages:
            self._report.say(f"Watch it at {pages.url}: the pages change nothing until it is your turn.", "bold")
            yield pages
            if kept:
                self._report.say(f"The pages stay at {pages.url} until Ctrl-C.", "bold")
                pages.stay()

    @contextlib.contextmanager
    def _endpoint(self) -> Iterator[EndpointProcess]:
        process = EndpointProcess(self._log, "--seed", str(self._seed))
        try:
            process.wait()
            yield process
        finally:
            process.end()

    def _introduce(self, plan: FailurePlan) -> None:
        counts, report = plan.counts(), self._report
        report.heading("An endpoint that misbehaves")
        rows: list[tuple[object, ...]] = [(counts[kind], text) for kind, text in PASSING.items()]
        rows.append((len(plan.cut), "connection dropped before the request was read"))
        rows += [(counts[kind], text) for kind, text in LASTING.items()]
        report.table(rows, header=("events", "meet, before they are served"))
        report.say(f"And after request {plan.outage_after} nothing listens for {plan.outage_s} s.")
        report.say(f"All of it is drawn from seed {self._seed}: --seed {self._seed} repeats it.", "dim")

    def _deliver_all(self, port: int) -> Summary:
        report = self._report
        report.heading("Deliver")
        with as_file(files(__package__) / DATA) as packed:
            path = readable(str(packed), self._folder / "spool")
        with path.open("rb") as file:
            checked = check(file)
        target = f"http://127.0.0.1:{port}/webhooks"
        key = record_key(checked.digest, target)
        self._ledger = Ledger(self._store, key)
        self._ledger.write(first_record(DATA, target, key, checked, self._store.now_ms()))
        app = App(store=self._store)
        LineIngest(app, self._ledger, path, checked.stamp, LINE_MAX).run()
        if app.flusher is not None:
            app.flusher.finish()
        self._list_sent()
        b = POLICY.backoff
        engine = str(self._store.info()["engine"]).partition(" ")[0]
        report.say(f"{checked.good} events are durable in {engine}, and go out signed, {CONCURRENCY} at once.")
        report.say(
            f"Policy: timeout {show(TIMEOUT_S)}; {POLICY.max_attempts} attempts; delays double from {show(b.base)} to "
            f"{show(b.cap)}, half of each drawn; a Retry-After is a floor."
        )
        self._target = target
        view, summary = self._deliver(path, checked)
        self._tell(view, summary)
        return summary

    def _tell(self, view: View, summary: Summary) -> None:
        report, at_once = self._report, view.tries[1]
        report.say(f"Done in {view.took_s:.1f} s.")
        rows: list[tuple[object, ...]] = [(at_once, "delivered at the first try")]
        rows.append((summary.delivered - at_once, "delivered after retries"))
        rows.append((summary.dead + summary.quarantined, "dead, kept with every fault"))
        report.table(rows, header=("events", "outcome"))
        report.space()
        report.bars(dict(sorted(view.tries.items())), "tries", "events delivered by that try")
        report.space()
        report.table([(n, why) for why, n in view.retries.most_common()], header=("retries", "because of"))
        report.space()
        report.dead(summary.groups)

    def _list_sent(self) -> None:
        """Write the id and the event of each enqueued message to a file, before any of them is sent."""
        event = msgspec.json.Decoder(dict[str, Any]).decode
        sent = [SentEvent(message.id, event(message.body)["id"]) for message in messages_of(self._store, self._queue)]
        self._sent.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in sent))

    def _deliver(self, path: Path, checked: Checked) -> tuple[View, Summary]:
        record, (target, options) = self._record, self._sends()
        with View(self._console) as view:
            tick = _Limited(view)
            seen = (view, self._log_fates)
            delivery = FileDelivery(self._store, self._ledger, record, target, options, tick, seen, NamingPoster)
            finished = delivery.run(path, checked.stamp, LINE_MAX)
        if not finished and not tick.over:
            raise KeyboardInterrupt
        if not finished:
            raise DemoFailed(f"a delivery took longer than {LIMIT_S:g} s; is this machine very busy?")
        summary = summarize(self._store, delivery.record)
        close(self._ledger, summary)
        return view, summary

    def _sends(self) -> tuple[UrlTarget, DeliveryOptions]:
        target = UrlTarget(url=self._target, keys=(read_secret(SECRET),), timeout_s=TIMEOUT_S)
        rate = WATCHED_PER_S if self._pages_of else None
        return target, DeliveryOptions(retry=POLICY, concurrency=CONCURRENCY, rate=rate)

    def _redrives(self) -> Redrives:
        target, options = self._sends()
        return Redrives(self._store, self._queue, target, options, self._report, (self._log_fates,))

    def _too_early(self, first: Summary, verdicts: list[ProofVerdict]) -> Came:
        report, redrives = self._report, self._redrives()
        report.heading("Redrive, too early: the endpoint is still broken")
        stay = sum(g.count for g in first.groups if any(f"HTTP {status}" in g.text for status in FOR_GOOD))
        report.say(f"{stay} of {first.dead} are left out: 410 Gone means that they are not wanted any more.")
        plan = redrives.plan(WORTH_IT)
        came = self._apply(redrives, plan, "is it mended?")
        verdicts.append(self._judge())
        more = verdicts[-1].requests - verdicts[0].requests
        report.table(
            [
                (came.counts["failed"], "tried, and failed again: they are dead as before"),
                (came.counts["skipped"], "never left the dead lane"),
            ],
            header=("events", "outcome"),
        )
        report.say(f"It stopped itself: {came.why}. The endpoint's log has {more} requests more, not {plan.total}.")
        report.balance(verdicts[-1])
        return came

    def _in_time(self) -> Came:
        report, redrives = self._report, self._redrives()
        report.heading("The endpoint is fixed; the same again")
        came = self._apply(redrives, redrives.plan(WORTH_IT), "the endpoint is fixed")
        dead = self._store.counts(self._queue).dead
        report.table([(came.counts["done"], "delivered now"), (dead, "still dead")], header=("events", "outcome"))
        return came

    def _by_hand(self, pages: ServedPages) -> Came:
        """Let a person redrive the causes that are mended in the pages; after HAND_S, redrive the rest."""
        report, before = self._report, self._worth_it()
        pages.hand_over(True)
        report.heading("Your turn: the endpoint is fixed, and you redrive")
        report.table([(n, name) for name, n in before.items()], header=("dead", "cause, mended now"))
        report.say(f"1. Open {pages.url}groups and choose one of these causes.", "bold")
        report.say("2. Press 'Plan a redrive of all …', then 'Freeze the plan'. Nothing has moved yet.", "bold")
        report.say("3. Say why, and press 'Redrive'. Then the other causes.", "bold")
        report.say(
            f"Leave SubscriberGone dead. The demo goes on once the others are redriven, after {show(HAND_S)} by "
            "itself; Ctrl-C ends it."
        )
        try:
            self._redrives().by_hand(lambda: not self._worth_it(), HAND_S)
        except TimeoutError:
            report.say(f"{show(HAND_S)} are over: the demo redrives the other {sum(self._worth_it().values())}.")
        finally:
            pages.hand_over(False)
        moved = sum(before.values()) - sum(self._worth_it().values())
        report.table([(moved, "delivered by your hand")], header=("events", "outcome"))
        if self._worth_it():
            return self._in_time()
        return Came("done", "by hand", {"planned": moved, "done": moved})

    def _worth_it(self) -> Mapping[str, int]:
        """Return how many messages are dead by cause, without those that are not wanted any more."""
        groups = self._store.failure_groups(where=Filter(queue=self._queue))
        some = [g for g in groups if not any(f"HTTP {status}" in g.text for status in FOR_GOOD)]
        counts: dict[str, int] = {}
        for group in some:
            name = group.error.rpartition(".")[2]
            counts[name] = counts.get(name, 0) + group.count
        return counts

    def _apply(self, redrives: Redrives, plan: PlanHandle, reason: str) -> Came:
        try:
            return redrives.apply(plan, reason, LIMIT_S)
        except TimeoutError:
            raise DemoFailed(f"a redrive took longer than {LIMIT_S:g} s; is this machine very busy?") from None

    @property
    def _record(self) -> FileRecord:
        assert self._ledger.record is not None
        return self._ledger.record

    @property
    def _queue(self) -> str:
        return self._record.queue

    def _forget(self) -> None:
        """Remove the demo's messages from a store that also has others."""
        remove(self._store, self._queue)
        self._ledger.write(None)

    def _prove(self, heading: str) -> ProofVerdict:
        self._report.heading(heading)
        verdict = self._judge()
        self._report.verdict(verdict)
        return verdict

    def _judge(self) -> ProofVerdict:
        return proved(self._url, self._log, self._sent, self._fates, self._queue)


class _Limited:
    """Shows the progress of a delivery, and stops the delivery if it takes too long."""

    def __init__(self, view: View) -> None:
        self._view, self.over = view, False

    def __call__(self, delivery: FileDelivery) -> None:
        self._view.tick(delivery)
        if self._view.took_s > LIMIT_S and not self.over:
            self.over = True
            delivery.stop()


def run_demo(
    seed: int, console: Console, *, keep: bool, url: str | None = None, pages: PagesOf | None = None
) -> DemoResult:
    """Run the demo in a new folder, on a store in that folder or at `url`. Unless `keep`, the folder and the messages
    are removed afterwards, but the store's list of runs keeps the two of the demo. Raises DemoFailed,
    KeyboardInterrupt, StoreError; Unsupported for a store that cannot find waiting messages."""
    folder = Path(tempfile.mkdtemp(prefix="redrive-demo-"))
    try:
        return Demo(folder, seed, console, url, pages=pages).run(keep)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
