from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.redrive_pages import Pages, actions, text_of

import redrive
from redrive.flow import dependency as flow
from redrive.flow import limits
from redrive.message import Swap, version_of
from redrive.present.dependencies import dependency_row
from redrive.web import Permission, Site


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    with Pages(tmp_path) as made:
        yield made


def test_the_list_shows_each_dependency_as_the_store_has_it(pages: Pages) -> None:
    pages.bury(sends=3)
    pages.send.enqueue("waits@example.com")
    pages.app.flow.open("smtp", reason="maintenance")
    (record,) = pages.json("/flow")["dependencies"]
    (control,) = pages.app.flow.list()
    assert record | dependency_row(control) | {"budget_left": 0} == record | {"budget_left": 0}
    assert (record["waiting"], record["breaker"], record["words"]) == (
        1, "forced_open", "held open by hand: nothing calls it",
    )  # fmt: skip
    page = text_of(pages.get("/flow"))
    assert "forced open nothing calls it" in page


def test_calls_and_failures_of_the_window_are_shown(pages: Pages) -> None:
    pages.bury(sends=3)
    record = pages.json("/flow/smtp")
    assert (record["calls"], record["failed"]) == (3, 3)
    assert "3 of 3" in text_of(pages.get("/flow/smtp"))


def test_a_breaker_is_held_and_released_each_with_actor_and_reason(pages: Pages) -> None:
    page = pages.get("/flow/smtp")
    assert {"open-breaker", "close-breaker"} < actions(page) and "auto-breaker" not in actions(page)
    assert "for this time or, without one, until you release it" in text_of(page)
    opened = pages.send_form(page, "open-breaker", reason="maintenance", **{"for": ""})
    assert pages.app.flow.show("smtp").breaker == "forced_open"
    assert "It stays so until it is released" in text_of(opened.text)
    closed = pages.send_form(opened.text, "close-breaker", reason="let it through", **{"for": "20m"})
    held = pages.app.flow.show("smtp")
    assert (held.breaker, held.until_ms) == ("forced_closed", (held.since_ms or 0) + 20 * 60_000)
    assert "it is released by itself" in text_of(closed.text)
    released = pages.send_form(closed.text, "auto-breaker", reason="all is well")
    assert pages.app.flow.show("smtp").breaker == "closed"
    assert "auto-breaker" not in actions(released.text)
    told = [("maintenance", "forced_open"), ("let it through", "forced_closed"), ("all is well", "closed")]
    assert pages.audited("flow") == [("flow", "ann", reason) for reason, _ in told]
    transitions = pages.json("/flow/smtp")["transitions"]
    assert [(t["reason"], t["after"], t["actor"]) for t in transitions] == [(r, to, "ann") for r, to in told[::-1]]


def test_a_cool_down_a_budget_and_a_ramp_are_ended_by_hand(pages: Pages) -> None:
    store = pages.app.store
    (cell,) = store.cells.read([flow.cell_of("smtp", "")])
    state = flow.decode(cell)
    cool = limits.CoolDown(until_ms=store.now_ms() + 60_000)
    store.cells.swap(
        [Swap(flow.cell_of("smtp", ""), version_of(cell), flow.encode(msgspec.structs.replace(state, cool=cool)))]
    )
    pages.app.flow.open("smtp", reason="maintenance")
    pages.app.flow.close("smtp", reason="over")
    page = pages.get("/flow/smtp")
    assert pages.json("/flow/smtp")["cool_until"] is not None
    assert {"end-cooldown", "reset-budget", "end-ramp"} <= actions(page)
    for action, reason in (
        ("end-cooldown", "they said so"),
        ("reset-budget", "start anew"),
        ("end-ramp", "it is strong"),
    ):
        assert pages.send_form(page, action, reason=reason).status_code == 200
        assert pages.audited("flow")[-1] == ("flow", "ann", reason)
    record = pages.json("/flow/smtp")
    assert (record["cool_until"], record["ramp_per_s"]) == (None, None)
    assert not {"end-cooldown", "end-ramp"} & actions(pages.get("/flow/smtp"))


def test_every_change_needs_a_reason_and_a_known_dependency(pages: Pages) -> None:
    for action in ("open-breaker", "close-breaker", "auto-breaker", "end-cooldown", "reset-budget", "end-ramp"):
        assert pages.post(action, dependency="smtp").status_code == 422, action
        assert pages.post(action, dependency="nope", reason="x").status_code == 404, action
    assert pages.audited("flow") == []


