"""Plots of simulations and of the score of forecasts as SVG or PNG files, with matplotlib, from the extra `plot`."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..files import output
from .formats import listed, number, seconds

if TYPE_CHECKING:
    from ..simulate import Score, Simulated

FORMS = (".svg", ".png")
HELP = "also draw it into FILE.svg or FILE.png; needs the extra plot"
BINS = 400  # the most points of a line
VARIANTS_MAX = 20  # the most variants of one picture
#: The same data has the same bytes: no date, and no random ids.
_SETTINGS: Mapping[Any, Any] = {
    "svg.hashsalt": "redrive", "svg.fonttype": "none", "font.size": 8, "axes.titlesize": 9, "axes.spines.top": False,
    "axes.spines.right": False, "legend.frameon": False,
}  # fmt: skip
_WIDTH, _TALL, _DPI = 9.0, 2.1, 110  # inches, inches of a row of panels, dots per inch


def check(path: Path | None) -> None:
    """Check, before anything is computed, that a plot can be drawn into a file of this name. Raises ConfigError."""
    if path is None:
        return
    if path.suffix.lower() not in FORMS:
        raise ConfigError(f"--plot {path} is refused; expected a file that ends in {' or '.join(FORMS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path} is refused: there is no directory {path.parent}; expected one that exists")
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib; pip install 'redrive[plot]'")


def write_simulated(path: Path, came: Mapping[str, Simulated]) -> None:
    """Draw each variant: arrivals, calls, retries and successes per second on the left, waiting and dead messages on
    the right, and openings of the breaker as a shade. Raises OSError."""
    shown = dict(list(came.items())[:VARIANTS_MAX])
    until = max((len(series) for each in shown.values() for series in (each.arrived, each.calls, each.done)), default=1)
    with _picture(path, len(shown), 2) as figure:
        for row, (name, each) in enumerate(shown.items()):
            _draw(figure.axes[2 * row : 2 * row + 2], name, each, until)
        for axes in figure.axes[-2:]:
            axes.set_xlabel("seconds")
        for side in (figure.axes[::2], figure.axes[1::2]):
            top = max(axes.get_ylim()[1] for axes in side)
            for axes in side:
                axes.set_ylim(0, top)
            labelled = [axes.get_legend_handles_labels() for axes in side]
            once = {
                label: handle for handles, labels in labelled for handle, label in zip(handles, labels, strict=True)
            }
            side[0].legend([*once.values()], [*once], loc="upper right")


def _draw(sides: Sequence[Any], name: str, came: Simulated, until: int) -> None:
    rates, sums = sides
    step = -(-until // BINS)
    at_s = [second + step / 2 for second in range(0, until, step)]
    rates.fill_between(at_s, _means(came.calls, until, step), step="mid", color="#c9d1f5", label="calls")
    for label, series, colour in (
        ("arrived", came.arrived, "#57606a"), ("retries", came.retries, "#b3261e"), ("done", came.done, "#1a7f37"),
    ):  # fmt: skip
        rates.plot(at_s, _means(series, until, step), color=colour, linewidth=1, label=label)
    waiting, dead = _standing(came, until)
    for label, counts, colour in (("wait or run", waiting, "#4051b5"), ("dead", dead, "#b3261e")):
        sums.plot(range(0, until, step), counts[::step], color=colour, linewidth=1, label=label)
    for begin, end in _openings(came, until):
        for axes in sides:
            axes.axvspan(begin, end, color="#f3e6c8", linewidth=0, label="breaker open")
    ended = "not drained" if came.drained_s is None else f"drained after {seconds(came.drained_s)}"
    dead_words = f"dead: {listed(came.dead)}" if came.dead else "none died"
    rates.set_title(f"{name}: per second", loc="left")
    sums.set_title(f"{number(came.amplification)} calls per message, {ended}, {dead_words}", loc="left")
    for axes in sides:
        axes.set_xlim(0, until)


def write_score(path: Path, score: Score, words: str) -> None:
    """Draw how long each run was foretold to last beside how long it lasted, the newest on top. Raises OSError."""
    rows = [*range(len(score.scored))]
    known = [(each.over_s, row) for row, each in enumerate(score.scored) if each.over_s is not None]
    with _picture(path, 1, 1, max(1.0, 0.12 * len(rows))) as figure:
        axes = figure.axes[0]
        axes.barh(rows, [each.came_s for each in score.scored], color="#c9d1f5", label="came")
        axes.scatter(*([*zip(*known, strict=True)] or ([], [])), marker="|", s=90, color="#b3261e", label="foretold")
        axes.set_yticks(rows, [each.run[-8:] for each in score.scored])
        axes.invert_yaxis()
        axes.set_xlabel("seconds that the run lasted")
        axes.set_title(words, loc="left")
        axes.legend()


@contextmanager
def _picture(path: Path, rows: int, columns: int, tall: float = 1.0) -> Iterator[Any]:
    """Yield a figure with so many panels, and write it."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    form, content = path.suffix.lower()[1:], io.BytesIO()
    with mpl.rc_context({**_SETTINGS}):
        figure = Figure(figsize=(_WIDTH, rows * _TALL * tall + 0.4), dpi=_DPI, layout="constrained")
        figure.subplots(rows, columns, squeeze=False)
        yield figure
        figure.savefig(content, format=form, metadata={"Date": None} if form == "svg" else {"Software": None})
    with output(path, public=True) as file:
        file.write(content.getvalue())


def _means(counts: Sequence[int], until: int, step: int) -> list[float]:
    """Return the mean of each `step` seconds."""
    padded = [*counts, *[0] * (until - len(counts))]
    return [sum(part := padded[at : at + step]) / len(part) for at in range(0, until, step)]


def _standing(came: Simulated, until: int) -> tuple[list[int], list[int]]:
    """Return the messages that wait or run at the end of each second, and those that have died by then."""
    waiting, dead = came.messages - sum(came.arrived), 0
    waits: list[int] = []
    died: list[int] = []
    for second in range(until):
        arrived, done, deaths = (
            series[second] if second < len(series) else 0 for series in (came.arrived, came.done, came.deaths)
        )
        waiting, dead = waiting + arrived - done - deaths, dead + deaths
        waits.append(waiting)
        died.append(dead)
    return waits, died


def _openings(came: Simulated, until: int) -> list[tuple[float, float]]:
    """Return the times in which the breaker was not closed."""
    spans: list[tuple[float, float]] = []
    since: float | None = None
    for at_s, status in came.breaker:
        if status == "closed" and since is not None:
            spans.append((since, at_s))
            since = None
        elif status != "closed" and since is None:
            since = at_s
    return spans if since is None else [*spans, (since, float(until))]
