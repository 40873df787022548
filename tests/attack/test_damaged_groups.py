"""A group of which one row cannot be read, be it the head or one that is parked: the others run, each in its turn."""

from __future__ import annotations

from contextlib import closing

import pytest
from tests.support.attack.damage import claim, host, settle, store
from tests.support.attack.hosts import Host, garbage

from redrive import App, Context
from redrive.message import Ack, Draft, Lane
from redrive.store import Store
from redrive.testing import ManualClock

__all__ = ["host", "store"]  # fixtures
SIZE = 4
FAR = 2**62


def shows(host: Host, field: str, spoiler: object) -> bool:
    """Whether it is damage that can be seen: another name is another queue's or group's message, a word for a lane is a
    newer version's, and a time far away, or a number that a server's column takes for a place, is one."""
    match field:
        case "queue" | "grp":
            return host.name == "sqlite" and isinstance(spoiler, bytes) and spoiler[:1] != b"t"
        case "lane":
            return spoiler != "garbage"
        case "due_ms" | "wake_ms":
            return spoiler != FAR
        case "priority" | "place":
            return host.name != "postgres"
    return True


def lines(store: Store, count: int) -> list[list[str]]:
    drafts = [Draft(task="work", group=f"g{n}") for n in range(count) for _ in range(SIZE)]
    ids = [put.id for put in store.put(drafts)]
    return [ids[n : n + SIZE] for n in range(0, len(ids), SIZE)]


def drain(store: Store) -> list[str]:
    order: list[str] = []
    while found := claim(store) or claim(store):  # the place that damage held is given on by the next exchange
        order += [d.message.id for d in found]
        settle(store, found, Ack(), None)
    return order


@pytest.mark.turns(3)
@pytest.mark.parametrize(("order", "claimed"), [("turns", False), ("strict", True)], ids=["waiting", "head runs"])
def test_neighbours_of_a_damaged_one_run_in_their_order(host: Host, seed: int, order: str, claimed: bool) -> None:
    clock = ManualClock()
    with closing(host.open(clock)) as store:
        store.configure("default", group_order=order)
        for field in host.fields():
            spoilers = [one for one in garbage(seed, field, 1) if shows(host, field, one)]
            groups = lines(store, 2 * len(spoilers))
            held = claim(store) if claimed else []
            victims = {group[(0, 1 + n // 2 % 2)[n % 2]]: spoilers[n // 2] for n, group in enumerate(groups)}
            for id, spoiler in victims.items():
                host.spoil(id, field, spoiler)
            settle(store, held, Ack(), None)
            ran = [d.message.id for d in held] + drain(store)
            clock.advance("1m")  # leases whose receipt is not theirs any more run out
            ran += drain(store)
            if field == "queue":  # no queue's worker meets it there
                store.repair(lambda message: None)
                ran += drain(store)
            for group in groups:
                neighbours = [id for id in group if id not in victims]
                assert [id for id in ran if id in neighbours] == neighbours, (field, [victims.get(id) for id in group])
            host.clear()


def test_worker_that_ends_when_nothing_is_due_ends_after_the_neighbours(host: Host, store: Store) -> None:
    groups = lines(store, 4)
    for n, group in enumerate(groups):
        host.spoil(group[n % 3], host.rare, "garbage")
    ran: list[str] = []
    app = App(host.url)

    @app.task(name="work", ctx=True)
    def work(ctx: Context) -> None:
        ran.append(ctx.message_id)

    app.run_worker(burst=True)
    app.store.close()
    victims = {group[n % 3] for n, group in enumerate(groups)}
    assert [[id for id in ran if id in group] for group in groups] == [
        [id for id in group if id not in victims] for group in groups
    ]
    assert {m.id for m in store.peek(Lane.QUARANTINE).messages} == victims
