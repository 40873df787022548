"""The interface of all screens: what a screen reads, the rows it shows, and what its keys do.

A screen knows nothing of the terminal. `read` runs each second on a thread and must be cheap; `study` runs less often
on another one, for what costs more. `page` makes rows of what both returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from ..present.table import Column
from .model import Model
from .tones import Tone, tone_of

ScreenRow = Mapping[str, Any]


class ScreenPage(NamedTuple):
    """The content of a screen: the rows of its table, lines above it, and `empty`, the text if there are no rows.
    `first` is a line above all others, with its tone."""

    rows: Sequence[ScreenRow]
    head: Sequence[str] = ()
    empty: str = "nothing"
    first: tuple[str, Tone] | None = None


def _always(row: ScreenRow) -> bool:
    return True


def _one(row: ScreenRow) -> int:
    return 1


class KeyAction(NamedTuple):
    """The action of an upper-case key on the chosen row. The person is asked for a reason first, which is optional if
    the action `ends` something that a person did.

    `do(model, row, reason)` runs on a thread and returns a line with the result, or the next screen. `fits(row)`:
    whether the action applies. Above CONFIRM_ABOVE messages, the person must type `count(row)`, too.
    """

    key: str
    word: str
    about: Callable[[ScreenRow], str]
    do: Callable[[Model, ScreenRow, str], str | Screen]
    fits: Callable[[ScreenRow], bool] = _always
    count: Callable[[ScreenRow], int] = _one
    ends: bool = False


class Screen:
    """A list of rows. `id` is the column by which a row is recognised after the next read."""

    reads: bool
    studies: bool
    name: ClassVar[str] = ""
    columns: Sequence[Column] = ()  # none: the rows are lines of text
    id: ClassVar[str] = "id"
    acts: Sequence[KeyAction] = ()
    reads, studies = True, False
    toned: ClassVar[Sequence[str]] = ("state",)  # the columns whose words have a tone
    once: ClassVar[bool] = False  # True if it is read or studied only once, as it does not change
    asks_store: ClassVar[bool] = False  # True: the store applies the filter; False: it is compared with the rows

    def __init__(self) -> None:
        self.filter = ""
        self.chosen: str | None = None  # the id of the row with the cursor
        self.reading: Any = None  # the last result of `read`; None before the first
        self.studied: Any = None
        self.changes = 0  # number of times that a key changed what to read: what was asked for before is out of date
        self.now_ms = 0  # the store's time at the last read, in ms
        self.sorted_by = ""  # the column that the rows are sorted by; empty: as `page` has them
        self.is_inverted = False
        self.skipped = 0  # number of columns after the first that are left out, so that later ones have room

    @property
    def title(self) -> str:
        return self.name

    @property
    def is_ready(self) -> bool:
        """True once all data that the screen needs has been read."""
        return (self.reading is not None or not self.reads) and (self.studied is not None or self.reads)

    @property
    def leads(self) -> bool:
        """True if the rows of this screen open another screen."""
        return type(self).look is not Screen.look

    @property
    def plans(self) -> bool:
        """True if a redrive can be planned on this screen."""
        return type(self).selector is not Screen.selector

    def read(self, model: Model) -> Any:
        """Return data that is cheap to read; called each second. Raises StoreError."""

    def study(self, model: Model) -> Any:
        """Return data that costs more to read; called every few seconds. Raises StoreError."""

    def page(self) -> ScreenPage:
        """Return the content of the screen, made from the last `reading` and `studied`. Pure."""
        raise NotImplementedError

    def look(self, row: ScreenRow) -> Screen | None:
        """Return the screen with the details of a row; None if there is none."""
        return None

    def subject(self, row: ScreenRow | None) -> ScreenRow | None:
        """Return the row on which upper-case keys act: the chosen one; on a screen of details, its subject."""
        return row

    def selector(self, row: ScreenRow | None) -> str | None:
        """Return the selector of the messages that `p` plans to redrive; None if a row must be chosen first."""
        return None

    def check_filter(self, text: str) -> None:
        """Raise SelectorError if the text is no valid filter for this screen."""

    def shift(self, key: str) -> bool:
        """Act on a lower-case key that changes the view of this screen; return True if the key does that here."""
        return False

    def tones(self, row: ScreenRow) -> Mapping[str, Tone]:
        """Return the tones of a row by column; a row of text has the column `line`."""
        found = {name: tone_of(row[name]) for name in self.toned if row.get(name)}
        return {name: tone for name, tone in found.items() if tone is not None}

    @property
    def shifts(self) -> Mapping[str, str]:
        """The keys that `shift` handles, each with a word for its effect."""
        return {}


class Text(Screen):
    """A screen of lines."""

    id: ClassVar[str] = "n"

    def lines(self) -> Sequence[str]:
        """Return the lines, made from the last `reading` and `studied`. Pure."""
        raise NotImplementedError

    def page(self) -> ScreenPage:
        return ScreenPage([{"n": str(n), "line": each} for n, each in enumerate(self.lines())])
