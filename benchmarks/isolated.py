"""The app whose handler runs in child processes. They import this module, and find the file for records by a variable;
where the store is they are told by their worker."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from redrive import App

from .tasks import Records

RECORDS = "REDRIVE_BENCH_RECORDS"
app = App("memory://")


@functools.cache
def records() -> Records:
    return Records(Path(os.environ[RECORDS]))


@app.task(name="noop", isolation="process")
def noop(i: int) -> None:
    records().add(i)
