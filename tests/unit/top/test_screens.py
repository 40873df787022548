"""Each screen shows what the store has, and leads to what its rows name."""

from __future__ import annotations

import re

from tests.support.top import GONE, NO, Scene, Watched

from redrive.message import Ack, ClaimRequest, DeadLetter, Draft, Settlement


def test_overview_counts_all_queues_and_lists_what_needs_a_person(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.sees("thing")
        assert "dead 4" in w.part("head") and "quarantine 1" in w.part("head") and "scheduled 2" in w.part("head")
        assert "4 messages are dead, in 2 failure groups" in w.part("rows")
        assert "1 message is in quarantine" in w.part("rows")
        assert "2 things need a person" in w.part("head")
        assert "[1 overview]" in w.part("tabs") and "sqlite:///work.db" in w.part("title")

    scene.watch(test)


def test_row_of_the_overview_leads_to_its_failure_group(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.sees("failure")
        while "3 × ValueError in crm.push" not in w.cursor:
            await w.press("down")
        await w.press("enter")
        await w.sees(f"fingerprint {NO}", *(id[:23] for id in scene.dead[:3]))

    scene.watch(test)


def test_the_need_of_a_batch_leads_to_its_dead_members(scene: Scene) -> None:
    draft = scene.app.tasks["mail.send"].draft
    ref = scene.app.batch([draft(), draft()], name="sync").enqueue()
    (one, other) = scene.store.exchange([], [ClaimRequest("mail", 2, 60_000)]).deliveries
    scene.store.exchange([Settlement(one.receipt, DeadLetter("permanent")), Settlement(other.receipt, Ack())], [])

    async def test(w: Watched) -> None:
        await w.sees("batch sync is partial: 1 of 2 members is dead")
        while "batch sync is partial" not in w.cursor:
            await w.press("down")
        await w.press("enter")
        await w.sees(one.message.id[:23])
        assert w.screen.filter == f"batch:{ref.id}" and len(w.screen.page().rows) == 1
        await w.press("enter")
        await w.sees(f"redrive batch show {ref.id}")

    scene.watch(test)


def test_queues_show_counts_of_each_lane_as_the_store_has_them(scene: Scene) -> None:
    scene.store.put([Draft(task="mail.send", queue="mail")] * 5)
    scene.store.exchange([], [ClaimRequest("mail", 2, 60_000)])
    counts = scene.store.counts_by_queue()

    async def test(w: Watched) -> None:
        await w.press("2")
        await w.sees("quarantine", "crm")
        rows = {row["queue"]: row for row in w.screen.page().rows}
        for name, of in counts.items():
            for lane in ("ready", "scheduled", "leased", "dead", "quarantine"):
                assert rows[name][lane] == getattr(of, lane), (name, lane)
        assert rows["mail"]["leased"] == 2 and rows["mail"]["ready"] == 3

    scene.watch(test)


def test_a_queue_shows_what_comes_due_and_what_holds_it(scene: Scene) -> None:
    scene.works()

    async def test(w: Watched) -> None:
        await w.press("2")
        await w.sees("crm")
        await w.press("enter")
        await w.sees("coming due", "vm/worker-0 running", "3 × ValueError in crm.push")
        assert "queue crm" in w.part("tabs") and "within 24h  2 messages" in w.text

    scene.watch(test)


def test_groups_are_the_failure_groups_of_the_store_with_what_people_wrote(scene: Scene) -> None:
    scene.app.dlq.own(GONE, "mail-team", actor="ann")

    async def test(w: Watched) -> None:
        await w.press("g")
        await w.sees("4 dead messages in 2 failure groups", "no such record", "mailbox gone", "owner mail-team")
        shown = [(row["fingerprint"], row["task"], row["count"]) for row in w.screen.page().rows]
        assert shown == [(g.fingerprint, g.task, g.count) for g in scene.app.dlq.groups()]
        drawn = {row["fingerprint"]: row["drawn"] for row in w.screen.page().rows}
        one = re.compile("·{10}(·█|█·)")  # of five minutes each: the last one may have begun after the deaths
        assert drawn and all(one.fullmatch(line) for line in drawn.values()), drawn
        assert "deaths 1h" in w.text

    scene.watch(test, size=(200, 40))


def test_a_dead_message_is_shown_as_job_show_does(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("m")
        await w.sees(scene.dead[0][:23])
        await w.press("enter")
        await w.sees("ValueError: no such record", "life", "enqueued", "traceback", scene.dead[0])
        assert "next: redrive dlq retry" in w.text

    scene.watch(test)


def test_messages_turn_from_lane_to_lane(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("5")
        await w.sees("[dead 4]", "quarantine 1", scene.dead[0][:23])
        await w.press("l")
        await w.sees("[quarantine 1]", scene.poison[:23])
        await w.press("l")
        await w.sees("[ready 2]", scene.waiting[0][:23], "scheduled")

    scene.watch(test)


def test_runs_are_listed_and_one_shows_its_story(scene: Scene) -> None:
    id = scene.planned()

    async def test(w: Watched) -> None:
        await w.press("r")
        await w.sees(id[:23], "running", "queue:crm")
        await w.press("enter")
        await w.sees("story", "started by ann@ops: crm is back", "planned 3", "no worker now")

    scene.watch(test, size=(160, 40))


def test_workers_are_those_that_tell_and_one_shows_what_it_holds(scene: Scene) -> None:
    scene.works()

    async def test(w: Watched) -> None:
        await w.press("w")
        await w.sees("vm/worker-0", "running", "12.5")
        await w.press("enter")
        await w.sees("7 on vm", "crm: holds 1 of 20", scene.waiting[0])

    scene.watch(test)


def test_flow_shows_breakers_and_their_transitions(scene: Scene) -> None:
    scene.app.flow.open("stripe", reason="their maintenance", actor="ann")

    async def test(w: Watched) -> None:
        await w.press("f")
        await w.sees("stripe", "FORCED OPEN")
        await w.press("enter")
        await w.sees("transitions", "by ann: their maintenance")

    scene.watch(test)


def test_escape_goes_back_and_tab_to_the_next_screen(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("g")
        await w.sees("no such record")
        await w.press("enter")
        await w.sees("fingerprint")
        await w.press("escape")
        await w.sees("[3 groups]")
        await w.press("tab")
        await w.sees("[4 runs]")
        await w.press("shift+tab", "shift+tab")
        await w.sees("[2 queues]")

    scene.watch(test)


def test_help_names_the_keys_of_the_screen_it_was_asked_on(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("f", "?")
        await w.sees(
            "on flow",
            "hold open for 15m, after a reason",
            "release, after a reason",
            "for how long",
            "pause refreshing",
        )

    scene.watch(test)
