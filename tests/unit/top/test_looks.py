"""The look of screens: colours beside words, ends of names, order, columns, figures by the minute, tracebacks."""

from __future__ import annotations

import pytest
from tests.support.top import NO, Scene, Watched

from redrive.fault import Fault, Kind
from redrive.message import DeadLetter, Draft
from redrive.presence import Hung, QueueWork, WorkerInfo
from redrive.presence.directory import ProcessCell
from redrive.present.table import Column, table
from redrive.status import read_status
from redrive.top.layout import laid_out
from redrive.top.lines import Lines, Rows
from redrive.top.screen import Screen, ScreenPage
from redrive.top.tones import Tone

TRACEBACK = "\n".join(
    [
        "Traceback (most recent call last):",
        '  File "/srv/acme/mail.py", line 7, in send',
        *(f'  File "/usr/lib/python3.11/site-packages/pool.py", line {n}, in call' for n in range(30)),
        "KeyError: 'route'",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "/srv/acme/tasks.py", line 9, in push',
        "ValueError: no such record",
    ]
)


def hang(scene: Scene, name: str) -> None:
    now_ms = scene.store.now_ms()
    hung = Hung(since_ms=now_ms - 60_000, queues=("mail",), timeouts=True, task="mail.send", place="acme/mail.py:12")
    told = WorkerInfo(
        name=name, host="vm", pid=9, version="9.9", started_ms=now_ms, seen_ms=now_ms, held=1, running=1,
        queues=(QueueWork(name="mail", concurrency=1, held=1),), hung=hung,
    )  # fmt: skip
    ProcessCell(scene.store).write(told)


def toned(lines: Lines) -> dict[str, str]:
    """The parts of the painted lines that have a tone, with it."""
    return {text[s:e]: tone for text, _, spans in lines._painted for s, e, tone in spans}


def test_a_long_name_is_cut_in_front_and_a_text_at_its_end() -> None:
    rows = [{"task": "acme.billing.invoices.send_reminder", "text": "the customer has no address"}]
    made = table(rows, [Column("task", shrinks=True), Column("text", shrinks=True)], 36)
    name, text = made.lines[1].split("  ")
    assert name.startswith("…") and name.endswith("_reminder")
    assert text.startswith("the custom") and text.endswith("…")


def test_a_hung_worker_is_first_in_red_and_said_above_all_others(scene: Scene) -> None:
    scene.works("vm/a-worker")
    hang(scene, "vm/z-worker")

    async def test(w: Watched) -> None:
        await w.press("w")
        await w.sees("HUNG 1: vm/z-worker", "vm/a-worker")
        assert w.part("head").startswith("HUNG 1: vm/z-worker")
        assert "z-worker" in w.part("rows").splitlines()[0]
        await w.press("down")
        rows, head = w.window.query_one("#rows", Lines), w.window.query_one("#head", Lines)
        assert toned(rows)["HUNG"] is Tone.ACT and toned(head)["HUNG 1: vm/z-worker"] is Tone.ACT
        await w.press("up", "enter")
        await w.sees("HUNG for 1m", "mail.send blocks the places of queue mail", "at acme/mail.py:12")

    scene.watch(test)


def test_what_needs_a_person_is_that_of_redrive_status_in_its_order_and_in_colour(scene: Scene) -> None:
    hang(scene, "vm/z-worker")
    scene.planned()

    async def test(w: Watched) -> None:
        await w.sees("things need a person")
        rows = [row for row in w.screen.page().rows if row["area"] == "NEEDS YOU"]
        needs = read_status(scene.store, scene.app).needs
        assert [(row["about"], row["severity"]) for row in rows] == [(need.about, need.severity) for need in needs]
        assert w.part("head").startswith(f"{len(needs)} things need a person")
        await w.press("end")
        seen = toned(w.window.query_one("#rows", Lines))
        assert seen["NEEDS YOU"] in (Tone.ACT, Tone.WAIT)

    scene.watch(test)


def test_the_cursor_is_in_reverse_alone(scene: Scene) -> None:
    hang(scene, "vm/z-worker")

    async def test(w: Watched) -> None:
        await w.press("w")
        await w.sees("HUNG 1")
        assert toned(w.window.query_one("#rows", Rows)) == {}

    scene.watch(test)


