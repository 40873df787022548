"""Pages of a selection: in order, without gap, and bounded where the store does not answer the whole selector."""

from __future__ import annotations

import pytest

from redrive import App
from redrive.ids import new_id
from redrive.message import Lane, Message
from redrive.triage.paging import LOOKED_MAX
from redrive.triage.selection import Selection


def rest(app: App, count: int, lane: Lane = Lane.DEAD, *, ago_ms: int = 10_000, **of: str) -> None:
    began_ms = app.store.now_ms() - ago_ms
    for first in range(0, count, 500):
        app.store.restore([_rested(began_ms + n, lane, of) for n in range(first, min(count, first + 500))])


def _rested(at_ms: int, lane: Lane, of: dict[str, str]) -> Message:
    fields = {"task": "t", "queue": "crm", "reason": "exhausted", "key": None, **of}
    id = new_id(at_ms)
    return Message(
        id=id, body=b"{}", correlation_id=id, lane=lane, enqueued_ms=at_ms, life_ms=at_ms, rested_ms=at_ms, **fields
    )  # type: ignore[arg-type]


def through(selection: Selection, limit: int) -> list[list[str]]:
    """The ids of each page."""
    pages, cursor = [], None
    while True:
        page = selection.page(limit, cursor)
        pages.append([message.id for message in page.messages])
        if (cursor := page.cursor) is None:
            return pages


@pytest.mark.parametrize("selector", ["", "queue:crm", "correlation:*", "lane:(dead,quarantine)", "lane:quarantine"])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_are_the_selection_cut_in_pieces(app: App, selector: str, limit: int) -> None:
    rest(app, 5)
    rest(app, 4, Lane.QUARANTINE)
    selection = Selection(app.store, selector)
    pages = through(selection, limit)
    assert [id for page in pages for id in page] == list(selection.ids())
    assert all(len(page) <= limit for page in pages)


def test_page_ends_early_where_few_of_many_match_and_its_cursor_leads_on(app: App) -> None:
    rest(app, LOOKED_MAX + 100)
    rest(app, 1, ago_ms=1_000, key="rare")
    pages = through(Selection(app.store, "key:rare"), 50)
    assert [len(page) for page in pages] == [0, 1]


@pytest.mark.parametrize("cursor", ["", "dead", "done~", "quarantine~x", "dead~x"])
def test_cursor_of_another_selection_is_refused(app: App, cursor: str) -> None:
    rest(app, 3)
    with pytest.raises(ValueError):
        Selection(app.store, "queue:crm").page(1, cursor)
