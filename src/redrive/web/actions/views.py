"""Save and remove views."""

from __future__ import annotations

from ...triage.views import remove_view, save_view
from ..ask import Done, PageRequest, Problem


def save(ask: PageRequest) -> Done:
    """Save an address of these pages under a name."""
    view = save_view(ask.store, ask.needed("name", "the view's name"), ask.text("address"), actor=ask.actor)
    return Done(f"The view {view.name} is saved.", ("views",), {"name": view.name, "address": view.address})


def remove(ask: PageRequest) -> Done:
    """Remove a saved view."""
    name = ask.needed("name", "the view's name")
    if not remove_view(ask.store, name, actor=ask.actor):
        raise Problem(f"there is no view {name!r}", "somebody removed it, or its name is another", "", 404)
    return Done(f"The view {name} is removed.", ("views",), {"name": name})