def test_s_sorts_by_the_next_column_and_i_inverts(scene: Scene) -> None:
    scene.store.put([Draft(task="t", queue=name) for name in ("aaa", "zzz", "zzz")])

    async def test(w: Watched) -> None:
        def names() -> list[str]:
            return [line[2:].split()[0] for line in w.part("rows").splitlines()]

        await w.press("2")
        await w.sees("zzz", "crm")
        assert names() == ["aaa", "crm", "mail", "zzz"]
        await w.press("s", "s")
        assert "ready▼" in w.part("heading") and names()[:2] == ["zzz", "aaa"]
        await w.press("i")
        assert "ready▲" in w.part("heading") and names()[-2:] == ["aaa", "zzz"]
        while "▼" in w.part("heading") or "▲" in w.part("heading"):
            await w.press("s")
        assert names() == ["aaa", "crm", "mail", "zzz"]

    scene.watch(test)


@pytest.mark.parametrize("inverted", [False, True])
def test_rows_without_a_value_are_last_in_either_order(inverted: bool) -> None:
    screen = Screen()
    screen.columns, screen.sorted_by, screen.is_inverted = [Column("id"), Column("n")], "n", inverted
    rows = [{"id": "none", "n": None}, {"id": "one", "n": 1}, {"id": "ten", "n": 10}]
    shown = [str(row["id"]) for row in laid_out(screen, ScreenPage(rows), 80).rows]
    assert shown == (["one", "ten", "none"] if inverted else ["ten", "one", "none"])


def test_right_makes_room_for_later_columns_and_left_goes_back(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("2")
        await w.sees("crm", "columns hidden")
        await w.until(lambda: w.screen.studied is not None)
        await w.press(*["right"] * 4)
        assert "done 10m" in w.part("heading") and "ready" not in w.part("heading") and "queue" in w.part("heading")
        await w.press(*["left"] * 4)
        assert "done 10m" not in w.part("heading") and "ready" in w.part("heading")

    scene.watch(test, size=(80, 24))


def test_the_last_minutes_are_drawn_where_the_store_keeps_a_history(scene: Scene) -> None:
    scene.app.tasks["mail.send"].enqueue(1)
    assert scene.app.flusher is not None
    scene.app.flusher.finish()

    async def test(w: Watched) -> None:
        await w.sees("last 20m: in")
        drawn = next(line for line in w.part("head").splitlines() if line.startswith("last 20m"))
        assert drawn.partition("  done ")[0].endswith("█")
        await w.press("2")
        await w.sees("done 10m", "·" * 10)

    scene.watch(test, size=(140, 40))


def test_t_opens_the_whole_traceback_of_a_group_and_of_a_message(scene: Scene) -> None:
    fault = Fault(Kind.PERMANENT, "ValueError", "no such record", NO, attempt=1, traceback=TRACEBACK)
    id = scene.settled(Draft(task="crm.push", queue="crm"), DeadLetter("permanent"), fault)

    async def test(w: Watched) -> None:
        await w.press("g")
        await w.sees("no such record")
        await w.press("enter")
        await w.sees(f"fingerprint {NO}", id[:23])
        await w.press("t")
        await w.sees(f"traceback of {id}", "KeyError: 'route'", "direct cause", "ValueError: no such record")
        frames = toned(w.window.query_one("#rows", Lines))
        assert set(frames.values()) == {Tone.QUIET} and not any("acme" in text for text in frames)
        await w.press("R")
        assert not w.question
        await w.press("t")
        await w.sees(id[:23])
        while id[:23] not in w.cursor:
            await w.press("down")
        await w.press("enter")
        await w.sees("life", "traceback")
        assert 'pool.py", line 0' not in w.text
        await w.press("t")
        await w.sees("KeyError: 'route'", 'pool.py", line 0')

    scene.watch(test, size=(120, 70))


def test_a_plan_has_the_defaults_of_the_command_and_b_drops_them_and_takes_them_back(scene: Scene) -> None:
    for _ in range(9):
        scene.bury("crm.push", "crm", NO, "no such record")
    usual = scene.app.dlq.select("queue:crm").plan().plan.settings

    async def test(w: Watched) -> None:
        def settings() -> object:
            return w.screen.studied.plan.settings if w.screen.studied is not None else None

        await w.press("g")
        await w.sees("no such record")
        await w.press("p")
        await w.sees("12 messages", "5 first", "doubled every 10 s", "failed>20%")
        assert settings() == usual
        await w.press("b")
        await w.sees("never by itself", "b:safe")
        assert (brave := w.screen.studied.plan.settings) and not (brave.canary or brave.slow_start or brave.stop_if)
        await w.press("b")
        await w.sees("5 first", "b:brave")
        assert settings() == usual

    scene.watch(test)
