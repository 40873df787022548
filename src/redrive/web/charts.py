"""Draw charts as SVG, without scripts; a table with the same numbers accompanies each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from markupsafe import Markup

from ..duration import show

SPARK_WIDE, SPARK_HIGH = 120, 24
WIDE, HIGH = 640, 160  # width and height of a chart in its own units, which are scaled to its container
_SERIES_MAX = 6  # the most series of a chart: the stylesheet has as many classes
_LOG_FROM = 20.0  # a scale is logarithmic if its highest value is more than so many times its lowest one


def spark(values: Sequence[float], label: str = "") -> Markup:
    """Return a small line chart of the values, scaled to the greatest one; empty if there is nothing to draw."""
    if len(values) < 2 or not any(values):
        return Markup("")
    most, step = max(values), SPARK_WIDE / (len(values) - 1)
    points = " ".join(
        f"{n * step:.1f},{SPARK_HIGH - 1 - value / most * (SPARK_HIGH - 2):.1f}" for n, value in enumerate(values)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">'
        '<polyline points="{}"/></svg>'
    ).format(SPARK_WIDE, SPARK_HIGH, label or "trend", points)


def bars(series: Sequence[tuple[str, Sequence[float]]], labels: Sequence[str], title: str) -> Markup:
    """Return a chart of stacked bars: one bar for each label, a colour and a pattern for each series, and a legend."""
    series = series[:_SERIES_MAX]
    sums = [sum(values) for values in zip(*(values for _, values in series), strict=True)]
    most = max(sums, default=0)
    if not most:
        return Markup('<p class="quiet">{}: nothing in this time.</p>').format(title)
    wide = WIDE / len(sums)
    drawn = Markup("").join(
        _bar(n * wide, max(0.5, wide - 1), [(name, values[n]) for name, values in series], labels[n], most)
        for n in range(len(sums))
    )
    legend = Markup("").join(
        Markup('<li><span class="dot s{}"></span>{}</li>').format(n, name) for n, (name, _) in enumerate(series)
    )
    return Markup(
        '<figure class="chart"><svg viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">{}</svg>'
        '<figcaption><span>{}</span><ul class="legend">{}</ul><span>{} – {}; highest {}</span></figcaption></figure>'
    ).format(WIDE, HIGH, title, drawn, title, legend, labels[0], labels[-1], f"{most:,.6g}")


def _bar(x: float, wide: float, values: Sequence[tuple[str, float]], label: str, most: float) -> Markup:
    """Return the parts of one bar, the value of the first series at the bottom; `most`: the sum at the chart's top."""
    parts, low = [], 0.0
    for which, (name, value) in enumerate(values):
        y, high = HIGH - (low + value) / most * HIGH, value / most * HIGH
        low += value
        if value:
            title = f"{label}: {name} {value:,.6g}"
            part = '<rect class="s{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"><title>{}</title></rect>'
            parts.append(Markup(part).format(which, x, y, wide, high, title))
    return Markup("").join(parts)


PLOT_TOP, PLOT_HIGH, PLOT_TICKS = 8, 136, 8  # of a timeline: px above the plot, its height, the most ticks below it
_TICKS_S = (60, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 432_000, 604_800)


def timeline(
    series: Sequence[tuple[str, Sequence[float]]],
    times: Sequence[str],
    step_s: float,
    title: str,
    before: Sequence[float] = (),
    against: str = "the time before",
    marks: Sequence[Mapping[str, str]] = (),
) -> Markup:
    """Return stacked bars over time with axes: one bar for each time, a colour for each series, as a dashed line the
    sums of the time `against` which this one is compared, and `marks`: releases, each with the time at which it began.
    Positions are in per cent of the width, so that no text is distorted. A script lets the reader select a range."""
    series = series[:_SERIES_MAX]
    sums = [sum(values) for values in zip(*(values for _, values in series), strict=True)]
    if not any(sums) and not any(before):
        return Markup('<p class="quiet">{}: nothing in this time.</p>').format(title)
    step = _nice(max([*sums, *before, 3]) / 3)
    top, wide = 3 * step, 100 / len(sums)
    values = [[(name, of[n]) for name, of in series] for n in range(len(sums))]
    bars_drawn = [_column(n * wide, wide, values[n], clock(times[n]), top) for n in range(len(sums))]
    lines = [
        Markup('<line x1="0" x2="100%" y1="{0:.1f}" y2="{0:.1f}"{1}/>').format(
            _down(n * step, top), Markup(' class="base"') if n == 0 else ""
        )
        for n in range(4)
    ]
    scale = [
        Markup('<text x="48" y="{:.1f}" text-anchor="end">{}</text>').format(_down(n * step, top) + 4, _brief(n * step))
        for n in range(4)
    ]
    legend = Markup("").join(
        Markup('<li><span class="dot s{}"></span>{}</li>').format(n, name) for n, (name, _) in enumerate(series)
    )
    if any(before):
        legend += Markup("<li>- - {}</li>").format(against)
    if marks:
        legend += Markup("<li>▾ first worker of a release</li>")
    begin = datetime.fromisoformat(times[0]).timestamp()
    return Markup(
        '<figure class="chart"><figcaption><span>{}, by {}</span><ul class="legend">{}</ul></figcaption>'
        '<div class="plot"><svg aria-hidden="true">{}</svg>'
        '<svg role="img" aria-label="{}" data-begin="{:.0f}" data-end="{:.0f}">{}{}{}{}{}</svg></div></figure>'
    ).format(
        title, show(step_s), legend, Markup("").join(scale), title, begin, begin + step_s * len(times),
        Markup("").join(lines), Markup("").join(bars_drawn), _dashed(before, top),
        Markup("").join(_ticks(times, step_s)),
        Markup("").join(_mark(mark["at"], mark["release"], begin, step_s * len(times)) for mark in marks),
    )  # fmt: skip


