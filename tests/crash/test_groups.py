"""Groups while their workers are killed: in order, never more at once than the width, and no group held up by another's
death."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.crash.children import KILLED, PATIENCE_S, ROOT, mostly_sqlite, until
from tests.support.crash.groups import History, Plan, make_app
from tests.support.crash.ledger import Journal, handled, read

from redrive.message import Counts, Discard, Draft, Group, GroupOrder, Handle, Lane, OnDead, Redrive

PROCESSES = 4  # of two workers each
FAILING = 10  # one message in so many fails once
HELD_MAX = 2 * (4 + 2)  # groups that the workers of one process can hold (see Plan): with more, it never holds all
WAITED_OUT = 3  # one victim in so many is started again only when all other groups have gone on without it


class Fleet:
    """Worker processes on one store; each can be killed and replaced. Leaves none behind."""

    def __init__(self, place: Path, seed: int, *, width: int, order: GroupOrder, on_dead: OnDead | None = None) -> None:
        self.place, self.rng = place, random.Random(seed)
        self.journal = Journal(handled(place))
        self.app = make_app(place, self.journal)
        self.store = store = self.app.store
        store.configure("default", group_width=width, group_order=order, on_dead=on_dead)
        self.wanted: dict[str, set[int]] = defaultdict(set)  # what was put so far
        self.kills = self.waited_out = 0
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Fleet:
        self._running = [self._started() for _ in range(PROCESSES)]
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._running:
            process.kill()
            process.wait()
        self.store.close()
        self.journal.close()

    def _started(self) -> subprocess.Popen[bytes]:
        plan = msgspec.json.encode(Plan(str(self.place))).decode()
        with (self.place / "stderr").open("ab") as stderr:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.support.crash.groups", plan],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )

    # -- what they work

    def put(self, messages: list[tuple[str, int]], run_ms: tuple[int, int], ends: dict[int, str] | None = None) -> None:
        """Enqueue these (group, n) in one commit. `ends`: how those of that number end, where not at random."""
        for group, n in messages:
            self.wanted[group].add(n)
        self.app.enqueue_many([self._draft(group, n, run_ms, ends) for group, n in messages])

    def _draft(self, group: str, n: int, run_ms: tuple[int, int], ends: dict[int, str] | None) -> Draft:
        at_random = "failed" if self.rng.randrange(FAILING) == 0 else "done"
        end = at_random if ends is None else ends.get(n, at_random)
        draft: Draft = self.app.tasks["step"].using(group=group).draft(str(n), self.rng.randint(*run_ms), end)
        return draft

    def history(self) -> History:
        return History(read(handled(self.place)))

    def groups(self) -> list[Group]:
        return self.store.groups("default")

    def still(self) -> bool:
        """Nothing runs or waits for its time: what is left is parked behind a dead one."""
        counts = self.store.counts()
        return counts.ready + counts.leased == 0 and all(g.blocked_by for g in self.groups())

    # -- their death

    def kill_one(self) -> None:
        """SIGKILL to one at random of those that run something, and another in its place."""
        busy = self.history().busy()
        victim = self.rng.choice([p for p in self._running if p.pid in busy] or self._running)
        who = self._running.index(victim)
        since = len(read(handled(self.place)))
        self.journal.write("kill", note=str(victim.pid))
        victim.kill()
        assert victim.wait(PATIENCE_S) == KILLED, f"it had ended by itself; stderr: {self._stderr()}"
        self.kills += 1
        if self.kills % WAITED_OUT == 0:
            self._others_go_on(victim.pid, since)
        self._running[who] = self._started()

    def _others_go_on(self, pid: int, since: int) -> None:
        """Wait until each group of which the dead process holds nothing has begun and done another message.

        Nobody takes the dead one's leases back meanwhile, but for a process that was just starting: its groups stand.
        """
        names = {r.note for r in read(handled(self.place)) if r.what == "up" and r.pid == pid}
        held = {m.group for m in self.store.peek(Lane.LEASED, limit=1000).messages if m.worker in names}
        others = {g for g, numbers in self.wanted.items() if g not in held}

        def gone_on() -> bool:
            history = self.history()
            going = history.finished_since(since)
            return all(g in going or set(history.successes[g]) == self.wanted[g] for g in others)

        until(f"groups other than {held} go on", gone_on)
        self.waited_out += len(others)

    def stop(self) -> None:
        """SIGTERM to all; one that was still starting dies of it."""
        for process in self._running:
            process.send_signal(signal.SIGTERM)
        codes = {process.pid: process.wait(PATIENCE_S) for process in self._running}
        up = {r.pid for r in read(handled(self.place)) if r.what == "up"}
        odd = {pid: code for pid, code in codes.items() if code not in ((0,) if pid in up else (0, -signal.SIGTERM))}
        assert odd == {}, f"exit codes {odd}; stderr: {self._stderr()}"

    def _stderr(self) -> str:
        return (self.place / "stderr").read_text()[-4000:]


# -- in order, and never more than the width


@pytest.mark.turns(3)
@pytest.mark.fault("groups in order and in their width while workers are killed")
@pytest.mark.slow
@pytest.mark.parametrize("order, width", [(GroupOrder.STRICT, 1), (GroupOrder.TURNS, 3)])
def test_groups_keep_their_order_and_width_while_workers_are_killed(
    order: GroupOrder, width: int, seed: int, place: Path, record_property: pytest.RecordProperty
) -> None:
    groups, kills = (20, 6) if width == 1 else (10, 4)
    if (place / "url").exists():
        groups, kills = HELD_MAX + 2 if width == 1 else groups // 2, kills // 2 + 1
    record_property("kills", kills)
    _kill_at_random(place, seed, order, width, groups=groups, messages=15, kills=kills, every_s=0.5)


@pytest.mark.fault("groups in order and in their width while workers are killed")
@pytest.mark.soak
@pytest.mark.parametrize("order, width", [(GroupOrder.STRICT, 1), (GroupOrder.TURNS, 3)])
def test_fifty_groups_keep_their_order_and_width_through_a_kill_each_second(
    order: GroupOrder, width: int, seed: int, place: Path, record_property: pytest.RecordProperty
) -> None:
    record_property("kills", 20)
    history = _kill_at_random(place, seed, order, width, groups=50, messages=40, kills=20, every_s=1.0)
    assert history.cut_off >= 20 and history.failures >= 100


def _kill_at_random(
    place: Path, seed: int, order: GroupOrder, width: int, *, groups: int, messages: int, kills: int, every_s: float
) -> History:
    print(f"seed {seed}: {groups} {order} groups × {messages} messages, width {width}, {kills} kills")
    interleaved = [(f"g{g:02}", n) for n in range(messages) for g in range(groups)]
    busy = min(groups * width, PROCESSES * 8)
    run_ms = int(1300 * kills * every_s / len(interleaved) * busy)  # on average: the work outlasts the kills
    spread_ms = run_ms // 2, run_ms * 3 // 2
    started_s = time.monotonic()
    with Fleet(place, seed, width=width, order=order) as fleet:
        first, rest = interleaved[: len(interleaved) // 2], interleaved[len(interleaved) // 2 :]
        fleet.put(first, spread_ms)
        until("all are up", lambda: len({r.pid for r in read(handled(place)) if r.what == "up"}) == PROCESSES)
        for number in range(kills):
            next_s = time.monotonic() + every_s
            fleet.put(rest[number * len(rest) // kills : (number + 1) * len(rest) // kills], spread_ms)
            fleet.kill_one()
            time.sleep(max(0.0, next_s - time.monotonic()))
        until("all is worked off", lambda: fleet.store.counts() == Counts())
        fleet.stop()
        history = fleet.history()
        most = max(history.most_at_once.values())
        print(
            f"{time.monotonic() - started_s:.1f} s: {history.kills} kills cut {history.cut_off} runs off, "
            f"{history.failures} failed, {sum(map(len, history.successes.values())) - len(interleaved)} ran twice to "
            f"their end; at most {most} of a group at once; {fleet.waited_out} times a group went on beside dead ones"
        )
        assert fleet.store.check() == [] and fleet.store.groups("default") == []
    assert {g: set(done) for g, done in history.successes.items()} == dict(fleet.wanted), "lost"
    assert history.unexplained == []
    assert most == width
    if order is GroupOrder.STRICT:
        assert [*history.out_of_order()] == []
        assert all(history.first_successes(g) == [*range(messages)] for g in fleet.wanted)
        assert fleet.waited_out > 0
    assert history.kills == kills and history.cut_off > 0
    return history


# -- past a dead one, or not

DYING, EACH, AFTER = 3, 8, ["redrive", "discard", "resume"]  # the number that dies, of so many; what is done about it


@pytest.mark.turns(3)
@pytest.mark.fault("a dead message holds its group, or is skipped, while workers are killed")
@pytest.mark.slow
def test_a_dead_head_holds_its_group_through_kills_until_it_is_redriven(seed: int, place: Path) -> None:
    with _dying(place, seed, OnDead.BLOCK) as fleet:
        blocked = {g.name: g for g in fleet.groups()}
        assert blocked.keys() == fleet.wanted.keys()
        assert {(g.taken, g.parked) for g in blocked.values()} == {(1, EACH - DYING - 1)}
        before = fleet.history()
        assert all(set(before.starts[g]) == {*range(DYING + 1)} for g in blocked), "one ran behind a dead one"
        dead = {m.group: m for m in fleet.store.peek(Lane.DEAD).messages}
        assert {g: m.id for g, m in dead.items()} == {g: blocked[g].blocked_by for g in blocked}
        for name, message in dead.items():
            handle = Handle(message.id, message.redrives, message.lane)
            what = _after(name or "")
            if what != "redrive":
                fleet.wanted[name or ""].discard(DYING)
            if what == "resume":
                fleet.store.configure_group("default", name, resume=True)
            else:
                assert fleet.store.triage([handle], Redrive() if what == "redrive" else Discard("not wanted")) == [True]
        history = _killed_to_the_end(fleet, kills=2)
        without = [n for n in range(EACH) if n != DYING]
        for group in fleet.wanted:
            assert history.first_successes(group) == ([*range(EACH)] if _after(group) == "redrive" else without)
        assert {m.group for m in fleet.store.peek(Lane.DEAD).messages} == {
            g for g in dead if _after(g or "") == "resume"
        }


@pytest.mark.turns(3)
@pytest.mark.fault("a dead message holds its group, or is skipped, while workers are killed")
@pytest.mark.slow
@mostly_sqlite()
def test_a_group_that_skips_its_dead_goes_on_and_takes_a_redriven_one_at_its_tail(seed: int, place: Path) -> None:
    with _dying(place, seed, OnDead.SKIP) as fleet:
        without = [n for n in range(EACH) if n != DYING]
        before = fleet.history()
        assert all(before.first_successes(g) == without for g in fleet.wanted)
        handles = [Handle(m.id, m.redrives, m.lane) for m in fleet.store.peek(Lane.DEAD).messages]
        fleet.put([(g, EACH) for g in fleet.wanted], (20, 40))
        assert fleet.store.triage(handles, Redrive()) == [True] * len(fleet.wanted)
        history = _killed_to_the_end(fleet, kills=2)
        assert all(history.first_successes(g) == [*without, EACH, DYING] for g in fleet.wanted)
        assert fleet.store.counts() == Counts()


def _after(group: str) -> str:
    return AFTER[int(group[1:]) % len(AFTER)]


@contextlib.contextmanager
def _dying(place: Path, seed: int, on_dead: OnDead) -> Iterator[Fleet]:
    """Strict groups of which one message each has died, amid kills, and everything else that can run has."""
    print(f"seed {seed}")
    with Fleet(place, seed, width=1, order=GroupOrder.STRICT, on_dead=on_dead) as fleet:
        fleet.put([(f"g{g}", n) for n in range(EACH) for g in range(9)], (60, 180), {DYING: "died"})
        for _ in range(2):
            time.sleep(fleet.rng.uniform(0.3, 0.6))
            fleet.kill_one()
        until("the deaths", lambda: fleet.store.counts().dead == len(fleet.wanted) and fleet.still())
        yield fleet


def _killed_to_the_end(fleet: Fleet, kills: int) -> History:
    for _ in range(kills):
        time.sleep(fleet.rng.uniform(0.05, 0.3))
        fleet.kill_one()
    until("all is worked off", lambda: fleet.still() and fleet.groups() == [])
    fleet.stop()
    history = fleet.history()
    assert fleet.store.check() == []
    assert set(history.most_at_once.values()) == {1} and history.unexplained == []
    print(f"{history.kills} kills cut {history.cut_off} runs off")
    return history
