"""An app with tasks that a Celery producer sends to, for a bridge and a worker in processes of their own.

CELERY_BROKER and REDRIVE_URL say where; a run appends a line to the file that RAN names.
"""

from __future__ import annotations

import os
from pathlib import Path

from redrive import App
from redrive.contrib.celery import CeleryBridge

app = App(os.environ.get("REDRIVE_URL"))
bridge = CeleryBridge(app, os.environ["CELERY_BROKER"], queues=os.environ["CELERY_QUEUES"].split(","))


@app.task(name="shop.add")
def add(x: int, y: int = 1) -> int:
    with Path(os.environ["RAN"]).open("a") as file:
        file.write(f"{x} {y}\n")
    return x + y
