"""A process that takes every lock of a file of SQLite in WAL mode, as its recovery does, and keeps them."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

FIRST, LAST = 120, 127  # the bytes of the file `-shm` that are locked


def main(path: str) -> None:
    with Path(path).open("r+b") as file:
        for byte in range(FIRST, LAST + 1):
            while True:  # a reader has it for a moment
                with suppress(BlockingIOError, PermissionError):
                    fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
                    break
        print("locked", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1])
