"""The pages of failure groups: what they show against the store, and what their buttons do."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.dead_letters import SECRET, Pages, audited, dead, text_of
from tests.support.dead_letters import app as app
from tests.support.dead_letters import pages as pages

from redrive import App
from redrive.message import FailureGroup, Filter, Lane
from redrive.present.formats import timestamp
from redrive.web import ALL, Permission, User
from redrive.web.read import groups, selecting


def fingerprint(app: App) -> str:
    return next(group.fingerprint for group in app.dlq.groups() if group.error == "ValueError")


def test_groups_are_those_of_the_store_with_place_trend_and_state(app: App, pages: Pages) -> None:
    shown = pages.json("/groups")
    known = app.dlq.groups(trend=True)
    assert [(g["fingerprint"], g["task"], g["count"], g["trend"]) for g in shown["groups"]] == [
        (g.fingerprint, g.task, g.count, g.trend) for g in known
    ]
    assert shown["dead"] == 16
    assert shown["groups"][0]["place"].startswith("ship (dead_letters.py:")
    assert shown["groups"][0]["states"] == ["new"]


def test_groups_page_links_to_each_group_and_to_its_plan(app: App, pages: Pages) -> None:
    page = pages.html("/groups").text
    for group in app.dlq.groups():
        assert f'href="/groups/{group.fingerprint}"' in page
        assert f'href="/plans?q=fingerprint%3A{group.fingerprint}"' in page


def test_groups_are_narrowed_by_a_selector(pages: Pages) -> None:
    assert [g["error"] for g in pages.json("/groups", q="error:ValueError")["groups"]] == ["ValueError"]
    assert pages.json("/groups", q="queue:mail")["groups"] == []
    assert [g["count"] for g in pages.json("/groups", q="args.number:8")["groups"]] == [1]


def test_groups_are_narrowed_to_those_that_died_in_a_time(app: App, pages: Pages) -> None:
    at = app.store.now_ms()
    whole = pages.json("/groups", since="1h")
    assert whole["dead"] == 16 and whole["command"].startswith("redrive dlq groups 'failed:<1h'")
    ahead = {"from": timestamp(at - 7_200_000), "to": timestamp(at - 3_600_000)}
    assert pages.json("/groups", **ahead)["groups"] == []
    some = pages.json("/groups", q="error:ValueError or queue:mail", since="6h")
    assert [g["error"] for g in some["groups"]] == ["ValueError"]
    assert "'(error:ValueError or queue:mail) failed:<6h'" in some["command"]
    page = pages.html("/groups", q="error:ValueError", since="6h").text
    assert '<strong aria-current="true">6h</strong>' in page and 'name="since" value="6h"' in page
    assert 'href="/groups?q=error%3AValueError&amp;since=1h"' in page
    for wrong in ({"since": "soon"}, {"to": ahead["to"]}, {"from": "then"}):
        assert pages.html("/groups", **wrong).status_code == 422


def test_mistake_in_the_filter_is_pointed_at_and_the_text_is_kept(pages: Pages) -> None:
    response = pages.html("/groups", q="quue:crm")
    assert response.status_code == 422
    assert "did you mean queue" in text_of(response)
    assert 'value="quue:crm"' in response.text
    assert "^^^^" in response.text


def test_group_shows_frames_texts_and_what_failing_bodies_share(app: App, pages: Pages) -> None:
    shown = pages.json(f"/groups/{fingerprint(app)}")
    assert (shown["count"], shown["sampled"], shown["compared"]) == (10, 10, 24)
    assert shown["frames"][0]["function"] == "ship"
    assert {each["share"] for each in shown["texts"]} == {0.1}
    narrow = f"fingerprint:{fingerprint(app)} args.city:Graz"
    assert {"field": "city", "text": "Graz", "count": 10, "share": 1.0, "other": 0.0, "q": narrow} in shown["shared"]
    assert not [each for each in shown["shared"] if each["field"] == "password"]
    assert shown["versions"] == [{"text": "1", "count": 10, "share": 1.0, "q": None}]
    assert [row["id"] for row in shown["rows"]] == [message.id for message in dead(app)]


def test_a_text_that_scrolls_in_a_box_of_its_own_is_reached_by_keys(app: App, pages: Pages) -> None:
    """A traceback of sixty frames is higher than its box: who has no mouse read its first half."""
    for path in (f"/groups/{fingerprint(app)}", f"/messages/{dead(app)[0].id}"):
        boxes = re.findall(r"<pre[^>]*>", pages.html(path).text)
        assert boxes and all('tabindex="0" role="region" aria-label="' in each for each in boxes), path


def test_group_whose_last_message_left_is_shown_empty_and_a_name_of_another_form_is_not_found(
    app: App, pages: Pages
) -> None:
    every = {"every": "1", "q": f"fingerprint:{fingerprint(app)}", "at": str(app.store.now_ms())}
    said = pages.followed(pages.do("discard", **every, fingerprint=fingerprint(app), reason="test orders"))
    assert "10 messages discarded." in said
    assert "No message of it is dead now." in said
    assert pages.html("/groups/nothing").status_code == 404


def test_what_bodies_share_is_withheld_from_who_may_not_see_bodies(app: App) -> None:
    limited = Pages(app.dashboard(authorize=lambda request: User("ann", ALL - {Permission.VIEW_BODIES})))
    shown = limited.json(f"/groups/{fingerprint(app)}")
    assert shown["shared"] is None
    assert "Graz" not in limited.html(f"/groups/{fingerprint(app)}").text
    assert limited.do("export", id=[dead(app)[0].id]).status_code == 403


def test_note_owner_mute_and_rule_are_kept_and_shown_with_who_and_why(app: App) -> None:
    pages, name = Pages(app.dashboard(authorize=lambda request: "ann")), fingerprint(app)
    assert "The note is set." in pages.followed(pages.do("note-group", fingerprint=name, note="SHOP-12 <b>"))
    assert "The owner is ops." in pages.followed(pages.do("own-group", fingerprint=name, owner="ops"))
    assert "muted for 4h" in pages.followed(pages.do("mute-group", fingerprint=name, **{"for": "4h"}, reason="known"))
    assert "The rule is hold." in pages.followed(
        pages.do("rule-group", fingerprint=name, rule="hold", reason="until the fix")
    )
    about = app.dlq.annotations([name])[name]
    assert (about.note, about.owner, about.muted(app.store.now_ms())) == ("SHOP-12 <b>", "ops", True)
    assert about.rule is not None and about.rule.kind == "hold"
    assert audited(app, "rule").who.startswith("ann")
    shown = pages.json("/groups")["groups"][0]
    assert (shown["note"], shown["owner"], shown["states"]) == ("SHOP-12 <b>", "ops", ["new", "muted", "rule hold"])
    page = pages.html(f"/groups/{name}").text
    assert "SHOP-12 &lt;b&gt;" in page
    assert "until the fix" in page
    pages.do("rule-group", fingerprint=name, rule="none", reason="fixed")
    assert app.dlq.rules() == {}


@pytest.mark.parametrize(
    ("action", "fields"),
    [("mute-group", {"for": "4h"}), ("mute-group", {"for": "soon", "reason": "x"}), ("rule-group", {"rule": "hold"}),
     ("rule-group", {"rule": "keep", "reason": "x"})],
)  # fmt: skip
def test_annotation_without_its_reason_or_with_a_wrong_word_changes_nothing(
    app: App, pages: Pages, action: str, fields: dict[str, str]
) -> None:
    assert pages.do(action, fingerprint=fingerprint(app), **fields).status_code == 422
    assert app.dlq.annotations([fingerprint(app)]) == {}


def test_ticked_messages_of_a_group_are_retried_and_the_page_is_shown_again(app: App, pages: Pages) -> None:
    ids = [message.id for message in dead(app)[:2]]
    said = pages.followed(pages.do("retry", id=ids, fingerprint=fingerprint(app), reason="stock is back"))
    assert "2 messages retried." in said
    assert "ValueError" in said
    assert [message.lane for message in app.store.find(ids) if message] == [Lane.READY, Lane.READY]
    assert (audited(app, "retry").ids, audited(app, "retry").reason) == (tuple(ids), "stock is back")


def test_group_that_died_again_after_its_run_was_over_has_come_back(app: App, pages: Pages) -> None:
    name = fingerprint(app)
    plan = app.dlq.select(f"fingerprint:{name} id:{dead(app)[0].id}").plan(stop_if="never")
    plan.start(reason="stock is back")
    app.run_worker(["crm"], burst=True)
    assert app.dlq.run(plan.id).view().state == "done"
    app.tasks["order.ship"].enqueue(44)
    app.run_worker(["crm"], burst=True)
    assert pages.json(f"/groups/{name}")["states"] == ["regressed"]


def test_export_of_a_group_hides_secrets_and_reveals_them_with_a_reason(app: App, pages: Pages) -> None:
    query = f"fingerprint:{fingerprint(app)}"
    every = {"every": "1", "q": query, "at": str(app.store.now_ms())}
    lines = pages.do("export", **every).text.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [message.id for message in dead(app)]
    assert SECRET not in "".join(lines)
    assert audited(app, "export").count == 10
    assert pages.do("export", **every, reveal="1").status_code == 422
    assert [entry for entry in app.audit if entry.action == "reveal"] == []
    revealed = pages.do("export", **every, reveal="1", reason="for the tenant")
    assert revealed.text.count(SECRET) == 20
    assert "attachment" in revealed.headers["content-disposition"]
    assert (audited(app, "reveal").reason, audited(app, "reveal").count) == ("for the tenant", 10)


def few_indexes(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Redis, with very many messages."""
    traits = replace(app.store.traits, groups_by=("task", "fingerprint"))
    monkeypatch.setattr(app.store, "traits", traits)
    monkeypatch.setattr(selecting, "COUNTED_MAX", -1)


