"""The contract every store keeps, as a pytest class: subclass it, say how to open your store, and run pytest.

    class TestMyStore(StoreContract):
        def make_store(self, clock, place):
            return MyStore(place / "data", clock_ms=clock)

It holds a store to exactly the traits it declares: what a trait promises must hold, and what it does not promise must
be as the trait says (a store without unique keys must refuse a draft that has one). No test is skipped, so a trait can
be neither over- nor understated.
"""

from __future__ import annotations

from .cells import OpenCellRules, StoreCellRules
from .claiming import ClaimRules, ShareRules
from .deferring import CrashRules, DeferRules, SkipRules
from .grouping import GroupRules, StrictRules, WidthRules
from .keeping import KeepRules
from .leasing import LeaseRules
from .looking import LookRules
from .mending import ListRules, ReplaceRules, RestoreRules, TrendRules
from .moving import (
    LineRules,
    ReadmitRules,
    ReplayRules,
    ReturnRules,
    SpreadRules,
    SwapRules,
)
from .putting import PutRules
from .settling import SettleRules
from .swapping import SettledSwapRules
from .triaging import TriageRules
from .waiting import WaitRules
from .wording import WordRules


class StoreContract(
    PutRules,
    ClaimRules,
    ShareRules,
    LeaseRules,
    SettleRules,
    TriageRules,
    LookRules,
    WaitRules,
    StoreCellRules,
    SettledSwapRules,
    DeferRules,
    CrashRules,
    SkipRules,
    GroupRules,
    StrictRules,
    WidthRules,
    KeepRules,
    SwapRules,
    SpreadRules,
    ReplayRules,
    ReturnRules,
    ReadmitRules,
    LineRules,
    ReplaceRules,
    RestoreRules,
    TrendRules,
    ListRules,
    WordRules,
):
    """Subclasses define `make_store(clock, place)`; the tests take seconds and never sleep long.

    `clock` is a ManualClock the store must go by. `place` is a directory of the test's own and the name of the data:
    for a place it has not seen, the store is empty; for one it has, a store with `traits.durable` or `traits.shared`
    opens the same data again, as another process would. A store on a server derives a namespace from it. Every handle
    that was made is closed.
    """


class CellsContract(OpenCellRules):
    """What cells keep that are opened for themselves, for messages that lie where there are none. Subclasses define
    `make_cells(clock, place)`, which means what it does for a store; every handle that was made is closed."""
