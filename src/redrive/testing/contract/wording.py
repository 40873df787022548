"""Words: a parameter that takes a member of an enumeration also takes its text, and refuses every other text."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ...errors import ConfigError
from ...message import Ack, DeadLetter, Discard, GroupOrder, Handle, Isolate, Lane, OnDead, Redrive
from ...store import Store
from ..clock import ManualClock
from .base import Contract, bury, claim, claim_one, draft, handle, look, put, put_one, settle
from .weaker import takes

NO_WORDS: list[Any] = ["ded", "Dead", "DEAD", "", "dead ", "'dead'", "' or true --"]


class WordRules(Contract):
    @takes("triages")
    @pytest.mark.parametrize("lane", ["dead", "quarantine"])
    def test_a_lane_where_messages_rest_is_looked_at_by_its_text(self, store: Store, lane: str) -> None:
        ids = {one: bury(store, one) for one in (Lane.DEAD, Lane.QUARANTINE)}
        assert [(m.id, m.lane) for m in store.peek(lane).messages] == [(ids[Lane(lane)], Lane(lane))]

    @takes("finds", "triages")
    @pytest.mark.parametrize("lane", [*map(str, Lane)])
    def test_every_lane_is_looked_at_by_its_text(self, store: Store, lane: str) -> None:
        put(store, draft(), draft())
        one, _ = claim(store)
        settle(store, one, Ack(keep_ms=60_000))
        put_one(store)
        bury(store)
        page = store.peek(lane)
        assert page == store.peek(Lane(lane))
        assert all(type(message.lane) is Lane and message.lane == lane for message in page.messages)

    @takes("triages")
    @pytest.mark.parametrize("word", NO_WORDS)
    def test_what_is_no_lane_is_refused(self, store: Store, word: str) -> None:
        id = bury(store)
        with pytest.raises(ConfigError, match=r"lane=.*expected one of 'ready'"):
            store.peek(word)
        with pytest.raises(ConfigError, match=r"lane=.*expected one of 'ready'"):
            store.triage([Handle(id, 0, word)], Discard("no"))  # type: ignore[arg-type]
        assert look(store, id).lane is Lane.DEAD

    @takes("triages")
    def test_a_verdict_takes_handles_that_name_their_lane_by_its_text(self, store: Store) -> None:
        kept, moved = bury(store), bury(store)
        said = [Handle(id, 0, "dead") for id in (kept, moved)]  # type: ignore[arg-type]
        assert store.triage([said[0]], Isolate("away")) == [True]
        assert store.triage(said, Redrive()) == [False, True]
        assert (look(store, kept).lane, claim_one(store).message.id) == (Lane.QUARANTINE, moved)

    @takes("triages")
    def test_a_message_is_restored_whose_lane_is_a_text(self, store: Store, clock: ManualClock) -> None:
        message = look(store, bury(store))
        store.triage([handle(store, message.id)], Discard("gone"))
        assert store.restore([replace(message, lane="dead")]) == [True]
        stored = look(store, message.id)
        assert stored == message and type(stored.lane) is Lane
        assert store.triage([handle(store, message.id)], Redrive()) == [True]
        settle(store, claim_one(store), DeadLetter("permanent"))

    @takes("widths")
    @pytest.mark.parametrize("order", [*map(str, GroupOrder)])
    @pytest.mark.parametrize("on_dead", [*map(str, OnDead)])
    def test_groups_are_configured_by_texts(self, store: Store, order: str, on_dead: str) -> None:
        if (order, on_dead) == ("turns", "block"):
            with pytest.raises(ConfigError):
                store.configure("default", group_order=order, on_dead=on_dead)
            return
        store.configure("default", group_width=1, group_order=order, on_dead=on_dead)
        ids = put(store, draft(group="g"), draft(group="g"))
        settle(store, claim_one(store), DeadLetter("permanent"))
        left = [] if on_dead == "block" else ids[1:]
        assert [delivery.message.id for delivery in claim(store)] == left
        assert store.check() == []

    @takes("widths")
    @pytest.mark.parametrize("word", ["strikt", "STRICT", ""])
    def test_what_is_no_order_of_groups_is_refused(self, store: Store, word: str) -> None:
        with pytest.raises(ConfigError, match=r"group_order=.*expected one of 'turns', 'strict'"):
            store.configure("default", group_order=word)
        with pytest.raises(ConfigError, match=r"on_dead=.*expected one of 'skip', 'block'"):
            store.configure("default", on_dead=word)
        put(store, draft(group="g"), draft(group="g"))
        assert len(claim(store)) == 1 and store.check() == []