def test_who_may_not_steer_flow_control_sees_it_without_buttons(pages: Pages) -> None:
    pages.may(Permission.REDRIVE)
    assert actions(pages.get("/flow/smtp")) == set()
    assert pages.post("open-breaker", dependency="smtp", reason="x").status_code == 403


def test_the_tasks_that_call_a_dependency_are_named(pages: Pages) -> None:
    assert pages.json("/flow/smtp")["tasks"] == [{"task": "mail.send", "queue": "mail"}]


def test_an_unknown_dependency_is_not_found_and_the_near_name_is_said(pages: Pages) -> None:
    answer = pages.ask("GET", "/flow/smpt")
    assert answer.status_code == 404
    assert "did you mean" in answer.text and "smtp" in answer.text


def test_messages_that_wait_for_it_are_listed(pages: Pages) -> None:
    pages.app.flow.open("smtp", reason="maintenance")
    sent = [pages.send.enqueue(f"{n}@example.com").id for n in range(3)]
    pages.push.enqueue(1)
    record, page = pages.json("/flow/smtp"), pages.get("/flow/smtp")
    assert [(row["id"], row["why"]) for row in record["messages"]] == [(id, None) for id in sent]
    assert all(f'href="/messages/{id}"' in page for id in sent)


def test_messages_that_a_key_put_off_are_listed_with_why(pages: Pages) -> None:
    pages.app.dependency("shops", per="group", breaker=redrive.Breaker())

    @pages.app.task(name="order", queue="mail", dependency="shops")
    def order(n: int) -> None: ...

    pages.app.flow.open("shops", key="one", reason="it is down")
    held = [order.using(group="one").enqueue(n).id for n in range(2)]
    pages.work("mail")
    order.using(group="two").enqueue(1)
    assert pages.json("/flow/shops")["keyed"] == {"one": 2, "two": 1}
    assert 'href="/flow/shops?key=one"' in pages.get("/flow/shops")
    rows = pages.json("/flow/shops?key=one")["messages"]
    assert {(row["id"], row["why"], row["by"]) for row in rows} == {(id, "breaker", "shops") for id in held}
    assert [row["why"] for row in pages.json("/flow/shops?key=two")["messages"]] == [None]


def test_keys_from_bodies_are_shown_to_who_may_see_bodies(pages: Pages) -> None:
    pages.app.dependency("shops", per="args.shop", breaker=redrive.Breaker())

    @pages.app.task(name="order", queue="mail", dependency="shops")
    def order(shop: str) -> None: ...

    order.enqueue(shop="acme")
    assert pages.json("/flow/shops")["keyed"] == {"acme": 1}
    assert len(pages.json("/flow/shops?key=acme")["messages"]) == 1
    pages.may(Permission.FLOW)
    assert pages.json("/flow/shops")["keyed"] == {}
    assert pages.json("/flow/shops?key=acme")["messages"] == []
    assert "acme" not in pages.get("/flow/shops")


def test_keys_of_a_split_dependency_have_pages_of_their_own(pages: Pages) -> None:
    pages.app.dependency("shops", per="group")
    shown = pages.get("/flow/shops")
    assert "it is controlled per group" in text_of(shown)
    pages.send_form(pages.get("/flow/shops?key=a%20b"), "open-breaker", reason="one shop is down")
    assert pages.app.flow.show("shops", key="a b").breaker == "forced_open"
    assert pages.app.flow.show("shops").breaker == "closed"
    record = pages.json("/flow/shops?key=a%20b")
    assert (record["key"], record["breaker"]) == ("a b", "forced_open")


def test_muted_alerts_are_shown_with_their_end(pages: Pages) -> None:
    pages.app.alerts.mute(dependency="smtp", for_="1h", reason="maintenance", actor="bea")
    pages.app.alerts.mute(queue="crm", for_="2h", reason="known")
    mutes = pages.json("/flow")["mutes"]
    assert [(mute["about"], mute["reason"]) for mute in mutes] == [("flow/smtp", "maintenance"), ("queue/crm", "known")]
    assert pages.json("/flow/smtp")["mutes"] == mutes[:1]
    assert "muted until" in text_of(pages.get("/flow/smtp"))


def test_without_the_app_rules_are_unknown_and_breakers_are_still_steered(pages: Pages) -> None:
    pages.bury(sends=1)
    pages.show(Site(pages.app, authorize=lambda request: pages.user))
    (record,) = pages.json("/flow")["dependencies"]
    assert (record["dependency"], record["waiting"], record["budget_left"]) == ("smtp", None, None)
    assert pages.send_form(pages.get("/flow/smtp"), "open-breaker", reason="maintenance").status_code == 200
    assert pages.app.flow.show("smtp").breaker == "forced_open"
