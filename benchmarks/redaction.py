"""What hiding secrets costs: processor time per text, and of the log line of a message that is done."""

from __future__ import annotations

import io
import time
from collections.abc import Callable

from redrive.events import DeliveryEvent
from redrive.observe.logs import JsonLog
from redrive.redact import redact, redact_json

from .harness import Options, Reading, interleaved

CALLS = 500
FRAME = '  File "/srv/app/tasks.py", line 42, in push\n    await client.post(url, json=body)\n'
TEXTS = {
    "an id": "0199f3a1-7d1a-7c3e-9f00-1234567890ab",
    "an error": "HTTPStatusError: Server error '503' for url 'https://api.example.com/v1/contacts/1234?page_token=abc'",
    "an error with secrets": "401 at https://ann:hunter2@api.example.com/?sig=5hbcxqz8 (Authorization: Bearer abc123)",
    "a traceback of 2 kB": f"Traceback (most recent call last):\n{FRAME * 24}ValueError: bad thing",
    "prose of 16 kB": "Lorem ipsum dolor sit amet consectetur 123 " * 380,
}
BODY = (
    "a JSON body of 2 kB",
    b'{"contacts": [%s]}' % b", ".join([b'{"id": 12, "email": "ann@example.com", "tags": ["a"]}'] * 37),
)


def redaction(options: Options) -> list[Reading]:
    """Processor time of hiding the secrets of a text, and of writing the log line of a message that is done."""
    runs: dict[str, Callable[[], float]] = {
        name: lambda text=text: _cpu_us(lambda: redact(text))  # type: ignore[misc]
        for name, text in TEXTS.items()
    }
    runs[BODY[0]] = lambda: _cpu_us(lambda: redact_json(BODY[1]))
    log, fate = JsonLog(io.StringIO()), DeliveryEvent(outcome="done", id="i", task="crm.push", queue="crm", attempt=1)
    runs["the log line of a message that is done"] = lambda: _cpu_us(lambda: log([fate] * 100)) / 100
    return [Reading(name, "µs", values) for name, values in interleaved(options.rounds, runs).items()]


def _cpu_us(call: Callable[[], object]) -> float:
    from_s = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - from_s) / CALLS * 1e6
