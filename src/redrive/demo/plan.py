"""Draw from one seed what the demo's endpoint does to each event, so that a run can be repeated."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from collections.abc import Sequence
from importlib.resources import as_file, files

import msgspec
from msgspec import Struct

DATA = "github-webhooks.jsonl.gz"

# Temporary failures: the endpoint accepts an event after one to three of them.
PASSING = {
    "429": "429 Too Many Requests, Retry-After in seconds",
    "429-date": "429 Too Many Requests, Retry-After as a date",
    "503": "503 Service Unavailable",
    "503-after": "503 Service Unavailable with Retry-After",
    "500": "500 Internal Server Error",
    "slow": "accepted, but answered after the sender's timeout",
    "dropped": "accepted, then the connection is dropped instead of an answer",
}
_PASSING_SHARE = {"429": 9, "429-date": 4, "503": 8, "503-after": 3, "500": 8, "slow": 4, "dropped": 4}  # per cent
# Permanent failures.
LASTING = {
    "404": "404 Not Found, until the route is put back",
    "400": "400 Bad Request, until the parser is mended",
    "500-always": "500 Internal Server Error every time, until the bug is fixed",
    "410": "410 Gone, for good: these have no subscribers any more",
}
_LASTING_COUNT = {"404": (5, 8), "400": (3, 6), "500-always": (3, 5), "410": (2, 4)}
FOR_GOOD = frozenset({"410"})


class FailurePlan(Struct, frozen=True):
    """The failures that the endpoint shows. `scripts`: by event, those before it is accepted; `lasting`: by event, a
    permanent one. Other events have none."""

    scripts: dict[str, tuple[str, ...]]
    lasting: dict[str, str]
    cut: frozenset[int]  # numbers of requests whose connection is dropped before the request is read
    outage_after: int  # number of requests before the outage begins
    outage_s: float

    def counts(self) -> Counter[str]:
        """Return how many events have each kind of failure."""
        return Counter(kind for script in self.scripts.values() for kind in set(script)) + Counter(
            self.lasting.values()
        )


def draw(seed: int, ids: Sequence[str]) -> FailurePlan:
    """Return the plan that this seed draws for the events with these ids."""
    random_ = random.Random(seed)
    shuffled = sorted(ids)
    random_.shuffle(shuffled)
    lasting: dict[str, str] = {}
    for kind, (least, most) in _LASTING_COUNT.items():
        for _ in range(random_.randint(least, most)):
            lasting[shuffled.pop()] = kind
    scripts: dict[str, tuple[str, ...]] = {}
    for kind, share in _PASSING_SHARE.items():
        for _ in range(len(ids) * share // 100):
            more = random_.choices(
                list(_PASSING_SHARE), weights=list(_PASSING_SHARE.values()), k=random_.choice((0, 0, 0, 1, 2))
            )
            scripts[shuffled.pop()] = (kind, *more)
    cut = frozenset(random_.sample(range(20, len(ids)), 8))
    return FailurePlan(
        scripts, lasting, cut, random_.randint(len(ids) * 3 // 4, len(ids)), round(random_.uniform(1.5, 2), 1)
    )


def one_outage() -> FailurePlan:
    """Return the plan of an endpoint that has one long outage and no other fault."""
    return FailurePlan({}, {}, frozenset(), 90, 4.0)


def event_ids() -> list[str]:
    """Return the ids of the bundled events, in order."""

    class _Event(Struct):
        id: str

    with as_file(files(__package__) / DATA) as path, gzip.open(path) as lines:
        return [msgspec.json.decode(line, type=_Event).id for line in lines]
