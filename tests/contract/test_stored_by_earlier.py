"""What a store holds that an earlier version wrote, this one reads as it was and works on.

The files were made by the commit that their folder is named for (scripts/stored_fixtures).
"""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import redis
from tests.support.servers import PostgresServer
from tests.support.stored import (
    Stored,
    as_known,
    closed_app,
    lasting,
    load_postgres,
    load_redis,
    load_sqlite,
    messages,
    read,
)

from redrive import App
from redrive.message import Draft, Handle, Lane
from redrive.stores import open_store
from redrive.stores.upkeep import upgrade


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stored]:
    name = f"stored_{secrets.token_hex(4)}"
    match request.param:
        case "sqlite":
            store = load_sqlite(tmp_path / "work.db")
        case "postgres":
            server = request.getfixturevalue("postgres_server")
            store = load_postgres(server, name)
        case _:
            server = request.getfixturevalue("redis_server")
            store = load_redis(server, name)
    opened = Stored(request.param, store)
    with closing(opened.store):
        yield opened
        assert opened.store.check() == []
    match request.param:
        case "postgres":
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute(f"drop schema {name} cascade".encode())
        case "redis":
            with redis.Redis.from_url(server.url) as client:
                client.delete(*client.scan_iter(f"*{name}*"))


def test_everything_is_read_as_it_was(stored: Stored) -> None:
    now, then = lasting(read(stored.app, stored.names["plan"])), lasting(stored.known)
    assert isinstance(now, dict) and isinstance(then, dict)
    assert now.keys() == then.keys()
    for what, value in then.items():
        assert as_known(now[what], value) == value, what


@pytest.mark.turns(3)
def test_a_worker_does_what_is_due_and_what_the_one_that_is_gone_had(stored: Stored) -> None:
    app, clock, ran = stored.app, stored.clock, stored.ran

    def work(*names: str, queues: tuple[str, ...] = ("work",)) -> list[int]:
        del ran["work"][:]
        expected = sorted(n for name in names for n in stored.numbers(name))
        stored.work_until(lambda: len(ran["work"]) >= len(expected), *queues, concurrency=1)
        assert sorted(ran["work"]) == expected
        return ran["work"]

    assert work("ready") == [25, 24, 23], "by priority; what is leased stays so, for now"
    clock.advance(31)
    work("leased", "turns", queues=("work", "turns"))
    assert stored.found["progress of work 19"] == {"page": 3}
    clock.advance(3_600)
    work("scheduled", "holds_key", "retrying", "deferred", "suspect", "once_more")
    stopped = stored.message("stopping")
    assert stopped is not None and stopped.state_at(clock()) == "cancelled"

    def newer() -> str | None:
        message = stored.message("newer")
        return message and message.state_at(clock())

    stored.work_until(lambda: newer() == "scheduled", "work")  # for a worker that knows its version
    for name in ("done", "degraded", "cancelled", "dead", "quarantined"):
        was, now = stored.known["messages"][stored.names[name][0]], stored.message(name)
        assert now is not None and (now.lane, now.reason) == (was["lane"], was["reason"]), name
    assert app.store.counts("work").leased == 0


@pytest.mark.turns(3)
def test_groups_go_on_in_their_order(stored: Stored) -> None:
    ran = stored.ran
    stored.work_until(lambda: len(ran["step b"]) == 3, "steps")
    assert ran["step b"] == [1, 2, 3]
    assert ran["step a"] == ran["step c"] == [], "one waits for its lease, one for its dead message"
    stored.clock.advance(31)
    stored.work("steps")
    assert (ran["step a"], ran["step c"]) == ([1, 2, 3, 4], [])
    stored.app.store.configure_group("steps", "c", resume=True)
    stored.work("steps")
    assert ran["step c"] == [2, 3]
    (wide,) = [group for group in stored.app.store.groups("turns") if group.name == "wide"]
    assert wide.width == 3


