"""Show why messages do not run: the lines that several commands print of `redrive.status.Reasons`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...errors import RedriveError
from ...present.commands import onward
from ...present.holds import holds_text
from .stderr import note

if TYPE_CHECKING:
    from ...registry import Registry
    from ...status import Hold
    from ...store import Store

DRAINED_S, DRAINED_EVERY_S = 10.0, 60.0  # seconds after which a drain first prints its holds, and between repetitions
RUNS_MAX = 20  # the latest redrive runs that are read; the open ones among them are listed after a burst


def note_next(holds: Sequence[Hold]) -> None:
    """Write the next command of the first hold to stderr."""
    if holds:
        note(f"next: {onward(holds[0].next)}")


@contextlib.contextmanager
def noting_waits(store: Store, app: Registry, queues: Sequence[str], after_s: float = DRAINED_S) -> Iterator[None]:
    """Print on stderr why a drain of these queues continues: first after `after_s`, then each minute, until the block
    ends."""
    over = threading.Event()

    def watch() -> None:
        wait_s = after_s
        while not over.wait(wait_s):
            wait_s = DRAINED_EVERY_S
            with contextlib.suppress(RedriveError, OSError):  # raised in an outage, which the worker itself reports
                note_waits(store, app, queues)

    thread = threading.Thread(target=watch, daemon=True, name="redrive-drain")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(after_s)


def note_waits(store: Store, app: Registry, queues: Iterable[str]) -> None:
    """Write to stderr for which messages a drain of these queues waits, and the holds of these messages. Raises
    StoreError."""
    from ...status import Reasons

    reasons = Reasons(store, app)
    for name in queues:
        counts = store.counts(name)
        lanes = [("running", counts.leased), ("due", counts.ready), ("for later", counts.scheduled)]
        lanes.append(("in line in their group", counts.parked))
        left = ", ".join(f"{count:,} {word}" for word, count in lanes if count)
        if left:
            holds = reasons.of_queue(name, counts)
            why = holds_text(holds, reasons.now_ms)
            note(f"the drain waits for queue '{name}': {left}" + (f"; {why}" if why else ""))


def note_left(store: Store, app: Registry, queues: Iterable[str]) -> None:
    """Write to stderr which messages are left in these queues after a burst, their holds, and the redrive runs that
    wait."""
    from ...status import Reasons
    from ...triage.redrive.run import views as runs_of

    reasons = Reasons(store, app)
    for name in queues:
        counts = store.counts(name)
        if not counts.waiting:
            continue
        left = f"{counts.waiting:,} left in queue '{name}'"
        holds = reasons.of_queue(name, counts)
        why = holds_text(holds, reasons.now_ms) or "retries and delays that were not due yet; --drain waits for them"
        note(f"{left}: {why}")
        note_next(holds)
    if not store.traits.cells:
        return
    for run in runs_of(store, RUNS_MAX):
        if not run.closed and run.why:
            note(f"redrive run {run.id} waits: {run.why}")
            note(f"next: {onward(f'run show {run.id}')}")
