"""An invoice for each customer, each night, once: `python examples/nightly_invoices.py [CUSTOMERS]`

A schedule enqueues one message at two o'clock in Berlin, and that one an invoice for each customer. An invoice has an
idempotency key of customer and night: when somebody runs a night again by hand, nobody is billed twice.
"""

import sqlite3
import sys
from datetime import UTC, datetime

from redrive import App, Backoff, Context, Idempotency, Reject, Retry

app = App("sqlite:///invoices.db")


@app.task(
    name="invoice",
    ctx=True,
    retry=Retry(max_attempts=5, backoff=Backoff("20ms")),
    idempotency=Idempotency(key=lambda customer, night: f"{customer}/{night}", keep="60d"),
)
def invoice(ctx: Context, customer: str, night: str) -> None:
    if customer == "customer-013":
        raise Reject(f"{customer} has no address")
    if customer.endswith("7") and ctx.attempt == 1:
        raise ConnectionError("the printer does not answer")
    connection = sqlite3.connect("invoices.db", timeout=10)
    try:
        with connection:
            connection.execute("INSERT INTO billed VALUES (?, ?)", [customer, night])
            ctx.complete(None, tx=connection)  # the invoice and its key are one commit
    finally:
        connection.close()


@app.periodic("0 2 * * *", tz="Europe/Berlin")
@app.task(name="invoices.nightly", ctx=True)
def nightly(ctx: Context, tick: datetime) -> None:
    for number in range(customers):
        ctx.enqueue(invoice.using(group=f"customer-{number}"), f"customer-{number:03}", f"{tick:%Y-%m-%d}")


def main() -> None:
    app.store.doctor()  # the store is there before its file is used for more
    with sqlite3.connect("invoices.db") as connection:
        connection.execute("CREATE TABLE billed (customer TEXT, night TEXT)")
    first, second = app.schedules["invoices.nightly"].next(2, after=datetime(2026, 3, 28, tzinfo=UTC))
    for tick in (first, second, first):  # a scheduler enqueues them at their times; the last one is by hand
        nightly.enqueue(tick)
        app.run_worker(drain=True)
    rows, people = connection.execute("SELECT count(*), count(DISTINCT customer) FROM billed").fetchone()
    print(f"at {first:%H:%M %z} and {second:%H:%M %z}: {rows} invoices of {people} customers")
    for group in app.dlq.groups():
        print(f"{group.count} dead: {group.text}")


customers = int(sys.argv[1]) if len(sys.argv) > 1 else 50
main()