@pytest.mark.turns(3)
def test_unique_keys_still_refuse(stored: Stored) -> None:
    store, names = stored.store, stored.names

    def put(key: str) -> tuple[bool, bool]:
        (found,) = store.put([Draft(task="work", queue="work", key=key)])
        return found.duplicate, found.id in [*names["holds_key"], *names["held_key"]]

    assert put("seventeen") == put("eighteen") == (True, True)
    stored.clock.advance(25 * 3600)
    assert put("seventeen") == (True, True)
    assert put("eighteen") == (False, False), "it was held for a day, and its message is done"


@pytest.mark.turns(3)
def test_what_a_key_of_idempotency_gave_is_given_again(stored: Stored) -> None:
    app, ran = stored.app, stored.ran
    charge = app.tasks["charge"]
    again = charge.enqueue(1, 500)
    stored.work("charges")
    done = app.job(again.id)
    assert done is not None and done.result == b'{"receipt":1001}', "what the version before returned"
    assert charge(1, 500) == {"receipt": 1001}
    assert 1 not in ran["charge"]


@pytest.mark.turns(3)
def test_what_a_killed_worker_had_is_done_once_and_from_its_checkpoint(stored: Stored) -> None:
    app, ran, names = stored.app, stored.ran, stored.names
    # The clock stands still, so no lease runs out: what the killed worker noted beside the store is read.
    stored.work_until(lambda: bool(ran["charge"] and ran["load"]), "charges")
    beside = app.tasks["charge"].enqueue(2, 700)
    stored.work("charges")
    assert ran["charge"] == [2] and ran["load"] == [1]
    assert stored.found["progress of load 1"] == {"rows": 7}
    results = [app.job(id) for id in (names["killing"], beside.id)]
    assert [message and message.result for message in results] == [b'{"receipt":2002}'] * 2
    assert app.store.counts("charges").leased == 0


@pytest.mark.turns(3)
def test_a_run_half_done_goes_on_to_its_end(stored: Stored) -> None:
    app, run = stored.app, stored.app.dlq.run(stored.names["run_half"])
    known = stored.known["messages"]
    judged = {message["id"] for message in known.values() if message["run"] == run.id and message["lane"] == "dead"}
    done_ids = set(stored.names["redriven"]) - known.keys()
    assert (len(done_ids), len(judged)) == (7, 3), "some of them are not counted yet"
    stored.clock.advance(31)  # the leases of its messages, and of who carried it
    stored.clock.go()
    stored.work_until(lambda: run.view().closed, "redriven")
    assert run.state == "done"
    expected = {"planned": 40, "moved": 40, "done": 37, "failed": 3, "skipped": 0, "changed": 0, "waiting": 0}
    assert run.counts == expected
    assert {failure.id for failure in run.failures()} == judged
    assert len(stored.ran["again"]) == len(set(stored.ran["again"])) == 30, "each that was not judged ran once"
    left = [message.id for message in messages(app.store, "redriven")]
    assert {*left} == judged
    story = [line.text for line in run.story()]
    assert story[: len(stored.known["stories"][run.id])] == [line[1] for line in stored.known["stories"][run.id]]


@pytest.mark.turns(3)
def test_a_plan_is_applied_and_runs_are_steered(stored: Stored) -> None:
    app, names = stored.app, stored.names
    plan = app.dlq.plan(names["plan"])
    assert plan.plan.settings.canary == 1 and [*plan.ids()] == names["planned"]
    planned = plan.start(reason="it is mended")
    paused, asked = app.dlq.run(names["run_paused"]), app.dlq.run(names["run_asked"])
    runs = [planned, paused, asked]
    stored.clock.go()
    stored.work_until(lambda: planned.view().closed, "planned", "stopped", "asked")
    assert [run.state for run in runs] == ["done", "paused", "running"]
    assert [run.counts["moved"] for run in runs] == [5, 0, 0]
    paused.resume()
    asked.approve(actor="ann")
    stored.work_until(lambda: all(run.view().closed for run in runs), "planned", "stopped", "asked")
    assert [run.counts["done"] for run in runs] == [5, 4, 2]
    assert len(stored.ran["again"]) == 11


