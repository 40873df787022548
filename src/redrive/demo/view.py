"""Print the demo: a live view on a terminal, else a line a second, and the tables of the report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..deliver import DeadGroup
from ..deliver.run import FileDelivery
from ..duration import show
from ..events import DeliveryEvent, Event
from ..present.spark import spark
from .ledger import ProofVerdict

LINE_EVERY_S = 1.0
WAVE_SLOT_S = 0.25
WAVE_SLOTS = 16
BAR_WIDTH = 32
MARGIN = 7  # the least width of a table's first column
_PLAINLY = {
    "ConnectError": "connection refused",
    "RemoteProtocolError": "connection dropped without an answer",
    "ReadError": "connection reset",
    "TimeoutError": "no answer in time",
}
CellValue = object


class View:
    """An observer that shows the state of a delivery. `tries`: number of delivered events by number of attempts."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=10, transient=True) if console.is_terminal else None
        self._began_s = self._line_at_s = time.monotonic()
        self._due_ms: dict[str, int] = {}  # by message id: the due time of its retry
        self.tries: Counter[int] = Counter()
        self.retries: Counter[str] = Counter()  # number of retries by cause

    def __call__(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, DeliveryEvent):
                self._due_ms.pop(event.id, None)
                if event.outcome == "retry":
                    self._due_ms[event.id] = event.at_ms + (event.delay_ms or 0)
                    self.retries[_why(event)] += 1
                elif event.outcome == "done":
                    self.tries[event.attempt] += 1

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def took_s(self) -> float:
        return time.monotonic() - self._began_s

    def tick(self, delivery: FileDelivery) -> None:
        """Update the live view; without a terminal, print a line every LINE_EVERY_S."""
        if self._live is not None:
            self._live.update(self._picture(delivery))
        elif time.monotonic() - self._line_at_s >= LINE_EVERY_S:
            self._line_at_s = time.monotonic()
            self._console.print(f"  {self.took_s:4.0f} s  {_states(delivery, len(self._due_ms))}", soft_wrap=True)

    def _picture(self, delivery: FileDelivery) -> Group:
        total = delivery.record.total
        ended = total - delivery.tally.waiting
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=total, completed=ended, width=40)
        head.add_row("  ", bar, f"{ended}/{total}", f"{delivery.tally.rate():,.0f}/s", f"{self.took_s:.1f} s")
        states = Text("  " + _states(delivery, len(self._due_ms)))
        wave = Text(f"  coming retries, by {show(WAVE_SLOT_S)}:  now ", style="dim")
        wave.append(self._wave(), style="yellow").append(f" +{show(WAVE_SLOT_S * WAVE_SLOTS)}")
        error = Text(
            f"  last failure: {delivery.tally.last_error[:90]}", style="dim", overflow="ellipsis", no_wrap=True
        )
        return Group(head, states, wave, error)

    def _wave(self) -> str:
        """Return a line of blocks that shows how many retries become due in each of the next slots."""
        now_ms = time.time() * 1000
        slots = [0] * WAVE_SLOTS
        for due_ms in list(self._due_ms.values()):
            slots[min(WAVE_SLOTS - 1, max(0, int((due_ms - now_ms) / 1000 / WAVE_SLOT_S)))] += 1
        return spark(slots)


def _states(delivery: FileDelivery, waiting: int) -> str:
    tally = delivery.tally
    dead = tally.outcomes["dead"] + tally.outcomes["quarantined"]
    words = [f"{tally.outcomes['done']:>4} delivered", f"{waiting:>4} waiting to be retried", f"{dead:>3} dead"]
    return "  ".join([*words, f"{tally.retries:>4} retries so far"])


def _why(event: DeliveryEvent) -> str:
    """Return the failure in an event in a few words, without the URL, which is the same for all events."""
    name, text = (event.error or "").rpartition(".")[2], event.text or ""
    return text.partition(" from ")[0] if text.startswith("HTTP ") else _PLAINLY.get(name, name)