def test_what_no_index_groups_is_grouped_by_a_thread_that_no_page_waits_for(
    app: App, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_indexes(app, monkeypatch)
    go, grouped = threading.Event(), app.store.failure_groups

    def slowly(where: Filter = Filter(), **words: Any) -> Sequence[FailureGroup]:
        if where.queue is not None:
            go.wait(30)
        return grouped(where=where, **words)

    whole = pages.json("/groups", q="task:order.ship")["groups"]  # by an index
    with monkeypatch.context() as slow:
        slow.setattr(app.store, "failure_groups", slowly)
        assert "Still being grouped" in text_of(pages.html("/groups", q="queue:crm"))
        go.set()
    end_s = time.monotonic() + 30
    while (record := pages.json("/groups", q="queue:crm"))["making"]:
        assert time.monotonic() < end_s
    told = [[(each["fingerprint"], each["count"]) for each in of] for of in (record["groups"], whole)]
    assert told[0] == told[1] != []  # which of those that died in the same millisecond is the sample is not said


def test_what_would_take_too_much_reading_is_refused_by_the_number_dead_in_its_queues(
    app: App, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_indexes(app, monkeypatch)
    monkeypatch.setattr(groups, "MATCHED_MAX", 15)
    response = pages.html("/groups", q="queue:crm error:ValueError")
    assert response.status_code == 422 and "16 messages would be read" in text_of(response)
    assert pages.html("/groups", q="queue:mail error:ValueError").status_code == 200


def test_the_dead_of_a_queue_are_counted_without_reading_them(
    app: App, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_indexes(app, monkeypatch)
    grouped = app.store.failure_groups

    def of_all(where: Filter = Filter(), **words: Any) -> Sequence[FailureGroup]:
        assert where.queue is None
        return grouped(where=where, **words)

    monkeypatch.setattr(app.store, "failure_groups", of_all)
    assert pages.json("/messages", q="queue:crm")["count"] == 16
    assert pages.json("/messages", q="queue:(crm,mail)")["count"] == 16
    assert pages.json("/messages", q="queue:crm error:ValueError")["count"] is None


def test_a_group_is_resolved_muted_until_it_grows_and_merged_on_its_page(app: App) -> None:
    pages, name = Pages(app.dashboard(authorize=lambda request: "ann")), fingerprint(app)
    do = {"fingerprint": name, "reason": "SHOP-12"}
    assert "It is resolved." in pages.followed(pages.do("resolve-group", **do, release="2.4"))
    page = pages.html(f"/groups/{name}").text
    assert "Resolved in 2.4 by ann" in page and pages.json("/groups")["groups"][0]["states"] == ["resolved"]
    assert "open again" in pages.followed(pages.do("resolve-group", **do, off="1"))
    assert "4h at most" in pages.followed(pages.do("mute-group", **do, **{"for": "4h"}, until_rate="10/m"))
    assert "10/m" in pages.html(f"/groups/{name}").text
    assert pages.do("mute-group", **do, until_rate="ten").status_code == 422
    other = "f" * 16
    assert "merged into" in pages.followed(pages.do("merge-group", **do, into=other))
    assert other in pages.html(f"/groups/{name}").text and name in pages.html(f"/groups/{other}").text
    assert pages.json(f"/groups/{other}")["merged"] == [name] and pages.json(f"/groups/{other}")["count"]
    assert "on its own" in pages.followed(pages.do("merge-group", **do, into=""))
    assert app.dlq.family(other) == (other,)
