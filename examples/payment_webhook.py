"""A payment webhook whose database blinks, and whose sender repeats itself: `python examples/payment_webhook.py`

Each event comes twice, and the database drops one transaction in three. Every payment is booked once all the same: the
booking and its key are one commit.
"""

import sqlite3
import sys
from itertools import count

from redrive import App, Backoff, Context, Idempotency, Retry

app = App("sqlite:///payments.db")
transactions = count(1)


def blink() -> None:
    """Every third transaction fails, half of those when it is committed already: its answer is lost."""
    number = next(transactions)
    if number % 3 == 0:
        raise ConnectionError("the database went away")


@app.task(name="receipt", queue="mail")
def receipt(event: str) -> None:
    """Sent by another worker."""


@app.task(
    name="payment",
    ctx=True,
    retry=Retry(max_attempts=10, backoff=Backoff.fixed("50ms")),
    idempotency=Idempotency(key=lambda event, cents: event, keep="28d"),
)
def payment(ctx: Context, event: str, cents: int) -> int:
    ctx.enqueue(receipt, event)
    connection = sqlite3.connect("payments.db", timeout=10)
    try:
        with connection:
            connection.execute("INSERT INTO booked VALUES (?, ?)", [event, cents])
            ctx.complete(cents, tx=connection)
            blink()  # before the commit: nothing is there, the key is free, and the retry books it
        blink()  # after the commit: it is booked, and nothing books it again
    finally:
        connection.close()
    return cents


def main(events: int) -> None:
    app.store.doctor()  # the store is there before its file is used for more
    with sqlite3.connect("payments.db") as connection:
        connection.execute("CREATE TABLE booked (event TEXT, cents INTEGER)")
    webhooks = [payment.draft(f"evt_{number}", 100 + number) for number in range(events) for _ in range(2)]
    app.enqueue_many(webhooks)
    app.run_worker(["default"], drain=True)
    rows, different = connection.execute("SELECT count(*), count(DISTINCT event) FROM booked").fetchone()
    print(f"{len(webhooks)} webhooks, {rows} bookings of {different} payments, {app.counts('mail').ready} receipts")


main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