@pytest.mark.turns(3)
def test_a_run_held_by_its_canary_goes_on_once_that_is_done(stored: Stored) -> None:
    run = stored.app.dlq.run(stored.names["run_canary"])
    assert (run.counts["moved"], run.counts["done"], run.counts["waiting"]) == (2, 1, 1)
    stored.clock.advance(31)
    stored.clock.go()
    stored.work_until(lambda: run.view().closed, "canary")
    assert (run.state, run.counts["moved"], run.counts["done"]) == ("done", 6, 6)
    assert len(stored.ran["again"]) == len({*stored.ran["again"]}) == 5


@pytest.mark.turns(3)
def test_what_is_encrypted_is_read_with_its_key(stored: Stored) -> None:
    ran: list[int] = []
    closed_app(stored.store, ran).run_worker(["closed"], burst=True)
    assert ran == [5]


@pytest.mark.turns(3)
def test_what_waits_for_a_later_release_is_run_by_it(stored: Stored) -> None:
    stored.work("later")
    assert stored.ran["work"] == []
    later, ran = App(store=stored.store), list[int]()

    @later.task(name="work", queue="later", version=7)
    def work(n: int) -> None:
        ran.append(n)

    stored.clock.advance(31)
    later.run_worker(["later"], burst=True)
    assert ran == [27]


@pytest.mark.turns(3)
def test_a_killed_worker_is_listed_with_what_is_left_of_it(stored: Stored) -> None:
    (killed,) = [info for info in stored.app.workers() if "charges" in info.name]
    assert killed.drain_asked and {each.id for each in killed.messages} == {
        stored.names["killing"],
        stored.names["loading"],
    }
    stored.clock.advance(31)
    stored.work("charges")
    (gone,) = [info for info in stored.app.workers() if "charges" in info.name]
    assert gone.gone and gone.messages == ()


@pytest.mark.turns(3)
def test_the_history_goes_on_from_its_counts(stored: Stored) -> None:
    before = stored.app.history(task="kills").total
    stored.app.tasks["kills"].enqueue(2)
    stored.work("kills")
    assert stored.app.flusher is not None
    stored.app.flusher.flush()
    after = stored.app.history(task="kills").total
    assert (after.enqueued, after.done, after.crashes) == (before.enqueued + 1, before.done + 1, before.crashes)
    assert sum(before.crashes.values()) == 1


@pytest.mark.turns(3)
def test_dead_messages_are_driven_back_by_hand(stored: Stored) -> None:
    app, names = stored.app, stored.names
    held = app.dlq.retry(select="queue:work", reason="it is mended")
    assert (sorted(held.ids), held.held) == (sorted(names["permanent"]), len(names["dead"]))
    app.dlq.rule("fa" * 8, None, reason="the router is back")
    assert sorted(app.dlq.retry(select="queue:work", reason="so are these").ids) == sorted(names["dead"])
    app.dlq.readmit(names["quarantined"], reason="a new version")
    app.dlq.retry(names["quarantined"], reason="a new version")
    app.dlq.discard(names["blocked"][:1], reason="not needed")
    numbers = [n for name in ("ready", "permanent", "dead", "quarantined") for n in stored.numbers(name)]
    stored.work_until(lambda: len(stored.ran["work"]) >= len(numbers), "work")
    assert sorted(stored.ran["work"]) == sorted(numbers)
    assert app.job(names["blocked"][0]) is None


