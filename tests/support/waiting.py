"""Messages of each kind that wait or run, and what selectors find of them."""

from __future__ import annotations

from msgspec.structs import replace

from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, Draft, RetryAt, Settlement
from redrive.store import Store

FAULT = Fault(Kind.TRANSIENT, "httpx.ReadTimeout", "no answer from acme", "f1", ("ReadTimeout",))
LANES = "lane:(scheduled,ready,parked,leased)"
FOUND: list[tuple[str, set[str]]] = [
    ("lane:scheduled", {"retrying", "delayed"}),
    ("lane:ready", {"due"}),
    ("lane:parked", {"parked"}),
    ("lane:leased", {"leased"}),
    (LANES, {"retrying", "leased", "due", "parked", "delayed"}),
    (f"{LANES} task:a.c", {"due", "parked", "delayed"}),
    (f"{LANES} queue:r", {"delayed"}),
    (f"{LANES} group:g", {"due", "parked"}),
    (f"{LANES} -group:*", {"retrying", "leased", "delayed"}),
    (f"{LANES} key:k1", {"parked"}),
    (f"{LANES} label:customer=7", {"delayed"}),
    (f"{LANES} args.tenant:acme", {"due", "parked"}),
    (f"{LANES} error:*Timeout", {"retrying"}),
    (f"{LANES} text:ACME", {"retrying"}),
    (f"{LANES} failed:<1h", {"retrying"}),
    (f"{LANES} due:<30s", {"retrying", "due"}),
    (f"{LANES} due:>30s", {"delayed"}),
    ("lane:ready due:<30s", {"due"}),
    ("lane:scheduled due:<30s", {"retrying"}),
    ("lane:scheduled due:>30s", {"delayed"}),
    ("lane:parked group:g", {"parked"}),
    ("lane:parked group:h", set()),
    ("lane:parked due:<30s", set()),
    (f"{LANES} worker:w", {"retrying", "leased"}),
    (f"{LANES} header.redrive-label-customer:7", {"delayed"}),
    (f"{LANES} Acme", {"retrying", "due", "parked"}),
    (f"{LANES} K1", {"parked"}),
    (f"{LANES} -acme", {"leased", "delayed"}),
    (f"{LANES} readtimeout", {"retrying"}),
    (f"{LANES} tenant", set()),
    (f"{LANES} -lane:parked", {"retrying", "leased", "due", "delayed"}),
    ("lane:ready or (lane:scheduled task:a.b)", {"due", "retrying"}),
    ("lane:(dead,parked)", {"parked"}),
    ("task:a.b", set()),
    ("-lane:dead", set()),
]


def put(store: Store, *drafts: Draft) -> list[str]:
    return [put.id for put in store.put(drafts)]


def fill(store: Store) -> dict[str, str]:
    """One message of each kind: leased, failed and waiting for its retry, delayed, due, in line, and in two queues."""
    retrying, leased = put(store, Draft(task="a.b", queue="q", body=b'{"n": 1}'), Draft(task="a.b", queue="q"))
    first, second = store.exchange([], [ClaimRequest("q", 2, 60_000, worker="w")]).deliveries
    assert [first.message.id, second.message.id] == [retrying, leased]
    store.exchange(
        [Settlement(first.receipt, RetryAt(store.now_ms() + 5_000), replace(FAULT, at_ms=store.now_ms()))], []
    )
    group = [Draft(task="a.c", queue="q", group="g", key=f"k{n}", body=b'{"tenant": "acme"}') for n in range(2)]
    later = Draft(task="a.c", queue="r", delay_ms=60_000, headers={"redrive-label-customer": "7"})
    names = ("due", "parked", "delayed")
    return {"retrying": retrying, "leased": leased, **dict(zip(names, put(store, *group, later), strict=True))}
