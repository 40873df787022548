"""The contract of every store, as a pytest class: subclass it, say how to open your store, and run pytest.

    class TestMyStore(StoreContract):
        def make_store(self, clock, place):
            return MyStore(place / "data", clock_ms=clock)

It holds a store to exactly the traits it declares: a promise must be kept, and a feature that a trait denies must fail
as the trait says (a store without unique keys must refuse a draft that has one). No test is skipped, so a trait can be
neither over- nor understated.
"""

from __future__ import annotations

from .batching import BatchRules
from .cells import OpenCellRules, StoreCellRules
from .claiming import ClaimRules, ShareRules
from .deferring import CrashRules, DeferRules, SkipRules
from .editing import EditRules
from .group_states import GroupStateRules
from .grouping import GroupRules, WidthRules
from .hastening import HastenRules
from .keeping import KeepRules
from .latest import LatestRules
from .leasing import LeaseRules
from .looking import LookRules
from .mending import ListRules, ReplaceRules, RestoreRules, TrendRules
from .moving import LineRules, ReadmitRules, ReplayRules, ReturnRules, SpreadRules, SwapRules
from .putting import PutRules
from .settling import SettledSwapRules, SettleRules
from .strict_groups import StrictRules
from .triaging import TriageRules
from .unique_keys import UniqueKeyRules
from .waiting import WaitRules
from .weighing import WeightRules
from .wording import WordRules


class StoreContract(
    PutRules,
    UniqueKeyRules,
    LatestRules,
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
    HastenRules,
    EditRules,
    ReadmitRules,
    LineRules,
    ReplaceRules,
    RestoreRules,
    TrendRules,
    ListRules,
    WordRules,
    BatchRules,
    GroupStateRules,
    WeightRules,
):
    """Subclasses define `make_store(clock, place)`; the tests take seconds and never sleep long.

    `clock` is a ManualClock the store must go by. `place` is a directory of the test's own and the name of the data:
    for a place it has not seen, the store is empty; for one it has, a store with `traits.durable` or `traits.shared`
    opens the same data again, as another process would. A store on a server derives a namespace from it. Every handle
    that was made is closed.
    """


class CellsContract(OpenCellRules):
    """The contract of cells that are opened alone, for a store that has none of its own.

    Subclasses define `make_cells(clock, place)`, as `make_store` is defined for a store. Every handle is closed.
    """
