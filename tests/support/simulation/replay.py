"""Record an outage of a minute, replay it from the store's history, and play all of it for real.

`python -m tests.support.simulation.replay FILE.svg` plays three runs side by side on loopback: the outage, the same
with a breaker, and the same with a budget. It replays the first one's history unchanged and with each setting, prints
what was replayed beside what came, and draws the calls per second of three minutes.
"""

from __future__ import annotations

import contextlib
import math
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

from msgspec.structs import replace

from redrive.simulate import Simulated, simulate
from redrive.simulate.past import read_past, with_setting

from .truths import CUT_S, PLAYED, REPLAYED, Real, error_of_calls, make_app, play

SEEDS = range(9)
WIDTH, PANEL, LEFT, TOP = 760, 150, 52, 34


class Compared(NamedTuple):
    """A run that was played for real, and its replays from the history of the first."""

    name: str
    real: Real
    replays: list[Simulated]

    @property
    def off(self) -> float:
        return error_of_calls(self.real, self.replays, aligned="breaker" in self.name)

    @property
    def deaths(self) -> list[int]:
        return [sum(each.dead.values()) for each in self.replays]

    @property
    def drained_s(self) -> float:
        return median(each.drained_s or math.inf for each in self.replays)

    @property
    def misses(self) -> list[str]:
        """The bounds that it misses."""
        bound = 3 * max(stdev(self.deaths), math.sqrt(mean(self.deaths)), 1 / 3)
        held = {
            "calls": self.off <= 0.10,
            "dead": abs(sum(self.real.dead.values()) - mean(self.deaths)) <= bound,
            "drained": self.real.drained_s == self.drained_s  # neither is, by then
            or abs(self.real.drained_s - self.drained_s) <= 0.15 * min(self.drained_s, CUT_S),
        }
        return [name for name, kept in held.items() if not kept]

    def row(self) -> str:
        return (
            f"| {self.name} | {sum(self.real.calls):,} | {mean(sum(each.calls) for each in self.replays):,.0f} "
            f"| {self.off:.1%} | {sum(self.real.dead.values())} | {mean(self.deaths):.1f} ± {stdev(self.deaths):.1f} "
            f"| {_time(self.real.drained_s)} | {_time(self.drained_s)} | {', '.join(self.misses) or '–'} |"
        )


def compare(folder: Path) -> list[Compared]:
    """Play the three runs for real, at once, and replay the first."""
    folders = {name: folder / str(number) for number, name in enumerate(REPLAYED)}
    for each in folders.values():
        each.mkdir()
    with ThreadPoolExecutor(len(REPLAYED)) as pool:
        came = dict(zip(REPLAYED, pool.map(play, REPLAYED, folders.values()), strict=True))
    first = next(iter(REPLAYED))
    app = make_app(PLAYED[first], f"sqlite:///{folders[first]}/work.db", 1)
    with contextlib.closing(app.store):
        now_ms = app.store.now_ms()
        wide = read_past(app.store, app, now_ms - 5 * 60_000, now_ms).scenario
        begun_ms = wide.start_ms + round(wide.load[0].from_s * 1000)  # a replay begins when the run did
        past = read_past(app.store, app, begun_ms, now_ms)
    print(f"recorded: {past.enqueued} messages, {past.calls} calls, {past.failed} failed, {past.dead} dead\n")
    return [
        Compared(name, came[name], [
            simulate(
                replace(with_setting(past.scenario, setting) if setting else past.scenario, seed=seed),
                lambda at_s, _: at_s < CUT_S,
            )
            for seed in SEEDS
        ])
        for name, setting in REPLAYED.items()
    ]  # fmt: skip


def draw(compared: Sequence[Compared]) -> str:
    """Return the calls per second as SVG: came as an area, replayed as a line, one panel for each run."""
    series = [(each.name, each.real.calls, _mean([s.calls for s in each.replays])) for each in compared]
    seconds = max(max(len(came), len(line)) for _, came, line in series)
    most = 10 * math.ceil(max(max(*came, *line) for _, came, line in series) / 10)
    x_each, tall = (WIDTH - LEFT - 12) / seconds, PANEL - 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {TOP + PANEL * len(series)}" role="img" '
        f'aria-labelledby="t d">',
        '<title id="t">An outage of a minute: what came beside the replay</title>',
        '<desc id="d">Calls per second of three runs: unchanged, with a breaker and with a budget.</desc>',
        "<style>text{font:12px sans-serif;fill:#444}.name{font-weight:bold;fill:#222}.came{fill:#9ec5e8}"
        ".line{fill:none;stroke:#b3261e;stroke-width:1.5}.down{fill:#f3e6c8}.axis{stroke:#999}</style>",
        f'<rect width="{WIDTH}" height="{TOP + PANEL * len(series)}" fill="#fff"/>',
        f'<rect class="came" x="{LEFT}" y="8" width="14" height="12"/><text x="{LEFT + 20}" y="18">came</text>'
        f'<path class="line" d="M{LEFT + 70} 14h14"/><text x="{LEFT + 90}" y="18">replayed, mean of nine seeds</text>'
        f'<rect class="down" x="{LEFT + 280}" y="8" width="14" height="12"/>'
        f'<text x="{LEFT + 300}" y="18">the service is down</text>',
    ]
    for number, (name, came, line) in enumerate(series):
        top = TOP + PANEL * number + 18
        base = top + tall

        def y(value: float, base: int = base) -> str:
            return f"{base - value / most * tall:.1f}"

        down = PLAYED[compared[number].name].service.phases[0]
        steps = "".join(f"L{LEFT + s * x_each:.1f} {y(n)}H{LEFT + (s + 1) * x_each:.1f}" for s, n in enumerate(came))
        drawn = "L".join(f"{LEFT + (s + 0.5) * x_each:.1f} {y(n)}" for s, n in enumerate(line))
        parts += [
            f'<text class="name" x="{LEFT}" y="{top - 5}">{name}</text>',
            f'<rect class="down" x="{LEFT + down.from_s * x_each:.1f}" y="{top}" '
            f'width="{(down.until_s - down.from_s) * x_each:.1f}" height="{tall}"/>',
            f'<path class="came" d="M{LEFT} {base}{steps}V{base}Z"/><path class="line" d="M{drawn}"/>',
            f'<path class="axis" d="M{LEFT} {base}H{WIDTH - 12}"/>',
            f'<text x="{LEFT - 6}" y="{top + 10}" text-anchor="end">{most}/s</text>',
            f'<text x="{LEFT - 6}" y="{base}" text-anchor="end">0</text>',
            *(
                f'<text x="{LEFT + s * x_each:.1f}" y="{base + 14}" text-anchor="middle">{s} s</text>'
                for s in range(0, seconds - 1, 30)
            ),
        ]
    return "\n".join([*parts, "</svg>", ""])


def _time(drained_s: float) -> str:
    return "not yet" if math.isinf(drained_s) else f"{drained_s:.1f} s"


def _mean(series: Sequence[Sequence[int]]) -> list[float]:
    return [
        sum(each[second] for each in series if second < len(each)) / len(series)
        for second in range(max(map(len, series)))
    ]


def main(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        compared = compare(Path(folder))
    print("| run | calls | replayed | off, median second | dead | replayed | drained | replayed | misses |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---|")
    print("\n".join(each.row() for each in compared))
    path.write_text(draw(compared))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
