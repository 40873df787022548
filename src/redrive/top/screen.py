"""What every screen is: what it reads, the rows it shows, and what its keys do.

A screen knows nothing of the terminal. `read` runs each second on a thread and must be cheap; `study` runs less often
on another one, for what costs more. `page` makes rows of what both returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from ..present.table import Column
from .model import Model

ScreenRow = Mapping[str, Any]


class ScreenPage(NamedTuple):
    """What a screen shows: lines above the table, and its rows; `empty` says why there are none."""

    rows: Sequence[ScreenRow]
    head: Sequence[str] = ()
    empty: str = "nothing"


def _always(row: ScreenRow) -> bool:
    return True


def _one(row: ScreenRow) -> int:
    return 1


class KeyAction(NamedTuple):
    """What an upper-case key does to the chosen row, after a question that needs a reason, unless `ends`: it ends what
    somebody did.

    `do(model, row, reason)` runs on a thread and returns a line that says what was done, or a screen to go to. `fits`:
    whether it can be done to this row. Above CONFIRM_ABOVE messages, `count(row)` has to be typed, too.
    """

    key: str
    word: str
    about: Callable[[ScreenRow], str]
    do: Callable[[Model, ScreenRow, str], str | Screen]
    fits: Callable[[ScreenRow], bool] = _always
    count: Callable[[ScreenRow], int] = _one
    ends: bool = False


class Screen:
    """A list of rows. `id` names the column by which a row is known again."""

    name: ClassVar[str] = ""
    columns: Sequence[Column] = ()  # none: the rows are lines of text
    id: ClassVar[str] = "id"
    acts: Sequence[KeyAction] = ()
    reads, studies = True, False
    once: ClassVar[bool] = False  # it is read or studied once: it does not change
    asks_store: ClassVar[bool] = False  # the filter is a question to the store, and not a part of the rows' text

    def __init__(self) -> None:
        self.filter = ""
        self.chosen: str | None = None  # the id of the row with the cursor
        self.reading: Any = None  # what `read` returned last; None: nothing yet
        self.studied: Any = None
        self.now_ms = 0  # the store's time then

    @property
    def title(self) -> str:
        return self.name

    @property
    def is_ready(self) -> bool:
        """Whether there is something to show."""
        return (self.reading is not None or not self.reads) and (self.studied is not None or self.reads)

    @property
    def leads(self) -> bool:
        """Whether its rows lead to another screen."""
        return type(self).look is not Screen.look

    @property
    def plans(self) -> bool:
        """Whether a redrive can be planned from here."""
        return type(self).selector is not Screen.selector

    def read(self, model: Model) -> Any:
        """Cheap figures, each second. Raises StoreError."""

    def study(self, model: Model) -> Any:
        """Figures that cost more, every few seconds. Raises StoreError."""

    def page(self) -> ScreenPage:
        """The rows, of what was read. Pure."""
        raise NotImplementedError

    def look(self, row: ScreenRow) -> Screen | None:
        """The screen that shows this row alone; None if there is no more to see."""
        return None

    def subject(self, row: ScreenRow | None) -> ScreenRow | None:
        """What the upper-case keys change: the chosen row; on a screen of one thing, that thing."""
        return row

    def selector(self, row: ScreenRow | None) -> str | None:
        """The selector of the messages that `p` plans a redrive of; None: a row has to be chosen."""
        return None

    def check_filter(self, text: str) -> None:
        """Raises SelectorError for a filter that cannot be understood."""

    def shift(self, key: str) -> bool:
        """Change what is shown by a lower-case key of this screen; whether the key has a meaning here."""
        return False

    @property
    def shifts(self) -> Mapping[str, str]:
        """Such keys, each with what it does."""
        return {}


class Text(Screen):
    """A screen of lines."""

    id: ClassVar[str] = "n"

    def lines(self) -> Sequence[str]:
        """The lines, of what was read. Pure."""
        raise NotImplementedError

    def page(self) -> ScreenPage:
        return ScreenPage([{"n": str(n), "line": each} for n, each in enumerate(self.lines())])