class Report:
    """Prints headings, texts and tables on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._section = 0

    def heading(self, text: str) -> None:
        self._section += 1
        self._console.print(Text.assemble("\n", (f"{self._section}  {text}", "bold")))

    def say(self, text: str, style: str = "") -> None:
        self._print(Text("  " + text, style))

    def table(self, rows: Sequence[Sequence[CellValue]], *, header: Sequence[str] = ()) -> None:
        """Print rows as a table: the first column right-aligned, the others left. An empty row is a blank line."""
        cells = [[_cell(cell) for cell in row] for row in [*([header] if header else []), *rows]]
        widths = [max(MARGIN, *(len(row[0]) for row in cells if row))]
        widths += [max(len(row[i]) for row in cells if len(row) > i) for i in range(1, max(map(len, cells)))]
        for number, row in enumerate(cells):
            line = Text("  ", "dim" if header and number == 0 else "")
            for i, (cell, wide) in enumerate(zip(row, widths, strict=False)):
                space = " " * (wide - len(cell))
                line.append(space if i == 0 else "").append_text(cell).append(space + "   " if i else "   ")
            line.rstrip()
            self._print(line)

    def space(self) -> None:
        self._print(Text())

    def bars(self, counts: Mapping[int, int], *header: str) -> None:
        """Print a bar for each count, with the count's key before it."""
        most = max(counts.values(), default=1)
        rows = [
            (key, Text("█" * max(1, round(BAR_WIDTH * n / most)), "green").append(f" {n}", "none"))
            for key, n in counts.items()
        ]
        self.table(rows, header=header)

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)

    def dead(self, groups: Sequence[DeadGroup]) -> None:
        """Print the groups of dead events, with their fingerprints."""
        rows = [
            (g.count, g.error.rpartition(".")[2], g.reason, g.text.partition(" from ")[0], g.fingerprint)
            for g in groups
        ]
        self.table(rows, header=("dead", "cause", "reason", "last failure", "fingerprint"))

    def verdict(self, v: ProofVerdict) -> None:
        """Print the result of the proof."""
        rows: list[Sequence[CellValue]] = [
            (v.events, "events were sent"),
            (v.delivered, "were accepted by the endpoint"),
            (v.dead, "are dead, each with its reason in the store"),
            (v.events - v.delivered - v.dead, "are lost"),
        ]
        self.table(rows)
        self.say(f"Requests per accepted event: {_tries(v.tries)}", "dim")
        if v.duplicates:
            text = f"{v.duplicates} were accepted more than once, as at-least-once delivery allows"
            self.say(f"{text}: {v.repeats} repeats, by their causes:")
            self.table([(count, cause) for cause, count in v.causes.items()])
        if v.dead_but_accepted:
            self.say(f"{v.dead_but_accepted} of the dead were accepted once, but no answer ever said so.")
        self.balance(v)

    def compare(self, rows: Sequence[tuple[str, str, str]], verdicts: Sequence[ProofVerdict]) -> None:
        """Print the figures of two runs side by side, and if their ledgers balance."""
        self.table([("without", "with", "a breaker"), *rows])
        for problem in (problem for v in verdicts for problem in v.problems):
            self.say(f"✗ {problem}", "bold red")
        if all(v.balanced for v in verdicts):
            self.say("✓ Both ledgers balance: none lost, none unexpected, every duplicate explained.", "bold green")

    def balance(self, v: ProofVerdict) -> None:
        for problem in v.problems:
            self.say(f"✗ {problem}", "bold red")
        if v.balanced:
            self.say("✓ The ledger balances: none lost, none unexpected, every duplicate explained.", "bold green")


def _cell(cell: CellValue) -> Text:
    return cell.copy() if isinstance(cell, Text) else Text(str(cell))


def _tries(tries: Mapping[int, int]) -> str:
    return ", ".join(f"{n} × {times}" for times, n in tries.items())