@pytest.mark.turns(3)
def test_no_tick_is_enqueued_twice(stored: Stored) -> None:
    app, schedulers = stored.app, [stored.app.scheduler() for _ in range(2)]

    def ticks(name: str) -> list[str]:
        waiting = [m.headers for m in messages(app.store, "ticks") if m.headers["redrive-schedule"] == name]
        return sorted(headers["redrive-tick"] for headers in waiting)

    def step() -> None:
        for scheduler in schedulers:
            scheduler.step()

    before = ticks("pulse")
    assert before
    step()
    after = ticks("pulse")
    assert after[: len(before)] == before and len({*after}) == len(after) <= len(before) + 1, "the latest since then"
    step()
    assert ticks("pulse") == after
    stored.clock.advance(60)
    step()
    latest = ticks("pulse")
    assert latest[: len(after)] == after and len({*latest}) == len(latest) == len(after) + 1
    assert ticks("quiet") == ticks("nightly") == []
    app.schedules["quiet"].resume()
    step()
    assert len(ticks("quiet")) == 1
    stored.clock.advance(24 * 3600)
    step()
    assert len(ticks("nightly")) == 1


@pytest.mark.turns(3)
def test_flow_control_goes_on_as_it_stood(stored: Stored) -> None:
    app, ran, clock = stored.app, stored.ran, stored.clock
    queues = "api", "mail", "maps", "sms"
    app.tasks["call"].enqueue(7)
    stored.work(*queues)
    held = {"mail", "look-up", "call", "sms"}  # by a breaker that opened, one held open, a cool-down, a budget
    assert not {*ran} & held
    clock.advance(61)
    clock.go()
    stored.work_until(lambda: len(ran["mail"]) == 8, *queues)
    assert app.flow.show("mail").breaker == "closed"
    assert sorted(ran["mail"]) == stored.numbers("mail") and not {*ran} & {"look-up", "call", "sms"}
    app.flow.auto("maps", reason="it is over")
    app.flow.end_cooldown("api", reason="it is over")
    stored.work_until(lambda: bool(ran["look-up"] and ran["call"]), *queues)
    assert (ran["look-up"], ran["call"], ran["sms"]) == ([1], [7], [])
    clock.advance(25 * 3600)
    stored.work_until(lambda: bool(ran["sms"] and len(ran["call"]) == 2), *queues)
    assert (ran["sms"], ran["call"]) == ([1], [7, 3])  # 3 got the Retry-After


@pytest.mark.turns(3)
def test_auto_redrive_goes_on_where_it_was(stored: Stored) -> None:
    (machine,) = stored.app.dlq.auto()
    assert (machine.phase, machine.redriven) == ("asleep", 0)
    stored.clock.advance(60)
    stored.work("auto")
    assert stored.ran["fails"] == [], "ten minutes after their deaths, or eight, by their own draw"
    stored.clock.advance(12 * 60)
    stored.clock.go()
    stored.work_until(lambda: stored.app.dlq.auto()[0].done == 3, "auto")
    assert sorted(stored.ran["fails"]) == [0, 1, 2] and stored.app.store.counts("auto").dead == 0
    (machine,) = stored.app.dlq.auto()
    assert (machine.redriven, machine.failed) == (3, 0)


@pytest.mark.turns(3)
def test_a_pause_holds_and_the_audit_log_goes_on(stored: Stored) -> None:
    app = stored.app
    before = [*app.audit]
    stored.work("paused")
    assert stored.ran["work"] == []
    app.store.configure("paused", paused=False)
    stored.work("paused")
    assert stored.ran["work"] == stored.numbers("paused")
    app.dlq.note("fa" * 8, "a new router")
    about = app.dlq.annotations(["fa" * 8])["fa" * 8]
    assert (about.note, about.owner) == ("a new router", "ops")
    first, *others = app.audit
    assert (first.action, others) == ("note", before)
    assert app.audit.verify(stored.known["audit_head"]).problems == ()


