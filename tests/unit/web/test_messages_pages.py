"""The pages of messages: searching, paging and one message, against the store; and what their buttons do."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from tests.support.attack.hosts import SqliteHost
from tests.support.dead_letters import BIG, SECRET, Pages, audited, dead, text_of
from tests.support.dead_letters import app as app
from tests.support.dead_letters import pages as pages

from redrive import App
from redrive.fault import classify
from redrive.message import ClaimRequest, DeadLetter, Draft, Lane, Settlement
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing import ManualClock
from redrive.triage.selection import Selection
from redrive.web import ALL, Permission, User


def lane_of(app: App, id: str) -> Lane | None:
    found = app.store.find([id])[0]
    return None if found is None else found.lane


def every(app: App, q: str, **more: str) -> dict[str, str]:
    return {"every": "1", "q": q, "at": str(app.store.now_ms()), **more}


# -- searching


def newest_first(app: App, q: str) -> list[str]:
    found = app.dlq.select(q).messages()
    return [m.id for m in sorted(found, key=lambda m: (m.rested_ms or 0, m.id), reverse=True)]


def test_dead_messages_are_listed_the_last_dead_first_with_their_count(app: App, pages: Pages) -> None:
    shown = pages.json("/messages")
    assert ([row["id"] for row in shown["rows"]], shown["sort"]) == (newest_first(app, ""), "newest")
    oldest = pages.json("/messages", sort="oldest")["rows"]
    assert [row["id"] for row in oldest] == [m.id for m in app.store.peek(Lane.DEAD, limit=500).messages]
    assert pages.html("/messages", sort="loudest").status_code == 422
    assert (shown["count"], shown["next"]) == (16, None)
    assert "16 messages match" in text_of(pages.html("/messages"))


@pytest.mark.parametrize(
    ("q", "count"),
    [("error:ValueError", 10), ("reason:rejected", 6), ("lane:done", 24), ("args.city:Graz args.number:<8", 2),
     ("queue:mail", 0), ("failed:<1h -error:ValueError", 6), ("lane:(dead,done)", 40)],
)  # fmt: skip
def test_selector_finds_what_it_finds_on_the_command_line(app: App, pages: Pages, q: str, count: int) -> None:
    shown = pages.json("/messages", q=q, sort="oldest")
    assert [row["id"] for row in shown["rows"]] == list(app.dlq.select(q).ids())
    assert (shown["count"], len(shown["rows"])) == (count, count)
    assert [row["id"] for row in pages.json("/messages", q=q)["rows"]] == newest_first(app, q)


@pytest.mark.parametrize("sort", ["newest", "oldest"])
def test_pages_of_fifty_follow_each_other_without_gap_or_repeat(app: App, pages: Pages, sort: str) -> None:
    task = app.tasks["order.ship"]
    for number in range(400, 880, 4):
        task.enqueue(number)
    app.run_worker(["crm"], burst=True)
    known, found, after = list(app.dlq.select("error:ValueError").ids()), list[str](), ""
    known = known if sort == "oldest" else newest_first(app, "error:ValueError")
    while True:
        shown = pages.json("/messages", q="error:ValueError", after=after, sort=sort)
        assert len(shown["rows"]) <= 50
        found += [row["id"] for row in shown["rows"]]
        if shown["next"] is None:
            break
        after = shown["next"]
    assert len(known) == 130
    assert found == known


def test_next_page_is_of_the_moment_of_the_first(app: App, pages: Pages) -> None:
    at = pages.json("/messages")["at"]
    app.tasks["order.ship"].enqueue(400)
    while app.store.now_ms() <= at:
        pass
    app.run_worker(["crm"], burst=True)
    assert len(pages.json("/messages")["rows"]) == 17
    assert len(pages.json("/messages", at=at)["rows"]) == 16


@pytest.mark.parametrize("after", ["nothing", "dead~nothing", "done~"])
def test_cursor_of_another_list_is_refused(pages: Pages, after: str) -> None:
    assert pages.html("/messages", after=after).status_code == 422


def test_selector_that_cannot_be_read_is_pointed_at_and_kept(pages: Pages) -> None:
    response = pages.html("/messages", q='error:ValueError "open <b>')
    assert response.status_code == 422
    assert 'value="error:ValueError &#34;open &lt;b&gt;"' in response.text
    assert "^" in response.text
    assert pages.json("/messages", q="quue:crm")["mistake"]["what"] == "unknown field 'quue'"


@pytest.mark.parametrize("digits", [36, 35, 30])
def test_id_or_its_beginning_leads_to_the_message(app: App, pages: Pages, digits: int) -> None:
    id = dead(app)[0].id
    response = pages.html("/messages", q=id[:digits].upper())
    assert (response.status_code, response.headers["location"]) == (303, f"/messages/{id}")
    assert pages.json("/messages", q=id[:digits])["found"] == [id]


def test_beginning_of_several_ids_lists_them(app: App, pages: Pages) -> None:
    begin = dead(app)[0].id[:8]
    page = pages.html("/messages", q=begin).text
    found = pages.json("/messages", q=begin)["found"]
    assert len(found) > 1
    assert all(f'href="/messages/{id}"' in page for id in found)


def test_messages_that_wait_are_listed_by_their_lane(app: App, pages: Pages) -> None:
    waiting = {message.id for message in app.store.peek(Lane.READY).messages}
    shown = pages.json("/messages", lane="scheduled")
    assert ({row["id"] for row in shown["rows"]}, shown["count"]) == (waiting, 3)
    assert {row["state"] for row in shown["rows"]} == {"scheduled"}
    assert pages.json("/messages", lane="ready")["rows"] == []
    assert pages.json("/messages", lane="scheduled", queue="crm")["rows"] == []
    assert len(pages.json("/messages", lane="any", task="mail.send")["rows"]) == 3
    assert len(pages.json("/messages", lane="any", q=f"correlation:{next(iter(waiting))}")["rows"]) == 1


def test_pages_of_waiting_messages_go_from_queue_to_queue_without_gap_or_repeat(app: App, pages: Pages) -> None:
    for number in range(70):
        app.tasks["mail.send"].using(queue=f"m{number % 3}", delay="1h").enqueue("x")
    known = {message.id for message in app.store.peek(None, limit=500).messages}
    found, after = [], ""
    while True:
        shown = pages.json("/messages", lane="any", after=after)
        assert len(shown["rows"]) <= 50
        found += [row["id"] for row in shown["rows"]]
        if shown["next"] is None:
            break
        after = shown["next"]
    assert len(found) == len(known) == 113
    assert set(found) == known
    gone = '["ready","m0x",null]'  # a queue that is empty by now: the list goes on behind it
    rows = pages.json("/messages", lane="scheduled", after=gone)["rows"]
    assert {row["queue"] for row in rows} == {"m1", "m2", "mail"}
    assert pages.html("/messages", lane="scheduled", after='["dead"').status_code == 422


@pytest.mark.parametrize("q", ["error:ValueError", "args.number:1", "lane:dead", "lane:ready"])
def test_messages_in_any_lane_are_selected_by_every_field(app: App, pages: Pages, q: str) -> None:
    found = {row["id"] for row in pages.json("/messages", lane="any", q=q)["rows"]}
    every = Selection(app.store, q, every=True)
    assert found == set(every.ids(50)) and bool(found) == (q != "lane:ready")


def test_search_box_completes_fields_and_the_names_that_are_known(pages: Pages) -> None:
    offered = pages.json("/messages")["completions"]
    assert {"queue:crm", "queue:mail", "task:order.ship", "error:ValueError", "lane:quarantine", "key:"} <= set(offered)
    assert '<option value="failed:&lt;1h">' in pages.html("/messages").text


def test_selectors_on_bodies_need_the_permission_to_see_them(app: App) -> None:
    limited = Pages(app.dashboard(authorize=lambda request: User("ann", ALL - {Permission.VIEW_BODIES})))
    assert limited.html("/messages", q="args.city:Graz").status_code == 403
    assert limited.html("/messages", q="queue:crm Graz").status_code == 403
    assert limited.html("/messages", lane="any", q="header.city:Graz").status_code == 403
    assert limited.html("/groups", q="-args.city:Graz").status_code == 403
    assert limited.html("/messages", q="queue:crm").status_code == 200


def test_newest_ones_of_more_than_a_page_can_read_are_found_by_their_time(
    app: App, pages: Pages, tmp_path: Path
) -> None:
    die_over_hours(tmp_path, 1_400)
    known, found, after = newest_first(app, "queue:bulk"), list[str](), ""
    for _ in range(5):
        shown = pages.json("/messages", q="queue:bulk", after=after)
        assert shown["sort"] == "newest"
        found, after = [*found, *(row["id"] for row in shown["rows"])], shown["next"]
    assert found == known[: len(found)] and len(found) == 250


def die_over_hours(folder: Path, count: int) -> None:
    """Let messages of the queue `bulk` die over the last four hours, seven at each time, most of them lately."""
    begin_ms = time.time_ns() // 1_000_000 - 4 * 3_600_000
    clock = ManualClock(begin_ms)
    store = SqliteStore(folder / "work.db", clock_ms=clock)
    fault = classify(ValueError("no"))
    for n in range(count // 7):
        store.put([Draft(task="bulk", queue="bulk") for _ in range(7)])
        deliveries = store.exchange([], [ClaimRequest("bulk", 7, 30_000)]).deliveries
        store.exchange([Settlement(each.receipt, DeadLetter("rejected"), fault) for each in deliveries], [])
        clock.advance(120 if n < 90 else 20)
    store.close()


def test_arguments_are_a_column_with_what_differs_first_and_without_secrets(app: App, pages: Pages) -> None:
    rows = pages.json("/messages", q="error:ValueError")["rows"]
    assert all(row["arguments"].startswith("number=") and len(row["arguments"]) <= 80 for row in rows)
    assert len({row["arguments"] for row in rows}) == len(rows)
    assert SECRET not in pages.html("/messages").text
    limited = Pages(app.dashboard(authorize=lambda request: User("ann", ALL - {Permission.VIEW_BODIES})))
    assert {row["arguments"] for row in limited.json("/messages")["rows"]} == {None}
    assert not any(term.startswith("args.number") for term in limited.json("/messages")["completions"])
    assert any(term.startswith("args.number:") for term in pages.json("/messages")["completions"])


def test_end_of_an_id_as_the_list_shows_it_finds_the_message(app: App, pages: Pages) -> None:
    id = dead(app)[0].id
    assert [row["id"] for row in pages.json("/messages", q=f"…{id[-10:]}")["rows"]] == [id]


def test_refused_form_keeps_the_page_the_ticks_and_the_text(app: App, pages: Pages) -> None:
    id = dead(app)[0].id
    answer = pages.do("discard", id=id, reason=" ", here="messages?q=error%3AValueError")
    assert answer.status_code == 422 and 'role="alert"' in answer.text and 'aria-label="Pages"' in answer.text
    assert f'value="{id}" form="picked" checked' in answer.text
    answer = pages.do("discard", reason="<no> tick", here="messages?q=error%3AValueError")
    assert answer.status_code == 422 and 'value="&lt;no&gt; tick"' in answer.text
    assert "no message is ticked" in text_of(answer).lower()
    assert app.store.counts("crm").dead == 16


# -- one message


def test_message_shows_its_life_body_and_links(app: App, pages: Pages) -> None:
    message = next(message for message in dead(app) if b'"number":4,' in message.body)
    page, shown = pages.html(f"/messages/{message.id}"), pages.json(f"/messages/{message.id}")
    assert [moment["what"] for moment in shown["timeline"]] == ["enqueued", "attempt 1", "dead"]
    assert shown["timeline"][1]["traceback"].endswith("ValueError: no stock for 4")
    assert shown["body"] == {"number": 4, "city": "Graz", "password": "***"}
    assert shown["headers"] == {"tenant": "acme", "api-key": "***"}
    assert (shown["state"], shown["reason"]) == ("dead", message.reason)
    for href in (f"/groups/{message.faults[-1].fingerprint}", "/queues/crm", f"/messages/{message.id}/edit"):
        assert f'href="{href}"' in page.text
    assert SECRET not in page.text + json.dumps(shown)


def test_body_keeps_every_digit_and_repeated_name(app: App, pages: Pages) -> None:
    body = f'{{"n":{BIG},"x":1.50,"x":2,"<b>":"\u202e"}}'
    (put,) = app.store.put([Draft(task="mail.send", queue="mail", body=body.encode(), delay_ms=3_600_000)])
    page = pages.html(f"/messages/{put.id}").text
    assert str(BIG) in page
    assert re.findall(r'name">x</span> <code>([^<]*)', page) == ["1.50", "2"]
    assert "\u202e" not in page
    assert "<b>" not in page
    assert "&lt;b&gt;" in page


def test_message_that_waits_says_why_and_until_when(app: App, pages: Pages) -> None:
    message = app.store.peek(Lane.READY).messages[0]
    shown = pages.json(f"/messages/{message.id}")
    assert [hold["kind"] for hold in shown["held"]]
    assert shown["actions"] == ["run-now", "cancel"]
    assert "Why it waits" in text_of(pages.html(f"/messages/{message.id}"))


def test_bodies_headers_and_results_are_withheld_without_their_permission(app: App) -> None:
    limited = Pages(app.dashboard(authorize=lambda request: User("ann", ALL - {Permission.VIEW_BODIES})))
    done = app.store.peek(Lane.DONE).messages[0]
    for message in (dead(app)[0], done):
        shown, page = limited.json(f"/messages/{message.id}"), limited.html(f"/messages/{message.id}").text
        assert (shown["body"], shown["result"], shown["headers"]) == (None, None, None)
        assert not any(word in page for word in ("Graz", "Bonn", "acme"))
        assert "view_bodies" in page
    assert limited.html(f"/messages/{dead(app)[0].id}/edit").status_code == 403


def test_message_that_is_gone_says_who_removed_it_and_why(app: App, pages: Pages) -> None:
    id = dead(app)[0].id
    app.dlq.discard([id], reason="a test order", actor="ann")
    response = pages.html(f"/messages/{id}")
    assert response.status_code == 404
    assert "a test order (ann" in text_of(response)
    assert pages.html("/messages/0198c0de-0000-7000-8000-000000000000").status_code == 404


# -- acting


@pytest.mark.parametrize(
    ("action", "lane", "word"),
    [("retry", Lane.READY, "retried"), ("quarantine", Lane.QUARANTINE, "quarantined"), ("discard", None, "discarded")],
)
def test_ticked_messages_are_moved_with_who_and_why(app: App, action: str, lane: Lane | None, word: str) -> None:
    pages = Pages(app.dashboard(authorize=lambda request: "ann"))
    ids = [message.id for message in dead(app)[:3]]
    said = pages.followed(pages.do(action, id=ids, reason="the fix is out", q="error:ValueError"))
    assert f"3 messages {word}." in said
    assert [lane_of(app, id) for id in ids] == [lane] * 3
    entry = audited(app, action)
    assert (set(entry.ids), entry.reason, entry.claimed or entry.actor) == (set(ids), "the fix is out", "ann")


def test_quarantined_messages_are_readmitted(app: App, pages: Pages) -> None:
    id = dead(app)[0].id
    app.dlq.quarantine([id], reason="poison")
    assert "1 message readmitted." in pages.followed(pages.do("readmit", id=id, reason="fixed", alone="1"))
    assert lane_of(app, id) is Lane.DEAD


def test_waiting_messages_are_cancelled(app: App, pages: Pages) -> None:
    ids = [message.id for message in app.store.peek(Lane.READY).messages]
    assert "3 messages cancelled." in pages.followed(pages.do("cancel", id=ids, reason="wrong list", lane="scheduled"))
    assert app.store.counts("mail").scheduled == 0
    assert set(audited(app, "cancel").ids) == set(ids)
    assert pages.do("cancel", id=ids, reason="again").status_code == 409


def test_scheduled_messages_are_made_due(app: App, pages: Pages) -> None:
    ids = [message.id for message in app.store.peek(Lane.READY).messages]
    assert "run-now" in pages.html("/messages?lane=scheduled").text
    said = pages.followed(pages.do("run-now", id=ids[0], reason="they wait for it", alone="1"))
    assert "due now, " in said and "before its time." in said
    assert "3 due now." in pages.followed(pages.do("run-now", id=ids, reason="all of it", lane="scheduled"))
    assert app.store.counts("mail").scheduled == 0 and app.store.counts("mail").ready == 3
    assert set(audited(app, "run-now").ids) == set(ids[1:])
    assert pages.do("run-now", id=dead(app)[0].id, reason="no").status_code == 409


@pytest.mark.parametrize("action", ["retry", "run-now", "quarantine", "discard", "readmit", "cancel"])
def test_action_without_a_reason_or_without_a_tick_does_nothing(app: App, pages: Pages, action: str) -> None:
    before = len(list(app.audit))
    assert pages.do(action, id=dead(app)[0].id, reason=" ").status_code == 422
    assert pages.do(action, reason="none is ticked").status_code == 422
    assert len(list(app.audit)) == before
    assert app.store.counts("crm").dead == 16


def test_message_that_moved_meanwhile_is_not_moved_again(app: App, pages: Pages) -> None:
    id = dead(app)[0].id
    app.dlq.quarantine([id], reason="poison")
    response = pages.do("quarantine", id=id, reason="late")
    assert response.status_code == 409
    assert "had moved meanwhile" in text_of(response)


def test_all_that_match_are_discarded_as_of_when_the_page_was_made(app: App, pages: Pages) -> None:
    form = every(app, "error:ValueError", reason="test orders")
    while app.store.now_ms() <= int(form["at"]):
        pass
    app.tasks["order.ship"].enqueue(400)
    app.run_worker(["crm"], burst=True)
    assert "10 messages discarded." in pages.followed(pages.do("discard", **form))
    assert [message.body for message in dead(app)] == [b'{"number":400}']
    assert audited(app, "discard").about == "error:ValueError"


def test_above_a_hundred_their_number_is_typed(app: App, pages: Pages) -> None:
    for number in range(400, 880, 4):
        app.tasks["order.ship"].enqueue(number)
    app.run_worker(["crm"], burst=True)
    form = every(app, "error:ValueError", reason="test orders")
    assert pages.do("discard", **form).status_code == 409
    assert pages.do("discard", **form, count="129").status_code == 409
    assert len(dead(app)) == 130
    assert "130 messages discarded." in pages.followed(pages.do("discard", **form, count="130"))
    assert dead(app) == []


def test_ticked_messages_are_planned_by_their_ids(app: App, pages: Pages) -> None:
    ids = [message.id for message in dead(app)[:2]]
    response = pages.do("plan-picked", id=ids)
    assert response.headers["location"].startswith("/plans?q=id%3A%28")
    assert list(app.dlq.select(f"id:({','.join(ids)})").ids()) == ids


def test_export_of_ticked_messages_is_what_the_command_line_writes(app: App, pages: Pages, tmp_path: Path) -> None:
    ids = [message.id for message in dead(app)[:2]]
    response = pages.do("export", id=ids)
    app.dlq.export(f"id:({','.join(ids)})", tmp_path / "file")
    assert response.content == (tmp_path / "file").read_bytes()
    assert SECRET not in response.text


def test_damaged_row_is_shown_with_what_is_wrong(app: App, pages: Pages, tmp_path: Path) -> None:
    message = dead(app)[0]
    assert SqliteHost(tmp_path).spoil(message.id, "faults", b"\xff{")
    shown, page = pages.json(f"/messages/{message.id}"), pages.html(f"/messages/{message.id}")
    assert shown["damage"]
    assert shown["actions"] == ["discard"]
    assert "Its row cannot be read" in text_of(page)
    assert pages.html("/messages").status_code == 200
    limited = Pages(app.dashboard(authorize=lambda request: User("ann", ALL - {Permission.VIEW_BODIES})))
    assert limited.json(f"/messages/{message.id}")["row"] is None
