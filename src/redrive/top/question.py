"""Ask for a reason before a change, and for the number of messages if there are more than a hundred."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from ..audit import REASON_MAX
from ..present.confirm import is_number, needs_number
from .lines import Lines
from .texts import line


class Question(ModalScreen[str | None]):
    """A dialog that returns the reason, or None if the change was cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "leave it"), ("ctrl+c", "dismiss(None)", "")]

    def __init__(self, question: str, count: int = 1, *, optional: bool = False) -> None:
        super().__init__()
        self._question, self._count, self._optional = line(question), count, optional

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Lines(id="question", style=Style(bold=True))
            if needs_number(self._count):
                yield Input(id="count", placeholder=f"type {self._count} to confirm", max_length=20, compact=True)
            why = "why: the audit log keeps it" + (" (or nothing)" if self._optional else "")
            yield Input(id="reason", placeholder=why, max_length=REASON_MAX, compact=True)
            yield Lines(id="hint")

    def on_mount(self) -> None:
        self.query_one("#question", Lines).fit([self._question])
        for box in self.query(Input):
            box.cursor_blink = False
        self.query(Input).first().focus()
        self._hint("enter: do it   esc: leave it")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        typed = {box.id: box.value.strip() for box in self.query(Input)}
        if "count" in typed and not is_number(typed["count"], self._count):
            self._missing("count", f"not done: type {self._count} to confirm")
        elif not typed["reason"] and not self._optional:
            self._missing("reason", "not done: say why")
        else:
            self.dismiss(typed["reason"])

    def _missing(self, id: str, text: str) -> None:
        self._hint(f"{text}   esc: leave it")
        self.query_one(f"#{id}", Input).focus()

    def _hint(self, text: str) -> None:
        self.query_one("#hint", Lines).fit([text])

    @property
    def told(self) -> Sequence[str]:
        """The visible lines of the question and of its hint."""
        return [*self.query_one("#question", Lines).texts, *self.query_one("#hint", Lines).texts]
