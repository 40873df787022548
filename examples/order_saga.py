"""Orders in three steps, and what undoes them when one fails for good: `python examples/order_saga.py [ORDERS]`

A workflow reserves the goods, charges the card and books a carrier. Two things go wrong with the carrier:

- It is down. These orders wait as dead letters, and one redrive resumes all of them. No card is charged twice.
- It does not go there. No redrive helps, so the order is undone: what was done is taken back, the last step first.

A workflow undoes nothing by itself. Here its `on_complete` does: it comes when none of its messages is open, so that
no step runs meanwhile, and asks the parts which steps are done. The undoing is a workflow, too: a refund that dies is a
dead letter, and its redrive goes on from there. Where one task has one thing to undo, its `on_dead=` is shorter.
"""

import sys
from collections import Counter

from redrive import App, Backoff, Context, Reject, Retry

app = App("sqlite:///orders.db")
effects: Counter[str] = Counter()
carrier_is_up = False


@app.task(name="order.reserve")
def reserve(order: int) -> None:
    effects["reserved"] += 1


@app.task(name="order.charge")
def charge(order: int) -> str:
    effects["charged"] += 1
    return f"receipt-{order}"


@app.task(name="order.book", retry=Retry(max_attempts=2, backoff=Backoff.fixed("10ms")))
def book(order: int, receipt: str) -> None:
    if order % 5 == 3:
        raise Reject("the carrier does not go there")
    if not carrier_is_up:
        raise ConnectionError("the carrier is down")
    effects["booked"] += 1


@app.task(name="order.refund")
def refund(order: int) -> None:
    effects["refunded"] += 1


@app.task(name="order.release")
def release(order: int) -> None:
    effects["released"] += 1


UNDO = {"order.reserve": release, "order.charge": refund}


@app.task(name="order.ended", ctx=True)
def ended(ctx: Context, order: int) -> None:
    """Undo an order with a rejected step; leave one alone that a redrive can resume. Running twice does no harm."""
    workflow = app.batch_ref(ctx.batch.id)
    rejected = [message.id for message in workflow.members("dead") if message.reason == "rejected"]
    if rejected:
        workflow.cancel(reason="rejected")  # no step begins any more
        app.dlq.discard(rejected, reason="the order is undone")  # or somebody redrives it after the refund
    if workflow.state == "cancelled":
        undo(order, [part.name for part in workflow.info().parts if part.state == "done"])


def undo(order: int, done: list[str]) -> None:
    w = app.workflow(name="undo", key=str(order))  # of its key there is one
    later = [w.step(UNDO[name], order) for name in reversed(done)]
    for step, before in zip(later[1:], later, strict=False):
        step.after(before)
    if later:
        w.enqueue()


def place(order: int) -> None:
    w = app.workflow(name="order", key=str(order), on_complete=ended.draft(order))
    reserved = w.step(reserve, order)
    paid = w.step(charge, order).after(reserved)
    w.step(book, order, paid.result)
    w.enqueue()


def show(when: str) -> None:
    states = Counter(f"{info.name} {info.state}" for info in app.batches())
    print(f"{when}: {', '.join(f'{count} × {state}' for state, count in sorted(states.items()))}")


def main(orders: int) -> None:
    global carrier_is_up
    for order in range(orders):
        place(order)
    app.run_worker(drain=True)
    show("the carrier is down")
    carrier_is_up = True
    app.dlq.select("step:order.book").plan(canary=2, rate="200/s", slow_start=False).start(reason="the carrier is back")
    app.run_worker(drain=True)
    show("the carrier is back")
    print(", ".join(f"{count} {effect}" for effect, count in sorted(effects.items())))


main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
