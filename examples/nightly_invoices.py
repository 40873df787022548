"""An invoice for each customer, each night, once, and a report: `python examples/nightly_invoices.py [CUSTOMERS]`

A schedule enqueues one message at two o'clock in Berlin, and that one a batch for the night, with a nested batch for
each country. One customer of a country may fail; the report comes once all countries are done, with the sum of what the
invoices returned. The batch has the night as its key: when somebody runs a night again by hand, nothing is put twice.
An invoice has an idempotency key, too: a worker that is killed after the commit makes no second bill.
"""

import sqlite3
import sys
from datetime import UTC, datetime

from redrive import App, Backoff, Context, Idempotency, Reject, Retry
from redrive.batch import Batch

app = App("sqlite:///invoices.db")
COUNTRIES = ["at", "de"]


@app.task(
    name="invoice",
    ctx=True,
    retry=Retry(max_attempts=5, backoff=Backoff("20ms")),
    idempotency=Idempotency(key=lambda customer, night: f"{customer}/{night}", keep="60d"),
)
def invoice(ctx: Context, customer: str, night: str) -> int:
    if customer == "customer-013":
        raise Reject(f"{customer} has no address")
    if customer.endswith("7") and ctx.attempt == 1:
        raise ConnectionError("the printer does not answer")
    amount = 100
    connection = sqlite3.connect("invoices.db", timeout=10)
    try:
        with connection:
            connection.execute("INSERT INTO billed VALUES (?, ?)", [customer, night])
            ctx.complete(amount, tx=connection)  # the invoice and its key are one commit
    finally:
        connection.close()
    return amount


@app.task(name="invoices.report", ctx=True)
def report(ctx: Context, night: str) -> None:
    amount = sum(result for _, result in ctx.batch.results())
    print(f"{night}: {ctx.batch.counts.done} invoices over {amount} EUR, {ctx.batch.counts.dead} left out")


@app.periodic("0 2 * * *", tz="Europe/Berlin")
@app.task(name="invoices.nightly")
def nightly(tick: datetime) -> None:
    night = f"{tick:%Y-%m-%d}"
    app.batch(
        (of_country(country, night) for country in COUNTRIES),
        name="invoices",
        key=night,
        on_success=report.draft(night),
    ).enqueue()


def of_country(country: str, night: str) -> Batch:
    numbers = range(COUNTRIES.index(country), customers, len(COUNTRIES))
    drafts = (invoice.draft(f"customer-{number:03}", night) for number in numbers)
    return app.batch(drafts, name=country, tolerate=1, results=True)


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
