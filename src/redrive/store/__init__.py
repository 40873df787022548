"""The store protocol: what redrive needs of an engine, in three parts, and the traits that state its promises.

- `delivery`: put, claim, hold and settle messages
- `queries`: find messages without claiming them
- `admin`: triage, settings, retention, repair

Small on purpose. A third party writes a store in a day and tests it with `redrive.testing.StoreContract`.
"""

from __future__ import annotations

from .admin import AdminOperations
from .base import LargeBodies, StoreBase, Usage
from .cells import Cells, OpenCells
from .delivery import DeliveryOperations
from .paging import FIRST_PAGE, PAGE, fitting, pages
from .queries import QueryOperations
from .traits import Traits, Work

__all__ = [
    "FIRST_PAGE",
    "PAGE",
    "AdminOperations",
    "Cells",
    "DeliveryOperations",
    "LargeBodies",
    "OpenCells",
    "QueryOperations",
    "Store",
    "StoreBase",
    "Traits",
    "Usage",
    "Work",
    "fitting",
    "pages",
]


class Store(DeliveryOperations, QueryOperations, AdminOperations):
    """Durable messages ordered by due time, where a claim is a due time moved past the lease.

    The base class of every store: subclass it, set `traits` and `cells`, and write the abstract methods. The others
    have a default for a store that promises less, by its traits. A store is plain synchronous code, and any number of
    threads may call it.
    """

    @property
    def engine(self) -> Store:
        """The store that holds the messages: this store itself, or the innermost one if this is a wrapper."""
        return self