@pytest.mark.turns(3)
def test_dead_messages_are_listed_and_have_the_handles_they_had(stored: Stored) -> None:
    dead = stored.known["messages"][stored.names["permanent"][0]]
    found = stored.message("permanent")
    assert found is not None and found.handle == Handle(dead["id"], dead["redrives"], Lane.DEAD)
    listed = stored.app.dlq.list(limit=500).messages
    known = stored.known["messages"].values()
    assert {message.id for message in listed} == {each["id"] for each in known if each["lane"] == "dead"}


@pytest.mark.turns(3)
def test_undo_returns_what_the_version_before_moved_to_where_it_lay(stored: Stored) -> None:
    app, run, known = stored.app, stored.app.dlq.run(stored.names["run_half"]), stored.known["messages"]
    moved = [each["id"] for each in known.values() if each["run"] == run.id and each["lane"] == "ready"]
    assert moved
    stored.clock.advance(31)  # the lease of who carried it, and those of two messages
    stored.clock.go()
    leased = [each["id"] for each in known.values() if each["run"] == run.id and each["lane"] == "leased"]
    run.undo(reason="too early")
    stored.work_until(lambda: run.view().closed, "redriven")
    assert (run.state, run.view().returned) == ("cancelled", len(moved))
    for message in app.store.find(moved):
        assert message is not None and (message.lane, message.redrives) == (Lane.DEAD, 0)
        assert message.reason == "permanent" and len(message.faults) == 1
    assert len(stored.ran["again"]) == len(leased) == 2, "what had begun runs on"


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_the_schema_is_upgraded_by_the_command_too(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if engine == "sqlite":
        load_sqlite(tmp_path / "work.db")
        url = f"sqlite:///{tmp_path / 'work.db'}"
    else:
        server, schema = request.getfixturevalue("postgres_server"), f"stored_{secrets.token_hex(4)}"
        load_postgres(server, schema)
        url = f"{server.url}?schema={schema}"
    before, after = upgrade(url)
    assert 0 < before <= after == upgrade(url).before
    with closing(open_store(url)) as store:
        assert store.check() == [] and store.counts("planned").dead == 5


def test_a_new_file_has_the_columns_and_indexes_of_one_that_an_earlier_version_made(tmp_path: Path) -> None:
    load_sqlite(tmp_path / "earlier.db")
    for name in ("earlier.db", "new.db"):
        open_store(f"sqlite:///{tmp_path / name}").close()

    def shape(name: str) -> list[object]:
        with closing(sqlite3.connect(tmp_path / name)) as c:
            columns = "select m.name, c.* from sqlite_master m join pragma_table_info(m.name) c where m.type = 'table'"
            rest = "select name, sql from sqlite_master where type in ('index', 'trigger')"
            return [c.execute(f"{sql} order by 1, 2").fetchall() for sql in (columns, rest)]

    assert shape("new.db") == shape("earlier.db")


def test_a_new_schema_has_the_columns_and_indexes_of_one_that_an_earlier_version_made(
    postgres_server: PostgresServer,
) -> None:
    names = [f"stored_{secrets.token_hex(4)}" for _ in range(2)]
    load_postgres(postgres_server, names[0])
    for name in names:
        open_store(f"{postgres_server.url}?schema={name}").close()
    columns = "select table_name, column_name, ordinal_position, data_type, is_nullable, column_default"
    asked = [
        f"{columns} from information_schema.columns where table_schema = %s order by 1, 3",
        "select indexname, indexdef from pg_indexes where schemaname = %s order by 1",
        "select relname, reloptions from pg_class where relnamespace = %s::regnamespace order by 1",
    ]
    with psycopg.connect(postgres_server.url, autocommit=True) as c:
        shapes = [
            [str(c.execute(sql.encode(), [name]).fetchall()).replace(name, "") for sql in asked] for name in names
        ]
        for name in names:
            c.execute(f"drop schema {name} cascade".encode())
    earlier, new = ([re.sub("[()]", "", text) for text in shape] for shape in shapes)  # what was dumped has fewer
    assert new == earlier
