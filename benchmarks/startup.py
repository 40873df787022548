"""How long starting takes: `import redrive` and `redrive --help`, beside an interpreter that does nothing."""

from __future__ import annotations

import resource
import subprocess
import sys
import time

from .harness import ROOT, Broken, Options, Reading, interleaved

PROGRAMS = {
    "bare": "pass",
    "import": "import redrive",
    "help": "import sys; sys.argv = ['redrive', '--help']; from redrive.program.main import main; sys.exit(main())",
}


def startup(options: Options) -> list[Reading]:
    """Each in a fresh interpreter; wall time and processor time."""
    for program in PROGRAMS:  # once untimed: compiles what is not compiled yet
        start_ms(program)
    runs = interleaved(options.starts, {name: lambda name=name: start_ms(name) for name in PROGRAMS})  # type: ignore[misc]
    walls = {name: [wall for wall, _ in group] for name, group in runs.items()}
    cpus = {name: [cpu for _, cpu in group] for name, group in runs.items()}
    return [
        Reading("bare interpreter", "ms", walls["bare"]),
        Reading("import redrive, beyond bare", "ms", _beyond(walls, "import"), "≤ 60"),
        Reading("import redrive, CPU beyond bare", "ms", _beyond(cpus, "import")),
        Reading("redrive --help", "ms", walls["help"], "≤ 120"),
        Reading("redrive --help, beyond bare", "ms", _beyond(walls, "help")),
        Reading("redrive --help, CPU beyond bare", "ms", _beyond(cpus, "help")),
    ]


def _beyond(times_ms: dict[str, list[float]], name: str) -> list[float]:
    return [ms - bare for ms, bare in zip(times_ms[name], times_ms["bare"], strict=True)]


def start_ms(name: str) -> tuple[float, float]:
    """Wall and processor time of one start."""
    before, from_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAMS[name]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    wall_s, after = time.perf_counter() - from_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode != 0:
        raise Broken(f"{PROGRAMS[name]!r} failed: {ended.stderr[-1000:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s * 1000, cpu_s * 1000
