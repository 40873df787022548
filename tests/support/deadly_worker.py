"""A worker whose messages kill it at their first run: the history's crashes are held against those of the store.

Run as `python -m tests.support.deadly_worker URL FOLDER`: a message leaves a file there before it kills its process.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from redrive import App


def make_app(url: str, folder: Path) -> App:
    app = App(url)

    @app.task(name="deadly", queue="deadly", keep_result="1h")
    def deadly(n: int) -> int:
        try:
            (folder / f"ran-{n}").touch(exist_ok=False)
        except FileExistsError:
            return n
        os.kill(os.getpid(), signal.SIGKILL)
        return n

    # One at a time, and none ahead: one that runs beside another may kill the process while counts are written.
    app.queue("deadly", concurrency=1)
    return app


if __name__ == "__main__":
    logging.getLogger("redrive").setLevel(logging.CRITICAL + 1)
    make_app(sys.argv[1], Path(sys.argv[2])).run_worker(burst=True, prefetch=0)
