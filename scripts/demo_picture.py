"""Usage: redrive demo -o json | python scripts/demo_picture.py [FILE]
Draw the demo's outage into FILE (docs/images/outage.svg): requests a second over time, without a breaker above, with
one below."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from math import ceil
from pathlib import Path

import msgspec

from redrive.demo.outage import SentRequest, Side

ROOT = Path(__file__).parents[1]

WIDTH, HEIGHT = 800, 436
LEFT, RIGHT = 56, 780
BIN_MS = 500
PLOT = 105  # height of the requests' part of a panel
BELOW = 24  # height of the deaths' part
BASES = (192, 374)  # the y of the zero line of each panel
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 } .name { font-weight: 600 } .muted { fill: #59636e; font-size: 12px }
.card { fill: #ffffff; stroke: #d1d9e0 } .line { stroke: #8c959f } .grid { stroke: #d1d9e0 } .band { fill: #ffebe9 }
.calm { fill: #0969da } .vain { fill: #bc4c00 } .again { fill: #1a7f37 } .dead { fill: #cf222e }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .muted { fill: #b1bac4 }
  .card { fill: #0d1117; stroke: #3d444d } .line { stroke: #9198a1 } .grid { stroke: #3d444d } .band { fill: #3c1a1c }
  .calm { fill: #4493f8 } .vain { fill: #f0883e } .again { fill: #3fb950 } .dead { fill: #ff7b72 }
}
"""
LEGEND = (("calm", "requests"), ("vain", "while nothing listens"), ("again", "redriven"), ("dead", "deaths"))


def picture(without: Side, with_breaker: Side) -> str:
    """Return the SVG. Both panels have the same scales; the colours follow the light or dark theme."""
    sides = (without, with_breaker)
    scale = _Scale(sides)
    text = " ".join(_summary(side) for side in sides)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t d">',
        '<title id="t">Requests per second through an outage, without a circuit breaker and with one</title>',
        f'<desc id="d">{escape(text)}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>',
        _text(20, 28, "Requests per second through the same outage", "title"),
        *_legend(),
    ]
    for side, base in zip(sides, BASES, strict=True):
        parts += _panel(side, base, scale)
    parts.append(_text(RIGHT, HEIGHT - 8, "seconds", "muted", "end"))
    return "\n".join([*parts, "</svg>", ""])


class _Scale:
    """The scales that both panels share."""

    def __init__(self, sides: Sequence[Side]) -> None:
        last_ms = max(max(request.at_ms for request in side.requests) for side in sides)
        self.seconds = ceil((last_ms + 1) / 1000)
        most = max(max(_bins(r.at_ms for r in side.requests).values()) for side in sides)
        self.per_s = max(50, 50 * ceil(most * 1000 / BIN_MS / 50))
        self.deaths = max(1, *(n for side in sides for n in _bins(side.deaths_ms).values()))

    def x(self, at_ms: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * at_ms / 1000 / self.seconds, 1)

    def high(self, count: int) -> float:
        """Return the height of a bar for so many requests in a bin."""
        return PLOT * count * 1000 / BIN_MS / self.per_s


def _summary(side: Side) -> str:
    met = f"{side.in_outage:,} requests while nothing listened"
    died = f"{side.died:,} events died and were redriven" if side.died else "none died"
    return f"{'With' if side.breaker else 'Without'} a circuit breaker: {met}, {died}."


def _legend() -> Iterable[str]:
    x = 20
    for look, name in LEGEND:
        yield f'<rect class="{look}" x="{x}" y="42" width="11" height="11" rx="2"/>'
        yield _text(x + 17, 52, name, "muted")
        x += 42 + round(6.3 * len(name))


def _panel(side: Side, base: int, scale: _Scale) -> Iterable[str]:
    begin, end = (scale.x(at_ms) for at_ms in side.outage_ms)
    top = base - PLOT
    yield f'<rect class="band" x="{begin}" y="{top}" width="{round(end - begin, 1)}" height="{PLOT + BELOW}"/>'
    for rate in (scale.per_s, scale.per_s // 2):
        y = base - PLOT * rate / scale.per_s
        yield f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:g}" y2="{y:g}"/>'
        yield _text(LEFT - 6, y + 4, str(rate), "muted", "end")
    yield from _columns(side, base, scale)
    yield f'<line class="line" x1="{LEFT}" x2="{RIGHT}" y1="{base}" y2="{base}"/>'
    for second in range(0, scale.seconds + 1, 2):
        yield _text(scale.x(1000 * second), base + BELOW + 12, str(second), "muted", "middle")
    yield _text(LEFT, top - 8, _summary(side), "name")


def _columns(side: Side, base: int, scale: _Scale) -> Iterable[str]:
    begin_ms, end_ms = side.outage_ms

    def look_of(request: SentRequest) -> str:
        return "again" if request.redriven else "vain" if begin_ms <= request.at_ms < end_ms else "calm"

    reached: Counter[int] = Counter()
    for look in ("calm", "vain", "again"):
        for n, count in sorted(_bins(r.at_ms for r in side.requests if look_of(r) == look).items()):
            low, high = scale.high(reached[n]), scale.high(count)
            reached[n] += count
            yield _column(look, n, base - low - high, high, scale)
    for n, count in sorted(_bins(side.deaths_ms).items()):
        yield _column("dead", n, base + 1, max(2.0, (BELOW - 4) * count / scale.deaths), scale)


def _column(look: str, n: int, y: float, high: float, scale: _Scale) -> str:
    x, wide = scale.x(n * BIN_MS), scale.x(BIN_MS) - scale.x(0) - 1.5
    return f'<rect class="{look}" x="{x}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}"/>'


def _bins(times_ms: Iterable[int]) -> Counter[int]:
    return Counter(at_ms // BIN_MS for at_ms in times_ms)


def _text(x: float, y: float, text: str, look: str, anchor: str = "start") -> str:
    return f'<text class="{look}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


class Report(msgspec.Struct):
    """The part of the demo's figures that is drawn."""

    outage: tuple[Side, Side]


def main(file: Path) -> None:
    report = msgspec.json.decode(sys.stdin.buffer.read(), type=Report)
    file.write_text(picture(*report.outage))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "outage.svg")
