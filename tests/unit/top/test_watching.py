"""The screen follows the store: the cursor keeps its row, filters narrow, an error is a line, no text acts on it."""

from __future__ import annotations

from pathlib import Path

from tests.support.servers import RedisServer, memory_disk
from tests.support.top import NO, Scene, Watched, watch

from redrive import App
from redrive.message import Draft
from redrive.top import Model

TOKEN = "ghp_0aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uV1wX"


def test_cursor_stays_on_its_row_when_others_come(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("2")
        await w.sees("mail")
        await w.press("down")
        assert w.cursor.startswith("› mail")
        scene.store.put([Draft(task="t", queue=name) for name in ("aaa", "bbb", "zzz")])
        await w.press("ctrl+l")
        await w.sees("zzz")
        assert w.cursor.startswith("› mail") and w.part("rows").splitlines()[0].strip().startswith("aaa")

    scene.watch(test)


def test_cursor_is_seen_on_a_list_that_is_longer_than_the_screen(scene: Scene) -> None:
    scene.store.put([Draft(task="t", queue=f"q{n:03}") for n in range(100)])

    async def test(w: Watched) -> None:
        await w.press("2")
        await w.sees("q000")
        await w.press("end")
        assert w.cursor.startswith("› q099") and "102/102" in w.part("note")
        await w.press("home")
        assert w.cursor.startswith("› crm")
        await w.press("pagedown", "j", "k", "up", "down")
        assert w.cursor.startswith("› q0")

    scene.watch(test, size=(80, 24))


def test_rows_that_did_not_change_are_not_painted_again(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("2")
        await w.sees("crm", "mail")
        rows = w.top.query_one("#rows")
        await w.until(lambda: w.screen.studied is not None)
        await w.pilot.pause()
        painted: list[object] = []
        refresh = rows.refresh
        rows.refresh = lambda *regions, **options: (painted.extend(regions), refresh(*regions, **options))[1]  # type: ignore[method-assign]
        w.top._paint()
        assert painted == []
        scene.store.put([Draft(task="mail.send", queue="mail")])
        seen = w.screen.reading
        await w.press("ctrl+l")
        await w.until(lambda: w.screen.reading is not seen and w.screen.reading.counts["mail"].ready == 1)
        assert {region.y for region in painted} == {1}  # type: ignore[attr-defined]

    scene.watch(test)


def test_filter_keeps_the_rows_with_that_text_until_it_is_dropped(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("3")
        await w.sees("no such record", "mailbox gone")
        await w.press("/", *"MAILBOX")
        await w.sees("1 of 2 match")
        assert "no such record" not in w.part("rows")
        await w.press("enter")
        await w.sees("filter: MAILBOX")
        assert "mailbox gone" in w.cursor
        await w.press("escape")
        await w.sees("no such record", "mailbox gone")

    scene.watch(test)


def test_escape_while_typing_drops_the_filter(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("3")
        await w.sees("no such record", "mailbox gone")
        await w.press("/", *"mailbox")
        await w.until(lambda: "no such record" not in w.part("rows"))
        await w.press("escape")
        await w.sees("no such record", "mailbox gone")
        await w.press("2")  # a key again, and no text
        await w.sees("[2 queues]")

    scene.watch(test)


def test_filter_of_messages_is_a_selector_and_p_plans_what_it_names(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("5")
        await w.sees(scene.dead[0][:23])
        await w.press("/")
        await w.type("queue:mail")
        await w.sees(scene.dead[3][:23])
        await w.until(lambda: scene.dead[0][:23] not in w.text)
        await w.press("p")
        await w.sees("1 message in", "queue:mail", "mail.send 1")

    scene.watch(test)


def test_selector_that_cannot_be_read_is_a_line_and_changes_nothing(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("5")
        await w.sees(scene.dead[0][:23])
        await w.press("/")
        await w.type("quue:mail")
        await w.sees("not a filter", scene.dead[0][:23])
        assert w.screen.filter == ""

    scene.watch(test)


def test_space_stops_reading_and_goes_on(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("2")
        await w.sees("mail")
        await w.press("space")
        await w.sees("PAUSED")
        await w.until(lambda: w.screen.studied is not None)
        await w.pilot.pause()
        seen = w.screen.reading
        scene.store.put([Draft(task="t", queue="new")])
        assert w.screen.reading is seen and "new" not in w.part("rows")
        await w.press("space")
        await w.sees("new")
        assert "PAUSED" not in w.part("title")

    scene.watch(test)


def test_texts_cannot_act_on_the_terminal_and_secrets_are_hidden(scene: Scene) -> None:
    evil = f"\x1b[2J\u202egpj.exe\nsecond line {TOKEN} [red]markup[/]"
    id = scene.bury("crm.push\x1b[1m", "crm", "ef" * 8, evil, headers={"x": evil})
    scene.app.dlq.note("ef" * 8, f"\x07note {TOKEN}")
    scene.store.put([Draft(task="t", queue="q\x1b[31m\u202e")])

    async def test(w: Watched) -> None:
        shown = []
        for key in "1234567":
            await w.press(key)
            await w.until(lambda: w.screen.is_ready and (not w.screen.studies or w.screen.studied is not None))
            await w.pilot.pause()
            shown.append(w.text)
        await w.press("5")
        await w.sees(id[:23])
        await w.press("end", "enter")
        await w.sees("traceback")
        shown.append(w.text)
        whole = "\n".join(shown)
        assert "\\x1b[2J" in whole and "\\u202e" in whole and "[red]markup[/]" in whole
        assert TOKEN not in whole and not {"\x1b", "\u202e", "\x07"} & set(whole)

    scene.watch(test, size=(200, 60))


def test_every_screen_fits_80_columns(scene: Scene) -> None:
    scene.works()
    scene.planned()

    async def test(w: Watched) -> None:
        for key in "1234567":
            await w.press(key)
            await w.until(lambda: w.screen.is_ready and (not w.screen.studies or w.screen.studied is not None))
            await w.pilot.pause()
            assert max(map(len, w.part("rows").splitlines())) <= 80 and len(w.part("tabs")) <= 80
            assert w.part("rows").splitlines()[0].strip() and "?:help" in w.part("keys")

    scene.watch(test, size=(80, 24))


def test_store_alone_is_shown_without_an_app(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        for key, text in (("1", "dead 4"), ("2", "crm"), ("3", "mailbox gone"), ("5", "[dead 4]"), ("7", "flow")):
            await w.press(key)
            await w.sees(text)
        assert "error" not in w.part("note")

    watch(Model(scene.store, None, "sqlite:///work.db"), test)


def test_store_that_is_gone_is_a_line_and_is_read_again_once_it_is_back(tmp_path: Path) -> None:
    with RedisServer(appendonly=True, folder=memory_disk()) as server:
        app = App(server.url)
        app.store.put([Draft(task="t", queue="before")])

        async def test(w: Watched) -> None:
            await w.press("2")
            await w.sees("before")
            server.kill()
            await w.press("ctrl+l")
            await w.sees("error: the store cannot be reached")
            assert "before" in w.part("rows") and "Traceback" not in w.text
            server.start()
            await w.until(lambda: "error" not in w.part("note"))
            app.store.put([Draft(task="t", queue="after")])
            await w.sees("after")

        watch(Model(app.store, app, server.url), test)
        app.store.close()


def test_message_that_is_gone_says_so(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("5")
        await w.sees(scene.dead[0][:23])
        await w.press("enter")
        await w.sees("traceback")
        chosen = w.screen.subject(None)
        assert chosen is not None
        await w.answers("D")
        await w.sees(f"message {chosen['id']} is not stored any more")
        await w.press("D")
        await w.sees("nothing is chosen to discard")

    scene.watch(test)


def test_fingerprint_of_a_group_is_planned_from_its_list(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("3")
        await w.sees("no such record")
        await w.press("enter")
        await w.sees("fingerprint")
        await w.press("p")
        await w.sees(f"fingerprint:{NO}", "3 messages")

    scene.watch(test)
