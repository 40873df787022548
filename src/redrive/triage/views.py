"""Saved views: named addresses of the pages, kept in the store for everyone who uses it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ..audit import Audit, signed
from ..errors import ConfigError
from ..message import Cell, Swap, decoded, version_of
from ..store import Store

CELL = "views"
_BELOW = re.compile(r"(?:[^/:\\?][^:\\?]*)?(?:\?[^\\]*)?")  # an address of these pages, never of another site
VIEWS_MAX, NAME_MAX, ADDRESS_MAX = 100, 80, 2000


class SavedView(Struct, frozen=True):
    """A saved view: its name, its address below the pages' root such as `messages?q=queue:crm`, who made it, when."""

    name: str
    address: str
    by: str
    at_ms: int


_decode = msgspec.json.Decoder(list[SavedView]).decode


def views(store: Store) -> Sequence[SavedView]:
    """Return the saved views by name; none if the store has no cells. Raises StoreError."""
    return _views(store.cells.read([CELL])[0]) if store.traits.cells else []


def save_view(store: Store, name: str, address: str, *, actor: str | None = None) -> SavedView:
    """Save an address under a name, in place of the view that has it, in one commit with an entry in the audit log.
    Raises ConfigError, StoreError."""
    name = name.strip()
    if not 0 < len(name) <= NAME_MAX or not name.isprintable():
        raise ConfigError(f"the view's name {name!r}: expected 1 to {NAME_MAX} printable characters")
    if len(address) > ADDRESS_MAX or not address.isprintable() or not _BELOW.fullmatch(address):
        raise ConfigError(f"the address {address[:80]!r}: expected one below the pages, such as messages?q=queue:crm")
    who, reason = signed(actor, "", f"save the view {name}", needed=False)
    audit = Audit(store)
    entry = audit.entry("save view", who, reason, address, about=name)
    view = SavedView(name, address, entry.claimed or entry.actor, entry.at_ms)

    def write(swaps: list[Swap]) -> None:
        cell = store.cells.read([CELL])[0]
        kept = [each for each in _views(cell) if each.name != name]
        if len(kept) >= VIEWS_MAX:
            raise ConfigError(
                f"the view {name!r}: there are {VIEWS_MAX} saved views, which is the most; remove one first"
            )
        _write(store, cell, [*kept, view], swaps)

    audit.commit(entry, write)
    return view


def remove_view(store: Store, name: str, *, actor: str | None = None) -> bool:
    """Remove a saved view, with an entry in the audit log. Return False if there is none of this name."""
    if all(view.name != name for view in views(store)):
        return False
    who, reason = signed(actor, "", f"remove the view {name}", needed=False)
    audit = Audit(store)

    def write(swaps: list[Swap]) -> None:
        cell = store.cells.read([CELL])[0]
        _write(store, cell, [each for each in _views(cell) if each.name != name], swaps)

    audit.commit(audit.entry("remove view", who, reason, about=name), write)
    return True


def _views(cell: Cell | None) -> list[SavedView]:
    return decoded(cell, _decode, [])


def _write(store: Store, cell: Cell | None, kept: list[SavedView], swaps: Sequence[Swap]) -> None:
    value = msgspec.json.encode(sorted(kept, key=lambda view: view.name))
    store.put([], swaps=[Swap(CELL, version_of(cell), value), *swaps])
