"""The contract every store keeps, as a pytest class: subclass it, say how to open your store, and run pytest.

    class TestMyStore(StoreContract):
        def make_store(self, clock, place):
            return MyStore(place / "data", clock_ms=clock)

It holds a store to exactly the traits it declares: what a trait promises must hold, and what it does not promise must
be as the trait says (a store without unique keys must refuse a draft that has one). No test is skipped, so a trait can
be neither over- nor understated.
"""

from __future__ import annotations

from ._contract.cells import OpenCellRules, StoreCellRules
from ._contract.claiming import ClaimRules, ShareRules
from ._contract.deferring import CrashRules, DeferRules, SkipRules
from ._contract.grouping import GroupRules, StrictRules, WidthRules
from ._contract.keeping import KeepRules
from ._contract.leasing import LeaseRules
from ._contract.looking import LookRules
from ._contract.mending import ListRules, ReplaceRules, RestoreRules, TrendRules
from ._contract.moving import LineRules, ReadmitRules, ReplayRules, ReturnRules, SpreadRules, SwapRules
from ._contract.putting import PutRules
from ._contract.settling import SettleRules
from ._contract.swapping import SettledSwapRules
from ._contract.triaging import TriageRules
from ._contract.waiting import WaitRules
from ._contract.wording import WordRules


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
