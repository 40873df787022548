"""Draw charts as SVG, without scripts; a table with the same numbers accompanies each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

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
