"""Enqueue where no worker can run, as on Windows: a worker on Linux or macOS does the work from the same store.

A task's name and arguments are all that a producer needs, so this file imports nothing of the worker's code.

    python examples/producer_anywhere.py
    redrive status --url sqlite:///producer.db
"""

from __future__ import annotations

import os

from redrive import App

app = App(os.environ.get("REDRIVE_URL", "sqlite:///producer.db"))


@app.task(name="invoices.send")
def send(invoice: int) -> None: ...


if __name__ == "__main__":
    ref = send.enqueue(42)
    print(f"{ref.id} waits for a worker")
