"""Rules for rates whose calls cost more than one permit, which workers share by cells."""

from __future__ import annotations

from ...app import App
from ...flow import permits
from ...flow.dependency import Dependency
from ...flow.limits import Rate
from ...message import Message
from ...store import Store
from ...worker.flow.local_state import LimitState, LimitStates
from ...worker.flow.shared_state import TRIES, SharedState
from ..clock import ManualClock
from .base import Contract, OpenStore, another, in_threads
from .weaker import takes

LIMIT, WINDOW_MS = 1000, 10_000
TOKENS = Dependency("llm:1:rate", rate=Rate("1k/10s", cost=1, unit="tokens"))
COSTS = [(n * 7919) % 20 + 1 for n in range(150)]  # about one and a half windows, as no call costs above 20


class WeightRules(Contract):
    @takes("cells")
    def test_workers_spend_no_more_in_a_window_than_its_permits(
        self, store: Store, open_store: OpenStore, clock: ManualClock
    ) -> None:
        workers = _workers(store, open_store, 3)
        spent: list[tuple[int, int]] = []
        costs = list(COSTS)
        while costs:
            for worker in workers:
                worker.look()
            for worker in workers:  # all have read the same, and one is first
                if costs and worker.may_call(costs[-1]):
                    spent.append((clock(), costs.pop()))
            clock.advance("20ms")
        windows = [sum(c for at, c in spent if end_ms - WINDOW_MS < at <= end_ms) for end_ms, _ in spent]
        assert max(windows) <= LIMIT
        took_ms = spent[-1][0] - spent[0][0]
        assert sum(COSTS[1:]) / took_ms >= 0.9 * LIMIT / WINDOW_MS, "the workers hold each other back too much"

    @takes("cells")
    def test_what_one_worker_spent_beyond_the_estimate_holds_back_all(
        self, store: Store, open_store: OpenStore, clock: ManualClock
    ) -> None:
        one, other = _workers(store, open_store, 2)
        assert one.may_call(5) and other.may_call(5)
        one.spend(500 - 5)
        for worker in (other, one):
            worker.look()
            assert not worker.may_call(5)
        one.spend(5 - 500)  # it is given back
        clock.advance("300ms")
        other.look()
        assert other.may_call(5)

    @takes("cells")
    def test_workers_that_ask_at_once_take_no_more_than_there_is(self, store: Store, open_store: OpenStore) -> None:
        workers = _workers(store, open_store, 4)
        going: list[bool] = []
        in_threads(*(lambda w=w: going.extend(w.may_call(20) for _ in range(10)) for w in workers))
        alone = LimitState(TOKENS, "")
        alone.saw(store.cells.read([alone.cell])[0], store.now_ms())
        paid_ms = alone.state.tat_ms - store.now_ms()
        assert TOKENS.rate is not None
        assert sum(going) == round(paid_ms / (20 * TOKENS.rate.every_ms)) >= 1, "a permit was spent twice or not at all"


class _Worker:
    """What a worker keeps of the rate, and how it asks: it takes permits by compare-and-set."""

    def __init__(self, store: Store, name: str) -> None:
        self._guard = LimitState(TOKENS, "")
        self._shared = SharedState(LimitStates(App(store=store)), store, name, lambda name, text, about: None)

    def look(self) -> None:
        self._shared.refresh({self._guard}, self._shared.now_ms())

    def may_call(self, cost: float) -> bool:
        """Take the permits of a call, if it may start now by what this worker knows."""
        now_ms, message = self._shared.now_ms(), Message("m", "ask", "default", b"{}", "m", attempt=1)
        for _ in range(TRIES):
            base = self._shared.with_seen(self._guard, now_ms)
            state, answers = permits.ask(base, TOKENS, [message], now_ms, costs={"m": cost})
            if state is base or not self._shared.write([(self._guard, state)], now_ms):
                return answers.refusals == [None]
        raise AssertionError(f"{TRIES} swaps in a row were refused")

    def spend(self, more: float) -> None:
        """Report what a call cost beyond its estimate, as `ctx.spend` does; below 0: less."""
        self._guard.seen.spent += more
        self._shared.flush([self._guard], self._shared.now_ms())


def _workers(store: Store, open_store: OpenStore, count: int) -> list[_Worker]:
    """Return workers, on handles of their own if the store can be shared."""
    others = [(another(store, open_store) or store) if store.traits.shared else store for _ in range(count - 1)]
    return [_Worker(each, f"w{n}") for n, each in enumerate([store, *others])]
