"""A worker of one of three releases of an app: `python -m tests.support.releases URL RELEASE RECORDS PARK_FOR`.

Release 2 has a newer version of `push` and a task more, `note`; release 3 has an argument more for `note`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

from redrive import App


def app_of(url: str, release: int, park_for: str, ran: Callable[[int], None] = lambda i: None) -> App:
    """The app as it was at that release."""
    app = App(url, park_for=park_for)

    async def work(i: int) -> None:
        await asyncio.sleep(0.002)
        ran(i)

    if release == 1:

        @app.task(name="push")
        async def push_1(i: int) -> None:
            await work(i)

        return app

    @app.task(name="push", version=2)
    async def push_2(number: int) -> None:
        await work(number)

    push_2.upcast(1)(lambda body: {"number": body["i"]})
    if release == 2:

        @app.task(name="note")
        async def note(i: int) -> None:
            await work(i)
    else:

        @app.task(name="note")
        async def note_with(i: int, color: str = "red") -> None:
            await work(i)

    return app


def send(apps: dict[int, App], kind: int, i: int) -> None:
    """Enqueue message `i` as a producer of a release: of 1, of 2 both tasks, of 3 the new argument."""
    match kind % 4:
        case 0:
            apps[1].tasks["push"].enqueue(i)
        case 1:
            apps[2].tasks["push"].enqueue(i)
        case 2:
            apps[2].tasks["note"].enqueue(i)
        case _:
            apps[3].tasks["note"].enqueue(i, "blue")


def main(url: str, release: str, records: str, park_for: str) -> None:
    """Work until SIGTERM; each run is a line of the records."""
    file = os.open(records, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def ran(i: int) -> None:
        os.write(file, b"%d\n" % i)

    app_of(url, int(release), park_for, ran).run_worker(queues={"default": 10}, lease="5s")


if __name__ == "__main__":
    main(*sys.argv[1:])
