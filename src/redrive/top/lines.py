"""The two widgets: a bar of fixed text, and rows with a cursor. Both paint only the lines that changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from ..redact import one_line
from .tones import Tone, TonedSpan

CURSOR, NO_CURSOR = "› ", "  "  # the first mark also shows the cursor to readers without colours
_CHOSEN = Style(reverse=True)
_TONES = {
    Tone.ACT: Style(color="red", bold=True),
    Tone.WAIT: Style(color="yellow"),
    Tone.QUIET: Style(dim=True),
    Tone.KEY: Style(underline=True),
}
PaintedLine = tuple[str, Style, Sequence[TonedSpan]]


class Lines(Widget):
    """A widget of lines, each cut at its width."""

    def __init__(self, *, id: str, style: Style | None = None) -> None:
        super().__init__(id=id)
        self._style = style or Style()
        self._painted: list[PaintedLine] = []

    @property
    def texts(self) -> Sequence[str]:
        """The visible lines."""
        return [text for text, _, _ in self._painted]

    def show(self, texts: Sequence[str], spans: Sequence[Sequence[TonedSpan]] = ()) -> None:
        self._paint([(one_line(text), self._style, _of(spans, n)) for n, text in enumerate(texts)])

    def fit(self, texts: Sequence[str], spans: Sequence[Sequence[TonedSpan]] = ()) -> None:
        """Show these lines, with these tones, and make the widget as high as their number."""
        if len(texts) != len(self._painted) or self.styles.height is None:
            self.styles.height = len(texts)
        self.show(texts, spans)

    def _paint(self, lines: list[PaintedLine]) -> None:
        before, self._painted = self._painted, lines
        if before == lines:
            return
        wide = self.size.width
        for y in range(max(len(before), len(lines))):
            if before[y : y + 1] != lines[y : y + 1]:
                self.refresh(Region(0, y, wide, 1))

    def render_line(self, y: int) -> Strip:
        wide = self.size.width
        text, style, spans = self._painted[y] if y < len(self._painted) else ("", self._style, ())
        parts, at = [], 0
        for start, end, tone in spans:
            parts += [Segment(text[at:start], style), Segment(text[start:end], style + _TONES[tone])]
            at = end
        return Strip([*parts, Segment(text[at:], style)]).adjust_cell_length(wide, style)


def _of(spans: Sequence[Sequence[TonedSpan]], n: int) -> Sequence[TonedSpan]:
    return tuple(spans[n]) if n < len(spans) else ()


class Rows(Lines):
    """Rows with a cursor, which stays on its row when other rows appear or disappear."""

    at: int
    marked: bool

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._lines: Sequence[str] = ()
        self._keys: Sequence[str] = ()
        self._spans: Sequence[Sequence[TonedSpan]] = ()
        self.at, self._top = 0, 0
        self.marked = True

    def fill(
        self,
        lines: Sequence[str],
        keys: Sequence[str],
        chosen: str | None,
        *,
        marked: bool = True,
        spans: Sequence[Sequence[TonedSpan]] = (),
    ) -> None:
        """Show these lines, with these tones. `keys` identify them; `chosen` is the key of the line with the cursor,
        which keeps its position if that line is gone. `marked`: the cursor is visible."""
        height = self.at - self._top  # the cursor's distance from the top, which is kept
        if chosen is None:
            self.at, self._top = 0, 0
        elif not (self.at < len(keys) and keys[self.at] == chosen):
            self.at = keys.index(chosen) if chosen in keys else min(self.at, max(0, len(keys) - 1))
            self._top = max(0, self.at - height)
        self._lines, self._keys, self._spans, self.marked = lines, keys, spans, marked
        self._turn()

    def move(self, by: int) -> str | None:
        """Move the cursor by so many lines; return the key of its new line."""
        if not self.marked:  # a text scrolls without a visible cursor
            self._top = max(0, min(self._top + by, len(self._lines) - self.size.height))
            self.at = self._top
        else:
            self.at = max(0, min(self.at + by, len(self._lines) - 1))
        self._turn()
        return self.key

    @property
    def key(self) -> str | None:
        """The key of the line with the cursor; None if there are no lines."""
        return self._keys[self.at] if self.at < len(self._keys) else None

    @property
    def place(self) -> str:
        """The number of the line with the cursor, and the number of all lines; empty if all lines are visible."""
        return f"{self.at + 1:,}/{len(self._lines):,}" if len(self._lines) > self.size.height else ""

    def on_resize(self) -> None:
        self._painted = []
        self._turn()

    def _turn(self) -> None:
        height = max(1, self.size.height)
        if self.marked:
            self._top = min(max(self._top, self.at - height + 1), self.at)
        self._top = max(0, min(self._top, len(self._lines) - height))
        seen = self._lines[self._top : self._top + height]
        cursor = self.at - self._top if self.marked else -1
        self._paint([self._line(text, _of(self._spans, self._top + y), y == cursor) for y, text in enumerate(seen)])

    def _line(self, text: str, spans: Sequence[TonedSpan], is_chosen: bool) -> PaintedLine:
        if is_chosen:  # in reverse alone, as a colour would be the background of its word
            return one_line(CURSOR + text), _CHOSEN, ()
        by = len(NO_CURSOR)
        return one_line(NO_CURSOR + text), self._style, tuple(TonedSpan(s + by, e + by, tone) for s, e, tone in spans)
