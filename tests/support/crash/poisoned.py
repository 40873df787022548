"""Starts workers of the app in poison.py, and looks at what they left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.support.crash.children import PATIENCE_S, ROOT
from tests.support.crash.ledger import url_of
from tests.support.crash.poison import CONCURRENCY

import redrive
from redrive.fault import Crash
from redrive.message import Message

BIG_BYTES = 150_000_000


def ways(*names: str) -> list[object]:
    """One of them in every run, turning with the seed; all in soaks."""
    turn = int(os.environ.get("TEST_SEED", "0")) % len(names)
    return [pytest.param(name, marks=() if n == turn else pytest.mark.soak) for n, name in enumerate(names)]


class Fleet:
    """A supervising parent in a session of its own."""

    def __init__(self, place: Path, argv: Sequence[str], concurrency: int) -> None:
        self.place = place
        with (place / "stderr").open("ab") as stderr:
            self.process = subprocess.Popen(
                argv,
                cwd=ROOT,
                env=os.environ | {"POISON_PLACE": str(place), "POISON_CONCURRENCY": str(concurrency)},
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,
            )

    def said(self) -> str:
        return (self.place / "stderr").read_text()[-6000:]

    def ends_well(self) -> None:
        code = self.process.wait(PATIENCE_S)
        assert code == 0, f"exit code {code}; stderr: {self.said()}"

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def fleet(place: Path, argv: Sequence[str], concurrency: int = CONCURRENCY) -> Iterator[Fleet]:
    started = Fleet(place, argv, concurrency)
    try:
        yield started
    finally:
        started.kill()


@contextlib.contextmanager
def killer_of_big_ones() -> Iterator[None]:
    """What the kernel does where memory ends, sooner: whoever of ours has too much is killed."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            for path in Path("/proc").glob("[0-9]*/status"):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    environ = (path.parent / "environ").read_bytes()
                    resident = int(path.read_text().split("VmRSS:")[1].split()[0]) * 1024
                    if b"POISON_PLACE=" in environ and resident > BIG_BYTES:
                        os.kill(int(path.parent.name), signal.SIGKILL)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def left(place: Path, ids: Sequence[str]) -> list[Message]:
    app = redrive.App(url_of(place))
    try:
        return [message for message in app.store.find(ids) if message is not None]
    finally:
        app.store.close()


def evidence(message: Message) -> list[Crash]:
    return [fault.crash for fault in message.faults if fault.crash is not None]
