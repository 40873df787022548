"""A shop whose orders are workflows: an app for tests of batches."""

from __future__ import annotations

from typing import Any

from redrive import App, Retry
from redrive.batch import BatchRef
from redrive.store import Store

ONCE = Retry(max_attempts=1)


class Shop:
    """An app with tasks that write down what they ran with; those named in `bad` fail."""

    def __init__(self, url: str | None = None, *, store: Store | None = None) -> None:
        self.app = app = App(url, store=store)
        self.ran: list[tuple[Any, ...]] = []
        self.bad: set[Any] = set()

        @app.task(name="shop.charge", retry=ONCE)
        def charge(order: int, amount: int = 5) -> dict[str, int]:
            self.note("charge", order)
            return {"order": order, "amount": amount}

        @app.task(name="shop.book", retry=ONCE)
        def book(order: int, receipt: dict[str, int]) -> str:
            self.note("book", order, receipt["amount"])
            return f"label-{order}"

        @app.task(name="shop.mail", retry=ONCE)
        def mail(to: str) -> None:
            self.note("mail", to)

        @app.task(name="shop.close", retry=ONCE)
        async def close(order: int, label: str = "") -> int:
            self.note("close", order, label)
            return order

        @app.task(name="shop.tell")
        def tell(word: str) -> None:
            self.note(word)

        self.charge, self.book, self.mail, self.close, self.tell = charge, book, mail, close, tell

    def note(self, *what: Any) -> None:
        self.ran.append(what)
        if what[0] in self.bad or what in self.bad:
            raise ValueError(f"{what[0]} is down")

    def work(self) -> None:
        self.app.run_worker(drain=True)

    def order(self, number: int, mails: int = 3, **options: Any) -> BatchRef:
        w = self.app.workflow(name="order", key=f"order:{number}", **options)
        paid = w.step(self.charge, number, amount=7)
        label = w.step(self.book, number, paid.result)
        mails_ = w.map(self.mail, [f"{number}-{n}" for n in range(mails)], tolerate=1).after(label)
        w.step(self.close, number, label=label.result).after(mails_)
        return w.enqueue()

    @property
    def callbacks(self) -> Any:
        return {f"on_{word}": self.tell.draft(word) for word in ("success", "complete", "death")}


def adds_up(ref: BatchRef) -> bool:
    counts = ref.counts
    return counts.total == counts.open + counts.done + counts.failed + counts.duplicate
