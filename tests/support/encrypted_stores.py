"""One of everything that an app keeps, a secret in each, and the forms in which the secret might lie in a store."""

from __future__ import annotations

import base64
import math
from collections import Counter
from typing import Any

from redrive import App, Backoff, Context, Idempotency, Keys, Retry
from redrive.message import Lane
from redrive.store import Store

SECRET = "CANARY-7f3a-4111111111111111-CANARY"
KEYS = Keys({"new": bytes(range(32)), "old": bytes(32)})


def an_app(store: Store, ran: list[str], keys: Keys | None = KEYS) -> App:
    app = App(store=store, encrypt=keys)
    soon = Retry(max_attempts=2, backoff=Backoff.fixed("1ms"))

    @app.task(name="undo", queue="q")
    def undo(card: str) -> None:
        ran.append("undo")

    @app.task(name="fails", queue="q", ctx=True, retry=soon, on_dead=undo)
    def fails(ctx: Context, card: str) -> None:
        ran.append("fails")
        if store.traits.cells:
            ctx.checkpoint({"at": card})
        raise ValueError(f"declined {card}")

    @app.task(name="keeps", queue="q", keep_result="1h" if store.traits.keeps_done else None)
    def keeps(card: str) -> str:
        ran.append("keeps")
        return f"charged {card}"

    @app.task(name="once", queue="q", idempotency=Idempotency(key=lambda card: "one"))
    def once(card: str) -> str:
        ran.append("once")
        return f"charged {card}"

    @app.task(name="waits", queue="later")
    def waits(card: str) -> None:
        ran.append("waits")

    return app


def fill(app: App) -> None:
    """Leave bodies, results, checkpoints, faults, compensations, edits and verdicts in the store."""
    for name in ("fails", "keeps", "once", "waits"):
        app.tasks[name].enqueue(SECRET)
    app.tasks["waits"].enqueue(SECRET + "A" * 21_000)
    app.run_worker(["q"], drain=app.store.traits.finds, burst=True)
    if not app.store.traits.triages:
        return
    for message in app.store.peek(Lane.DEAD).messages:
        app.dlq.edit(message.id, args={"card": f"{SECRET}-edited"}, reason="mended", actor="ann")
    app.run_worker(["q"], drain=app.store.traits.finds, burst=True)


def forms_in(found: bytes) -> list[str]:
    """The forms of the secret that these bytes hold: as it is, in hex, in base64, in UTF-16, or backwards."""
    text = SECRET.encode()
    needles = {"plain": text, "hex": text.hex().encode(), "HEX": text.hex().upper().encode(), "backwards": text[::-1]}
    needles["utf-16"] = SECRET.encode("utf-16-le")
    for shift in range(3):
        coded = base64.b64encode(bytes(shift) + text)[4 if shift else 0 : -4]
        needles[f"base64+{shift}"] = coded
        needles[f"urlsafe+{shift}"] = coded.replace(b"+", b"-").replace(b"/", b"_")
    needles["part"] = b"4111111111111111"
    return [form for form, needle in needles.items() if needle in found]


def entropy(found: bytes) -> float:
    """Bits per byte: 8 is noise."""
    counts = Counter(found).values()
    return -sum(n / len(found) * math.log2(n / len(found)) for n in counts)


def dumped(rows: Any) -> bytes:
    return b"\n".join(row if isinstance(row, bytes) else str(row).encode() for row in rows)
