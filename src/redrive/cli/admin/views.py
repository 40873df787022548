"""`redrive views`: the saved views of the web pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ...config import web_link
from ...present.views import view_record
from ..opening import OpenedStore, at_store
from ..terminal.output import Column, Output
from ..terminal.stderr import note

if TYPE_CHECKING:
    from ...triage.views import SavedView

_COLUMNS = (Column("name", shrinks=True), Column("address", shrinks=True), Column("by", spare=1), Column("at", "saved"))


@click.command()
@at_store()
def views(opened: OpenedStore, out: Output) -> None:
    """List the saved views of the web pages: named addresses, which everyone who uses the store has.

    An address is one below the pages' root, or the whole one if the setting `web_url` is set. The pages save and remove
    views.
    """
    from ...triage.views import views as saved

    if not out.rows(_rows(saved(opened.store)), _COLUMNS, id="name", limit=0):
        note("no view is saved: open a page of `redrive web`, and save it by the menu Views on top")


def _rows(found: Iterable[SavedView]) -> Iterator[dict[str, Any]]:
    root = web_link("")
    for view in found:
        record = view_record(view)
        yield record | {"address": f"{root.rstrip('/')}/{view.address}" if root else view.address}
