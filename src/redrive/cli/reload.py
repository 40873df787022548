"""`redrive worker --reload`: in development, restart the worker when a file of the project changes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..present.failure import INTERRUPTED
from .terminal.stderr import note

LOOK_S = 0.5
END_S = 2.0  # how long running messages have to finish after a change; then they are given back uncounted
FILES_MAX = 20_000
_SUFFIXES = (".py", ".toml")
_LEFT_OUT = frozenset({"__pycache__", "build", "dist", "node_modules", "site-packages", "venv"})


def reload(argv: Sequence[str], folder: Path) -> int:
    """Run the command `argv` until Ctrl-C or SIGTERM, and again after each change of a Python or TOML file below
    `folder`. A command that ended by itself, as with a mistake in the code, waits for the next change."""
    stop = StopSignal()
    with stop.noted():
        while True:
            seen, process = stamps(folder), subprocess.Popen(argv)
            changed = _change(folder, seen, process, stop)
            _end(process, stop)
            if changed is None:
                return INTERRUPTED if stop.by == signal.SIGINT else process.returncode
            note(f"reload: {changed} changed")


class StopSignal:
    """The first signal that asks this process to end."""

    by: int | None

    def __init__(self) -> None:
        self.by = None

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        def note_signal(number: int, _: object) -> None:
            self.by = self.by or number

        old = {number: signal.signal(number, note_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


def stamps(folder: Path) -> dict[Path, int]:
    """Return the files that are watched, FILES_MAX at most, with the time of their last change in ns."""
    found: dict[Path, int] = {}
    for at, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith(".")]
        for path in (Path(at, name) for name in names if name.endswith(_SUFFIXES)) if len(found) < FILES_MAX else ():
            with contextlib.suppress(OSError):  # removed since
                found[path] = path.stat().st_mtime_ns
    return found


def _change(folder: Path, seen: dict[Path, int], process: subprocess.Popen[bytes], stop: StopSignal) -> Path | None:
    """Return the first file that changed; None once this process is to end."""
    ended = False
    while stop.by is None:
        time.sleep(LOOK_S)
        now = stamps(folder)
        if now != seen:
            other = {path for path, _ in now.items() ^ seen.items()}
            return min(other).relative_to(folder)
        if process.poll() is not None and not ended:
            ended = True
            note("reload: the worker ended; it starts again when a file changes")
    return None


def _end(process: subprocess.Popen[bytes], stop: StopSignal) -> None:
    if process.poll() is not None:
        return
    if stop.by != signal.SIGINT:  # Ctrl-C reached the worker too
        process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(None if stop.by is not None else END_S)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)  # the second one gives back what still runs
        process.wait()
