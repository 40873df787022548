"""The program of `redrive top`: one window with a stack of screens, whose reads are paced to bound their cost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, ClassVar

from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.events import Key, Resize
from textual.widgets import Input

from ..errors import Misread
from . import keys, pace
from .keys import MOVES
from .layout import LaidOutRows, laid_out
from .lines import Lines, Rows
from .model import Model
from .question import Question
from .reader import ReadThread
from .screen import KeyAction, Screen, ScreenRow
from .screens import HelpScreen, PlanScreen, seven
from .texts import clock, line
from .tones import Tone, TonedSpan
from .trouble import trouble_text

_CSS = """
Screen { background: ansi_default; color: ansi_default; layers: base; }
Lines { height: 1; width: 100%; background: ansi_default; color: ansi_default; }
#head, #heading { height: 0; }
#rows { height: 1fr; }
Input { height: 1; border: none; padding: 0; background: ansi_default; color: ansi_default; width: 100%; }
Question { align: center middle; background: ansi_default; }
Question #box { width: 76; max-width: 100%; height: auto; border: solid ansi_default; padding: 0 1; }
"""


class Top(App[None]):
    """The terminal's view of a store. `run(mouse=False)` leaves the mouse to the terminal, for selecting text."""

    seven: list[Screen]
    is_paused: bool
    CSS: ClassVar[str] = _CSS
    BINDINGS: ClassVar[list[BindingType]] = [("ctrl+c", "quit", "quit")]
    ENABLE_COMMAND_PALETTE: ClassVar[bool] = False
    AUTO_FOCUS: ClassVar[str | None] = None  # no focus, so that the filter gets keys only once it is opened

    def __init__(self, model: Model) -> None:
        super().__init__(ansi_color=True)
        self.model = model
        self.seven = seven()
        self.stack: list[Screen] = [self.seven[0]]
        self.is_paused, self._is_up = False, False
        self._laid = LaidOutRows("", (), ())
        self._errors: dict[str, str] = {}  # the text of the last error, by reader
        self._said = ""
        self._readers = {name: ReadThread(name) for name in ("read", "study", "act")}
        self._wakes = {"read": asyncio.Event(), "study": asyncio.Event()}
        self._meter = pace.Meter()
        self._is_free = model.store.usage() is None

    def compose(self) -> ComposeResult:
        yield Lines(id="title", style=Style(reverse=True))
        yield Lines(id="tabs")
        yield Lines(id="head")
        yield Lines(id="heading", style=Style(bold=True, underline=True))
        yield Rows(id="rows")
        yield Lines(id="note", style=Style(bold=True))
        yield Input(id="filter", compact=True, placeholder="filter; enter keeps it, esc drops it", max_length=500)
        yield Lines(id="keys", style=Style(dim=True))

    def on_mount(self) -> None:
        box = self.query_one("#filter", Input)
        box.cursor_blink, box.display = False, False
        self.set_focus(None)
        self._is_up = True
        for name in self._wakes:
            self.run_worker(self._keep(name), name=name)
        self._paint()

    def on_unmount(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self._paint)

    @property
    def now(self) -> Screen:
        """The visible screen."""
        return self.stack[-1]

    async def _keep(self, name: str) -> None:
        """Call the visible screen's `read` or `study`, as `name` says, again and again, at the pace of `pace.py`."""
        wake = self._wakes[name]
        while True:
            screen = self.now
            wait_s = await self._fetch(screen, name) if _wants(screen, name) else None
            if screen is not self.now:
                continue
            if self.is_paused and name not in self._errors:
                wait_s = None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), wait_s)
            wake.clear()

    async def _fetch(self, screen: Screen, name: str) -> float | None:
        """Call the screen's `read` or `study` once on a thread; return the seconds until the next call, or None to wait
        for a key. A result is discarded if a key meanwhile changed what to read; the key has woken the next call."""
        changes = screen.changes

        def call() -> tuple[Any, int]:
            shown = screen.read(self.model) if name == "read" else screen.study(self.model)
            return shown, self.model.store.now_ms()

        try:
            (shown, now_ms), cpu_s = await self._readers[name].call(call)
            if screen.changes != changes:
                return None
            screen.now_ms = now_ms
            if name == "read":
                screen.reading = shown
            else:
                screen.studied = shown
            self._errors.pop(name, None)
            self._paint(screen)
        except Exception as error:  # any error is shown as a line, since the next read may succeed
            if screen is self.now:
                self._errors[name] = trouble_text(error)
                self._frame()
            return pace.AGAIN_S
        if screen.once:
            return None
        wait_s = pace.study_wait_s(cpu_s) if name == "study" else pace.read_wait_s(cpu_s, self._meter.lap())
        return wait_s if self._is_free else max(wait_s, pace.BILLED_S)

    def _wake(self) -> None:
        for wake in self._wakes.values():
            wake.set()

    def _paint(self, screen: Screen | None = None) -> None:
        """Show the last reading of a screen, by default of the visible one; do nothing if it is not visible."""
        screen = screen or self.now
        if screen is not self.now or not self._is_up:
            return
        rows = self.screen_stack[0].query_one("#rows", Rows)
        head: Sequence[str] = ()
        tones: Sequence[Sequence[TonedSpan]] = ()
        if screen.is_ready:
            page = screen.page()
            head, self._laid = page.head, laid_out(screen, page, max(20, self.size.width - 2))
            lines, of = self._laid.lines, self._laid.rows
            if page.first is not None:
                (text, tone) = page.first
                head, tones = [text, *head], [[TonedSpan(0, len(text), tone)]]
            keys_of = [str(row[screen.id]) for row in of]
            empty = page.empty if not screen.filter else f"nothing matches {screen.filter!r}; esc drops the filter"
            marked = bool(lines and screen.columns)
            rows.fill(lines or [line(empty)], keys_of, screen.chosen, marked=marked, spans=self._laid.spans)
            if marked:
                screen.chosen = rows.key
        else:
            self._laid = LaidOutRows("", (), ())
            rows.fill(["reading …"], [], None, marked=False)
        self._bar("head", [line(each) for each in head], tones)
        self._bar("heading", [f"  {self._laid.heading}"] if self._laid.heading else [])
        self._frame()

    def _bar(self, id: str, texts: Sequence[str], spans: Sequence[Sequence[TonedSpan]] = ()) -> None:
        self.screen_stack[0].query_one(f"#{id}", Lines).fit(texts, spans)

    def _frame(self) -> None:
        """Show the fixed lines above and below the rows."""
        wide, screen = self.size.width, self.now
        at = f"as of {clock(screen.now_ms)}" if screen.now_ms else ""
        state = "PAUSED" if self.is_paused else ""
        right = "  ".join(filter(None, [state, "redrive top", at]))
        self._bar("title", [keys.ends(f" {line(self.model.url)}", f"  {right} ", wide)])
        trail = [line(each.title) for each in self.stack[1:]]
        tabs = keys.tabs([each.name for each in self.seven], self.stack[0].name, trail)
        self._bar("tabs", [tabs], [keys.letters(tabs) if not trail else ()])
        error = next(iter(self._errors.values()), "")
        place = self.screen_stack[0].query_one("#rows", Rows).place
        filtered = f"filter: {screen.filter}" if screen.filter else ""
        notes = [f"error: {error}" if error else self._said, filtered, self._laid.note, place]
        note = line("   ".join(filter(None, notes)))
        self._bar("note", [note], [[TonedSpan(0, len(note), Tone.ACT)]] if error else ())
        self._bar("keys", [keys.hints(screen, wide, deep=len(self.stack) > 1)])

    def say(self, text: str) -> None:
        self._said = text
        self._frame()

    def on_key(self, event: Key) -> None:
        if len(self.screen_stack) > 1 or self.focused is not None:
            return  # an open question, or the filter, handles the key
        key = event.character if event.is_printable and event.character else event.key
        if self._pressed(key):
            event.stop()

    def _pressed(self, key: str) -> bool:
        """Act on a key; return True if it has a meaning on the visible screen."""
        page = max(1, self.query_one("#rows", Rows).size.height - 1)
        if key in MOVES:
            step = MOVES[key]
            moved = self.query_one("#rows", Rows).move(step * page if key in keys.PAGES else step)
            if self.now.columns:
                self.now.chosen = moved
            self._frame()
            return True
        if key in keys.SCREENS:
            self._go([self.seven[keys.SCREENS[key]]])
            return True
        act = next((act for act in self.now.acts if act.key == key), None)
        if act is not None:
            self._ask(act)
            return True
        if self.now.shift(key):
            self._fresh()
            return True
        do = getattr(self, f"_key_{keys.NAMES.get(key, '')}", None)
        if do is not None:
            do()
        return do is not None

    def _go(self, stack: list[Screen]) -> None:
        self.stack, self._said = stack, ""
        self._errors.clear()
        self._wake()
        self._paint()

    def _fresh(self) -> None:
        """Discard the visible screen's readings and read again, after its filter or view has changed."""
        self.now.reading = self.now.studied = self.now.chosen = None
        self.now.changes += 1
        self._wake()
        self._paint()

    def _key_next(self) -> None:
        at = self.seven.index(self.stack[0])
        self._go([self.seven[(at + 1) % len(self.seven)]])

    def _key_before(self) -> None:
        self._go([self.seven[self.seven.index(self.stack[0]) - 1]])

    def _key_look(self) -> None:
        row = self.row
        found = self.now.look(row) if row is not None else None
        if found is not None:
            self._go([*self.stack, found])

    def _key_back(self) -> None:
        if self.now.filter:
            self._filter("")
        elif len(self.stack) > 1:
            self._go(self.stack[:-1])

    def _key_plan(self) -> None:
        selector = self.now.selector(self.row)
        if selector is None:
            self.say("nothing is chosen that a redrive can be planned of")
        else:
            self._go([*self.stack, PlanScreen(selector)])

    def _key_help(self) -> None:
        self._go([*self.stack, HelpScreen(self.now)])

    def _key_pause(self) -> None:
        self.is_paused = not self.is_paused
        self._wake()
        self._frame()

    def _key_again(self) -> None:
        self._wake()

    def _key_sort(self) -> None:
        """Sort by the next visible column, and after the last one in the screen's own order."""
        names = [*self._laid.names, ""]
        at = names.index(self.now.sorted_by) if self.now.sorted_by in names else -1
        self.now.sorted_by, self.now.is_inverted = names[(at + 1) % len(names)], False
        self._paint()

    def _key_invert(self) -> None:
        self.now.is_inverted = not self.now.is_inverted
        self._paint()

    def _key_right(self) -> None:
        self.now.skipped = min(self.now.skipped + 1, max(0, len(self.now.columns) - 2))
        self._paint()

    def _key_left(self) -> None:
        self.now.skipped = max(0, self.now.skipped - 1)
        self._paint()

    def _key_quit(self) -> None:
        self.exit()

    @property
    def row(self) -> ScreenRow | None:
        """The chosen row of the visible screen; on a screen of text, the row that the text is about."""
        chosen = self.now.chosen
        return next((row for row in self._laid.rows if str(row[self.now.id]) == chosen), None)

    def _key_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.value, box.display = self.now.filter, True
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter" and event.input.display and not self.now.asks_store:
            self._filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "filter":
            self._filter(event.value.strip())
            self._leave_filter()

    async def action_quit(self) -> None:
        self.exit()

    def _leave_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.set_focus(None)

    def key_escape(self) -> None:
        if len(self.screen_stack) == 1 and self.focused is not None:
            self._leave_filter()
            self._filter("")

    def _filter(self, text: str) -> None:
        if text == self.now.filter:
            return
        try:
            self.now.check_filter(text)
        except Misread as error:
            self.say(f"not a filter: {error.what}; {error.why}")
            return
        self._said, self.now.filter = "", text
        if self.now.asks_store:
            self._fresh()
        self._paint()

    def _ask(self, act: KeyAction) -> None:
        row = self.now.subject(self.row)
        if row is None:
            self.say(f"nothing is chosen to {act.word}")
        elif not act.fits(row):
            self.say(f"{act.word}: not possible for {act.about(row)} as it is now")
        else:
            question = f"{act.word} {act.about(row)}?"
            asked = Question(question, act.count(row), optional=act.ends)
            self.push_screen(asked, lambda reason: self._answered(act, row, reason))

    def _answered(self, act: KeyAction, row: ScreenRow, reason: str | None) -> None:
        if reason is None:
            self.say(f"nothing was changed: {act.word} was left")
        else:
            self.say(f"{act.word} {act.about(row)} …")
            self.run_worker(self._do(act, row, reason), name=act.word)

    async def _do(self, act: KeyAction, row: ScreenRow, reason: str) -> None:
        try:
            answer = await self._readers["act"].call(lambda: act.do(self.model, row, reason))
        except Exception as error:
            self.say(f"not done: {trouble_text(error)}")
            return
        if isinstance(answer.value, Screen):
            self._go([*self.stack[:-1], answer.value])
        else:
            self.say(str(answer.value))
        self._wake()


def _wants(screen: Screen, name: str) -> bool:
    """Return True if the screen needs its `read` or `study`, as `name` says, to be called now."""
    if name == "read":
        return screen.reads and not (screen.once and screen.reading is not None)
    return screen.studies and not (screen.once and screen.studied is not None)
