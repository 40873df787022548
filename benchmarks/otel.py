"""What tracing costs: while it is off, and beyond what OpenTelemetry's own SDK takes while it is on."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from .harness import ROOT, Broken, Options, Reading, fresh, interleaved, ratio

SIDE = ROOT / "benchmarks" / "otel_side.py"
OFF_WANTED, ON_WANTED = "≤ 1.01", "≤ 15"


def otel(options: Options) -> list[Reading]:
    """Processor time of a no-op message, put and worked off, with spans and without, in pairs; that of the SDK for the
    same spans is taken off. With `--before DIR`, a checkout from before there were spans, also what they cost while
    off."""
    sides = {"off": partial(_run, options, "off", ROOT), "on": partial(_run, options, "on", ROOT)}
    sides["the SDK alone"] = partial(_run, options, "sdk", ROOT)
    if options.before is not None:
        sides = {"before": partial(_run, options, "off", options.before.absolute()), **sides}
    runs = interleaved(options.rounds, sides)
    readings = [Reading(name, "µs/message", values) for name, values in runs.items()]
    if options.before is not None:
        readings.append(ratio("off / before", runs["off"], runs["before"], OFF_WANTED))
    more = zip(runs["on"], runs["off"], runs["the SDK alone"], strict=True)
    ours = [on - off - sdk for on, off, sdk in more]
    return [*readings, Reading("on, beyond off and the SDK", "µs more", ours, ON_WANTED)]


def _run(options: Options, side: str, root: Path) -> float:
    place = fresh(options, "otel")
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    argv = [sys.executable, str(SIDE), side, place.url, str(options.messages)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise Broken(f"{side}: {done.stderr[-500:]}")
    return float(done.stdout)
