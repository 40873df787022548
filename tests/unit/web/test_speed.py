"""What a page asks of the store does not grow with what it holds; many who watch cost as one. Nothing is timed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.counted import CountedStore

from redrive import App
from redrive.config import page_address
from redrive.fault import Fault, Kind
from redrive.ids import new_id
from redrive.message import Draft, Lane, Message
from redrive.presence import ProcessCell, WorkerInfo
from redrive.stores import open_store
from redrive.web import Site, vigil
from redrive.web.live import Glance, Live
from redrive.web.table import PAGES

FEW, MANY = 100, 2_000
QUEUES, TASKS, FAULTS = 3, 4, 12
MESSAGES_MAX = 1_300  # that one page reads: 200 waiting ones of each queue to say why they wait, and its own
CALLS_MAX = 60
WATCHERS = 50


def filled(folder: Path, count: int) -> CountedStore:
    """So many dead messages, as many that wait, and as many in batches of ten."""
    store = CountedStore(open_store(f"sqlite:///{folder / f'{count}.db'}"))
    now_ms = store.now_ms()
    store.restore([dead(n, now_ms - 1000 * (n + 1)) for n in range(count)])
    store.put([Draft(task=f"t{n % TASKS}", queue=f"q{n % QUEUES}", body=b'{"args":[%d]}' % n) for n in range(count)])
    app = App(store=store)
    for n in range(count // 10):
        app.batch([Draft(task="t1", queue="q1") for _ in range(10)], name=f"b{n}").enqueue()
    return store


def dead(n: int, rested_ms: int) -> Message:
    fault = Fault(Kind.DEFAULT, f"Error{n % 5}", f"order {n} was refused", f"print{n % FAULTS}", traceback="line\n")
    return Message(
        new_id(rested_ms), f"t{n % TASKS}", f"q{n % QUEUES}", b'{"args":[%d]}' % n, new_id(rested_ms), Lane.DEAD,
        attempt=3, fence=3, enqueued_ms=rested_ms, life_ms=rested_ms, reason="exhausted", rested_ms=rested_ms,
        faults=(fault,),
    )  # fmt: skip


def app_on(store: CountedStore) -> App:
    app = App(store=store)
    app.dependency("crm", rate="100/s")
    for n in range(TASKS):
        app.task(name=f"t{n}", queue=f"q{n % QUEUES}", dependency="crm" if n == 0 else None)(nothing)
    return app


def nothing(i: int) -> None:
    return None


class Asked:
    """A store, an app on it, and what its pages are asked for."""

    def __init__(self, store: CountedStore) -> None:
        self.store, self.app = store, app_on(store)
        (message,) = store.peek(Lane.DEAD, limit=1).messages
        made = self.app.dlq.select("queue:q1 task:t1").plan(rate="1/s", canary=0)
        run = self.app.dlq.select("queue:q2 task:t2").plan(rate="1/s", canary=0).start(reason="tested")
        ProcessCell(store).write(WorkerInfo(name="w1", started_ms=store.now_ms(), seen_ms=store.now_ms()))
        ids = {
            "edit": message.id,
            "message": message.id,
            "plan": made.id,
            "run": run.id,
            "batch": store.batch_ids(limit=1)[0],
        }
        known = {"queue": "q1", "fingerprint": "print1", "dependency": "crm", "task": "t1", "worker": "w1"}
        self.paths = {page.name: placed(page.path, known | {"id": ids.get(page.name, "")}) for page in PAGES}
        self.paths |= {f"messages {q}": f"/messages?q={q}" for q in ("queue:q1", "error:Error1", "args.0:7", "text:7")}
        self.paths |= {f"messages {lane}": f"/messages?lane={lane}&queue=q1" for lane in ("ready", "any")}
        self.paths |= {f"planning {q}": f"/plans?q={q}" for q in ("queue:q1", "error:Error1")}

    async def cost(self, path: str) -> tuple[Counter[str], int]:
        """The calls of one page once what is shared with other pages is made, and the messages that were read."""
        site = Site(self.app, registry=self.app)
        async with client(site) as browser:
            await page(browser, path)
            self.store.reset()
            await page(browser, path)
        return self.store.calls.copy(), self.store.messages


def placed(path: str, known: dict[str, str]) -> str:
    parts = [part.strip("{}").partition(":")[0] if part.startswith("{") else "" for part in path.strip("/").split("/")]
    own = path.strip("/").split("/")
    return page_address("", *(known[name] if name else part for name, part in zip(parts, own, strict=True)))


def client(site: Site) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(site, client=("127.0.0.1", 50000))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


async def page(browser: httpx.AsyncClient, path: str, **headers: str) -> str:
    answer = await browser.get(path, headers={"Accept": "text/html", **headers})
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Asked, Asked]]:
    folder = tmp_path_factory.mktemp("speed")
    few, many = filled(folder, FEW), filled(folder, MANY)
    yield Asked(few), Asked(many)
    few.close()
    many.close()


NAMES = [
    *(page.name for page in PAGES),
    *(f"messages {q}" for q in ("queue:q1", "error:Error1", "args.0:7", "text:7", "ready", "any")),
    *(f"planning {q}" for q in ("queue:q1", "error:Error1")),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_asks_as_little_of_a_store_that_holds_much(name: str, stores: tuple[Asked, Asked]) -> None:
    least = []
    for asked in stores:  # of two requests the cheaper one: beside the other a thread may make a sum again
        costs = [asyncio.run(asked.cost(asked.paths[name])) for _ in range(2)]
        least.append(min(costs, key=lambda cost: cost[0].total()))
    (few, _), (many, read) = least
    assert many.total() <= CALLS_MAX and read <= MESSAGES_MAX
    more = many - few
    more.pop("peek", None)  # a page of fifty among a hundred may need fewer pages of the store: bounded above
    assert more.total() <= 2, more


def test_fifty_who_watch_cost_one_look(stores: tuple[Asked, Asked]) -> None:
    asked = stores[0]
    looks: list[bytes] = []

    class Noted(Glance):
        def look(self) -> bytes:
            looks.append(super().look())
            return looks[-1]

    async def watched() -> set[str]:
        live = Live(Noted(lambda: asked.store), lambda: 3600.0)
        streams = [live.events() for _ in range(WATCHERS)]
        assert {await anext(stream) for stream in streams} == {"retry: 2000\nevent: version\ndata: 0\n\n"}
        told = set(await asyncio.gather(*map(anext, streams)))  # of the first look: it may have changed since the page
        await live.close()
        return told

    asked.store.reset()
    assert asyncio.run(watched()) == {"event: version\ndata: 1\n\n"}
    assert len(looks) == 1 and asked.store.calls["counts_by_queue"] == 1


@pytest.mark.parametrize("name", ["overview", "queue", "messages", "runs"])
def test_a_page_that_fifty_watch_is_read_once_after_a_change(
    name: str, stores: tuple[Asked, Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vigil, "_SHARED_S", 3600.0)  # on a busy machine fifty take longer
    asked = stores[0]
    path = asked.paths[name]

    async def watched() -> tuple[int, list[str]]:
        site = Site(asked.app, registry=asked.app)
        async with client(site) as browser:
            asked.store.reset()
            await page(browser, path)
            alone = asked.store.calls.total()  # with its sums, which may have to be made again
            site.live.bump()
            asked.store.reset()
            version = {"X-Redrive-Live": str(site.live.version)}
            return alone, await asyncio.gather(*(page(browser, path, **version) for _ in range(WATCHERS)))

    alone, shown = asyncio.run(watched())
    assert alone > 0 and asked.store.calls.total() <= alone, asked.store.calls
    assert len(shown) == WATCHERS and all("</html>" in each for each in shown)
