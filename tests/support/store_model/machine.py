"""The walk as a state machine of Hypothesis, which shrinks what goes wrong to the shortest calls that show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.store_model.draws import Pool
from tests.support.store_model.walk import Walk
from tests.support.store_model.world import OpenStore


class StoreMachine(RuleBasedStateMachine):
    """`opener()` gives, for each run, an `open_store` of its own (see `World`).

    One rule, which draws what call it makes: Hypothesis leaves some rules out of each run, and a run without puts or
    without claims finds nothing.
    """

    opener: ClassVar[Callable[[], OpenStore]]

    def __init__(self) -> None:
        super().__init__()
        self.walk = Walk(type(self).opener(), lambda words: note(f"    {words()}"))

    @rule(data=st.data())
    def call(self, data: st.DataObject) -> None:
        self.walk.call(lambda pool: data.draw(_strategy(pool)))

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.walk.agrees_with_the_model()

    @invariant()
    def nothing_is_lost_and_nothing_is_in_two_places(self) -> None:
        self.walk.nothing_is_lost_and_nothing_is_in_two_places()

    def teardown(self) -> None:
        self.walk.close()


def _strategy(pool: Pool[Any]) -> st.SearchStrategy[Any]:
    if pool.strategy is None:
        pool.strategy = st.sampled_from(pool.items)
    strategy: st.SearchStrategy[Any] = pool.strategy
    return strategy