def _column(x: float, wide: float, values: Sequence[tuple[str, float]], when: str, top: float) -> Markup:
    """Return one bar of a timeline, with a title that has all its values, also where the bar is low."""
    parts, low = list[Markup](), 0.0
    for which, (_, value) in enumerate(values):
        if value:
            y, high = _down(low + value, top), value / top * PLOT_HIGH
            part = '<rect class="s{}" x="{:.3f}%" y="{:.1f}" width="{:.3f}%" height="{:.1f}"/>'
            parts.append(Markup(part).format(which, x + wide * 0.08, y, wide * 0.84, max(high, 1)))
            low += value
    told = "\n".join([when, *(f"{name}: {value:,.6g}" for name, value in values if value)])
    hit = Markup('<rect class="hit" x="{:.3f}%" y="{}" width="{:.3f}%" height="{}"/>').format(
        x, PLOT_TOP, wide, PLOT_HIGH
    )
    return Markup("<g><title>{}</title>{}{}</g>").format(told, Markup("").join(parts), hit)


def _dashed(before: Sequence[float], top: float) -> Markup:
    if not any(before):
        return Markup("")
    points = " ".join(f"{n * 2 + 1},{PLOT_HIGH - value / top * PLOT_HIGH:.1f}" for n, value in enumerate(before))
    return Markup(
        '<svg y="{}" width="100%" height="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">'
        '<polyline class="before" points="{}"/></svg>'
    ).format(PLOT_TOP, PLOT_HIGH, 2 * len(before), PLOT_HIGH, points)


def _mark(at: str, name: str, begin: float, long_s: float) -> Markup:
    """Return a line over a timeline at a time, with the name of what began then as its title."""
    x = (datetime.fromisoformat(at).timestamp() - begin) / long_s * 100
    return Markup(
        '<g class="mark"><title>{}</title><line x1="{x:.2f}%" x2="{x:.2f}%" y1="{}" y2="{}"/>'
        '<text x="{x:.2f}%" y="{}" text-anchor="middle">▾</text></g>'
    ).format(f"{clock(at)}: first worker of release {name}", PLOT_TOP, PLOT_TOP + PLOT_HIGH, PLOT_TOP, x=x)


def _ticks(times: Sequence[str], step_s: float) -> Iterator[Markup]:
    """Yield labels below a timeline at round times, at most PLOT_TICKS."""
    apart_s = next((s for s in _TICKS_S if s >= step_s and len(times) * step_s / s <= PLOT_TICKS), _TICKS_S[-1])
    for n, at in enumerate(times):
        moment = datetime.fromisoformat(at).astimezone(UTC)
        if moment.timestamp() % apart_s == 0 and n:
            words = moment.strftime("%d %b" if apart_s >= 86_400 else "%H:%M")
            x = n / len(times) * 100
            text = Markup('<text x="{:.3f}%" y="{}" text-anchor="middle" data-at="{}">{}</text>')
            yield text.format(x, PLOT_TOP + PLOT_HIGH + 18, at, words)


def clock(at: str) -> str:
    """Format a time as the label of a chart.

    >>> clock("2026-11-23T14:50:00.000Z")
    '23 Nov 14:50 UTC'
    """
    return datetime.fromisoformat(at).astimezone(UTC).strftime("%d %b %H:%M UTC")


def _down(value: float, top: float) -> float:
    """Return the distance in px from the top of a plot to this value."""
    return PLOT_TOP + PLOT_HIGH - value / top * PLOT_HIGH


def _nice(value: float) -> float:
    """Return the least round number that is not below the value, which is 1 at least."""
    power: float = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * power >= value)


def _brief(value: float) -> str:
    """Format a value for an axis: 1.5k, 20M."""
    for unit, word in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.4g}{word}"
    return f"{value:.4g}"


def ranges(spans: Sequence[tuple[float, float, float]], labels: Sequence[str], title: str) -> Markup:
    """Return a chart with a bar for each span (least, mean, greatest), labelled, and a mark at its mean. The scale is
    logarithmic if the greatest values differ much."""
    most = max((high for *_, high in spans), default=0.0)
    if not most:
        return Markup('<p class="quiet">{}: there are none.</p>').format(title)
    lowest = min(high for *_, high in spans if high > 0)
    is_log = most > _LOG_FROM * lowest
    floor = lowest / 2  # the lower end of a logarithmic scale, which cannot have 0

    def place(value: float) -> float:
        part = math.log(max(value, floor) / floor) / math.log(most / floor) if is_log else value / most
        return HIGH - part * (HIGH - 4)

    wide = WIDE / len(spans)
    drawn = Markup("").join(
        Markup(
            '<g><title>{}</title><rect class="s0 range" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"/>'
            '<rect class="s1" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="2"/></g>'
        ).format(
            label,
            n * wide, place(high), max(0.5, wide - 1), max(2.0, place(low) - place(high)),
            n * wide, min(place(mean), HIGH - 2), max(0.5, wide - 1),
        )
        for n, ((low, mean, high), label) in enumerate(zip(spans, labels, strict=True))
    )  # fmt: skip
    return Markup(
        '<figure class="chart"><svg viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">{}</svg>'
        '<figcaption><span>{}{}</span><ul class="legend"><li><span class="dot s0"></span>least to greatest</li>'
        '<li><span class="dot s1"></span>mean</li></ul></figcaption></figure>'
    ).format(WIDE, HIGH, title, drawn, title, ", on a logarithmic scale" if is_log else "")
