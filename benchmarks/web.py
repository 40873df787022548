"""What the pages cost: each beside very many messages, and many browsers that watch."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

from redrive import App, Draft
from redrive.message import Lane
from redrive.stores import open_store
from redrive.stores.postgres.store import PostgresStore

from .dead import fill, vacuum
from .engines import server_cpu_s
from .harness import Child, Options, Place, Reading, fresh, percentile, worker
from .tasks import make_app
from .web_client import Client, reacts_ms, watch
from .web_site import calls_of, fill_history, fill_waiting, web_app

TIMES, NAVIGATIONS = 40, 11
PER_S, WATCHED_S = 100.0, 20.0
SELECTORS = (
    "queue:q1",
    "task:t1",
    "error:Error1",
    "fingerprint:print1",
    "failed:<1h",
    "reason:exhausted",
    "queue:q1 task:t1",
    "error:Rare*",
    "text:refused",
    "args.0:7",
    "lane:done",
)
LANES = {"ready": "q1", "scheduled": "q1", "leased": "", "any": ""}  # and the queue that is asked for with it


def web(options: Options) -> list[Reading]:
    """Each page with `dead` dead and `backlog` waiting messages, and `browsers` that watch while a worker works."""
    place = fresh(options, "web")
    store = open_store(place.url)
    fill(store, options.dead)
    fill_waiting(store, options.backlog)
    fill_history(store)
    if isinstance(store, PostgresStore):  # as the server does by itself, a minute after so many came
        vacuum(store)
    store.close()
    times, seconds = (TIMES, WATCHED_S) if options.dead >= 10_000 else (3, 2.0)  # a test's run is short
    return measure(place, times, options.browsers, seconds)


def measure(place: Place, times: int, browsers: int, seconds: float) -> list[Reading]:
    """The same on a store that is full."""
    addresses = _addresses(place.url)
    calls, port = place.folder / "calls", place.folder / "port"
    port.unlink(missing_ok=True)
    with Child(place.folder, "site", place.url, calls, port) as child:
        at = child.written(port)
        with closing(Client(at)) as client:
            found = _pages(child, client, addresses, times, calls)
            plain, sent = client.first_load("/")
        found.append(Reading("first load, as it is", "KiB", [plain / 1024], "≤ 150"))
        found.append(Reading("first load, as it is sent", "KiB", [sent / 1024], "≤ 150"))
        if reacted := reacts_ms(at, NAVIGATIONS if times > 3 else 1):
            found.append(Reading("until the overview reacts, Chromium", "ms", reacted, "≤ 1000"))
        found += _watched(place, child, at, calls, browsers, seconds)
    return found


def _addresses(url: str) -> Mapping[str, str]:
    """What each page is called here, and where it is, with ids that there are."""
    from redrive.config import page_address
    from redrive.presence import ProcessCell, WorkerInfo
    from redrive.web.table import PAGES

    app = web_app(open_store(url), url)
    (message,) = app.store.peek(Lane.DEAD, limit=1).messages
    queued = app.store.peek(Lane.READY, limit=1).messages[0]
    ids = {"edit": message.id, "message": message.id, "plan": _plan(app), "run": _run(app)}
    ids["batch"] = app.batch([Draft(task="t1", delay_ms=10**9)], name="sync").enqueue().id
    ProcessCell(app.store).write(WorkerInfo(name="w1", started_ms=app.store.now_ms(), seen_ms=app.store.now_ms()))
    app.store.close()
    known = {"queue": "q1", "fingerprint": "print1", "dependency": "d1", "task": "t1", "worker": "w1"}
    found: dict[str, str] = {}
    for page in PAGES:
        parts = [part.partition(":")[0] for part in page.path.strip("/").split("/")]
        named = {"{" + name: value for name, value in (known | {"id": ids.get(page.name, "")}).items()}
        filled = [named.get(part, named.get(part.removesuffix("}"), part)) for part in parts]
        found[page.name] = page_address("", *filled)
    found["message, ready"] = page_address("", "messages", queued.id)
    for page_name in ("messages", "planning"):
        path = found[page_name]
        found |= {f"{page_name} {text}": f"{path}?{urlencode({'q': text})}" for text in SELECTORS}
    for lane, queue in LANES.items():
        asked = {"lane": lane} | ({"queue": queue} if queue else {})
        found["messages, " + " ".join(asked.values())] = f"{found['messages']}?{urlencode(asked)}"
    found["overview, since=24h"] = "/?since=24h"
    return found


def _plan(app: App) -> str:
    return app.dlq.select("queue:q1 task:t1").plan(rate="1/s", canary=0).id


def _run(app: App) -> str:
    """A run that nobody carries, so it moves nothing."""
    made = app.dlq.select("queue:q2 task:t2").plan(rate="1/s", canary=0)
    if not made.total:
        made = app.dlq.select("queue:q2").plan(rate="1/s", canary=0)
    return made.start(reason="measured").id


def _pages(site: Child, client: Client, addresses: Mapping[str, str], times: int, calls: Path) -> list[Reading]:
    found: list[Reading] = []
    for name, path in addresses.items():
        first_ms = client.took_ms(path)
        before, cpu_s = calls_of(calls), site.cpu_s()
        took = [client.took_ms(path) for _ in range(times)]
        asked, cpu_ms = (calls_of(calls) - before) / times, (site.cpu_s() - cpu_s) / times * 1000
        p95 = percentile(took, 0.95)
        print(f"  {name:40} first {first_ms:7.0f}  p50 {percentile(took, 0.5):6.1f}  p95 {p95:6.1f} ms  "
              f"{asked:4.1f} calls  {cpu_ms:5.1f} ms CPU", file=sys.stderr, flush=True)  # fmt: skip
        found += [Reading(name, "ms", took), Reading(f"{name}, p95", "ms", [p95], "≤ 100")]
        found += [Reading(f"{name}, the first time", "ms", [first_ms]), Reading(f"{name}, CPU", "ms", [cpu_ms])]
    return found


def _watched(place: Place, site: Child, at: str, calls: Path, browsers: int, seconds: float) -> list[Reading]:
    """With one browser and with many: nothing to see, and messages that run."""
    found: list[Reading] = []
    app = make_app(place.url)
    app.store.configure("default", paused=False)
    app.store.close()
    with worker(place) as working:
        working.await_records(0)
        for count in (1, browsers):
            steady = Child(place.folder, "steady", place.url, count * 1_000_000, round(PER_S * seconds * 2), PER_S,
                           place.folder / "steady.records")  # fmt: skip
            with steady:
                steady.await_records(1)
                cpu_s, server_s, asked, from_s = site.cpu_s(), server_cpu_s(place.engine), calls_of(calls), time.time()
                seen = watch(at, count, seconds)
                took_s = time.time() - from_s
                cpu_s, server_s = site.cpu_s() - cpu_s, server_cpu_s(place.engine) - server_s
                asked = calls_of(calls) - asked
            found += [
                Reading(f"{count} watch {PER_S:g} messages a second, the site", "% of a core", [cpu_s / took_s * 100]),
                Reading(f"{count} watch, the store's server", "% of a core", [server_s / took_s * 100]),
                Reading(f"{count} watch, calls of the store", "a second", [asked / took_s]),
                Reading(f"{count} watch, pages fetched", "a second", [seen.pages / took_s]),
            ]
        working.stop()
    return found
