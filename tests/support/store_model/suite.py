"""A store against a plain model, as a pytest class: subclass it, say how to open your store, and run pytest.

    class TestMyStoreModel(StoreModel):
        def make_store(self, clock, place):
            return MyStore(place / "data", clock_ms=clock)

Hypothesis makes random calls on the store (put, exchange, extend, release, cancel, triage, …, with stale receipts, lost
leases, contended cells) and compares each answer, and after each call all that can be seen, with a model of the
store in plain Python. It holds a store to the traits it declares. A failure is shrunk to the shortest calls that show
it, printed as they were made.

Needs Hypothesis. The loaded profile scales the work: 100 examples are the class's `examples`.
"""

from __future__ import annotations

import os
import random
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

try:
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis.stateful import run_state_machine_as_test
except ImportError as error:
    raise ImportError("StoreModel needs Hypothesis: pip install hypothesis") from error

from tests.support.store_model.machine import StoreMachine
from tests.support.store_model.walk import take_walk
from tests.support.store_model.world import OpenStore

from redrive.store import Store
from redrive.testing import ManualClock


class StoreModel(ABC):
    """Subclasses define `make_store(clock, place)` as for `StoreContract`; a place never seen before is empty.

    `examples` runs of `steps` calls are drawn by Hypothesis (more if the loaded profile makes more than 100), and
    `walks` of them at random, which is faster by far, but shrinks nothing. The walks go by the seed in the environment
    variable TEST_SEED, or a new one, and name it when they fail.
    """

    examples: ClassVar[int] = 20
    walks: ClassVar[int] = 150
    steps: ClassVar[int] = 80

    @abstractmethod
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        """A handle on the data named by `place`, going by `clock`."""

    def test_random_calls_are_answered_as_the_model_answers_them(self, tmp_path: Path) -> None:
        run_state_machine_as_test(self.machine(tmp_path), settings=self.settings())

    def test_long_walks_of_random_calls_are_answered_as_the_model_answers_them(self, tmp_path: Path) -> None:
        seed = os.environ.get("TEST_SEED") or str(random.SystemRandom().randrange(1_000_000))
        for n in range(self._scaled(self.walks)):
            take_walk(self._opener(tmp_path), f"{seed}.{n}", self.steps)

    def settings(self) -> settings:
        """How much Hypothesis tries."""
        return settings(
            max_examples=self._scaled(self.examples),
            stateful_step_count=self.steps,
            deadline=None,
            print_blob=True,
            phases=[phase for phase in Phase if phase is not Phase.explain],  # it takes longer than all the others
            suppress_health_check=list(HealthCheck),
        )

    def machine(self, place: Path) -> type[StoreMachine]:
        """A machine whose every run gets a store of its own in a new directory under `place`."""
        parts = {"opener": staticmethod(lambda: self._opener(place))}
        return type(f"{type(self).__name__}Machine", (StoreMachine,), parts)

    def _opener(self, place: Path) -> OpenStore:
        mine = Path(tempfile.mkdtemp(dir=place))
        return lambda clock: self.make_store(clock, mine)

    def _scaled(self, number: int) -> int:
        return max(1, number * settings().max_examples // 100)
