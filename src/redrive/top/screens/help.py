"""The keys, and their meaning on the screen from which help was opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from ..model import Model
from ..screen import Screen, Text

_KEYS = (
    ("1 to 7, tab", "go to a screen: overview, queues, groups, runs, messages, workers, flow"),
    ("o u g r m w f", "the same by letter: overview, queUes, groups, runs, messages, workers, flow"),
    ("up down j k", "move; page up, page down, home and end move further"),
    ("enter", "look at the chosen row"),
    ("esc, backspace", "drop the filter, or go back"),
    ("/", "filter the rows by a part of their text; messages by a selector such as queue:crm failed:<6h"),
    ("s, i", "sort by the next column, and at the end as before; invert that order"),
    ("right left", "leave out the columns after the first one by one, so that later ones have room; back"),
    ("p", "plan a redrive of the chosen group or queue, or of the messages that the selector names"),
    ("space", "pause refreshing, and go on"),
    ("ctrl-l", "read again now"),
    ("?", "this help"),
    ("q, ctrl-c", "quit"),
)


class HelpScreen(Text):
    """All keys. Lower case is safe; upper case changes something, and asks for a reason first."""

    name: ClassVar[str] = "help"
    once: ClassVar[bool] = True

    def __init__(self, of: Screen) -> None:
        super().__init__()
        self._of = of

    def read(self, model: Model) -> Sequence[str]:
        return list(self._told())

    def lines(self) -> Sequence[str]:
        found: Sequence[str] = self.reading
        return found

    def _told(self) -> Iterator[str]:
        yield from (
            "Lower case is safe. UPPER CASE changes something; it asks for a reason, which the audit log keeps.",
            "",
        )
        yield from (f"{key:<15} {what}" for key, what in _KEYS)
        here = [*self._of.shifts.items(), *((act.key, f"{act.word}, after a reason") for act in self._of.acts)]
        if here:
            yield from ("", f"on {self._of.title}", *(f"{key:<15} {what}" for key, what in here))
