"""Bodies that no redrive wrote, put raw into the store: dead, untouched, and harmless to what is around them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.crash.children import Child, balanced, mostly_sqlite, put_all, records, run, stored, until
from tests.support.crash.programs import Plan

from redrive import Draft
from redrive.ids import new_id
from redrive.message import Lane

pytestmark = [pytest.mark.slow, pytest.mark.turns(3)]

DEEP = 100_000
DIGITS = 5_000

ODD: dict[str, bytes] = {
    "empty": b"",
    "not UTF-8": b'{"value": "\xff\xfe"}',
    "not UTF-8 at all": bytes(range(256)),
    "cut-off UTF-8": b'{"value": "\xe2\x82"}',
    "an encoded surrogate": b'{"value": "\xed\xa0\x80"}',
    "not JSON": b"value=1",
    "half a JSON": b'{"value": [1, 2',
    "two JSONs": b'{"value": 1} {"value": 2}',
    "a NUL": b"\x00",
    "a byte order mark": b'\xef\xbb\xbf{"value": 1}',
    "deep arrays": b'{"value": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep objects": b'{"value": ' + b'{"a": ' * DEEP + b"1" + b"}" * DEEP + b"}",
    "a deep object in place of arguments": b'{"value": ' * DEEP + b"1" + b"}" * DEEP,
    "deep and never closed": b"[" * DEEP,
    "a long integer": b'{"value": ' + b"7" * DIGITS + b"}",
    "a long negative integer": b'{"value": -' + b"7" * DIGITS + b"}",
    "NaN": b'{"value": NaN}',
    "infinity": b'{"value": -Infinity}',
    "a lone high surrogate": b'{"value": "\\ud800"}',
    "a lone low surrogate": b'{"value": "\\udc00"}',
    "surrogates the wrong way round": b'{"value": "\\udc00\\ud800"}',
    "a lone surrogate as a name": b'{"\\ud800": 1}',
    "an array of arguments": b"[1]",
    "a number": b"1",
    "null": b"null",
    "no argument": b"{}",
    "another argument": b'{"other": 1}',
}
WRONG_TYPE: dict[str, bytes] = {  # for quick(n: int, pause_ms: int)
    "text for a number": b'{"n": "1", "pause_ms": 1}',
    "a list for a number": b'{"n": [1], "pause_ms": 1}',
    "a fraction for a whole number": b'{"n": 1.5, "pause_ms": 1}',
    "null for a number": b'{"n": null, "pause_ms": 1}',
    "a number beyond 64 bits that is also too long": b'{"n": ' + b"9" * DIGITS + b', "pause_ms": 1}',
    "an argument too few": b'{"n": 1}',
}


def raw(task: str, body: bytes) -> Draft:
    return Draft(task=task, body=body, content="raw", id=new_id(0))


@pytest.mark.fault("bodies that nobody can read")
def test_unreadable_bodies_die_as_they_came_and_disturb_nobody(place: Path) -> None:
    odd = {name: raw("any_value", body) for name, body in ODD.items()}
    odd |= {f"{name} ({task})": raw(task, body) for name, body in WRONG_TYPE.items() for task in ("quick", "blocking")}
    wanted: list[tuple[str, Draft | None]] = [("quick", None)]
    for draft in odd.values():
        wanted += [("unreadable", draft), ("blocking" if len(wanted) % 4 else "flaky", None)]
    unknown = raw("nobody_knows", b'{"value": "\xff"}'), raw("any_value", b'{"value": 1, "other": 2}')
    put_all(place, [*wanted, *(("unroutable", draft) for draft in unknown), ("quick", None)])

    assert run("worker", Plan(place=str(place))) == 0

    balanced(place)
    for (name, draft), message in zip(odd.items(), stored(place, [d.id or "" for d in odd.values()]), strict=True):
        assert message is not None, name
        assert message.body == draft.body, f"{name}: its bytes changed"
        assert (message.lane, message.reason, message.attempt, message.crashes) == (Lane.DEAD, "unreadable", 0, 0), name
        assert message.faults[-1].kind == "unreadable", name
    for draft, message in zip(unknown, stored(place, [draft.id or "" for draft in unknown]), strict=True):
        assert message is not None
        assert (message.lane, message.reason, message.attempt) == (Lane.DEAD, "unroutable", 0)
        assert message.body == draft.body
    assert len(records(place, "up")) == len(records(place, "exit")) == 1, "one process from its start to its end"


@mostly_sqlite()
def test_flood_of_unreadable_bodies_does_not_let_a_worker_claim_more_than_it_may(place: Path) -> None:
    bad = put_all(place, [("unreadable", raw("any_value", b"{")) for _ in range(200)])
    good = put_all(place, [("hold", None)] * 40)
    with Child("worker", Plan(place=str(place), prefetch=3)) as worker:
        until("the bad ones are dead", lambda: all(m is not None and m.lane is Lane.DEAD for m in stored(place, bad)))
        until("the good ones run", lambda: worker.starts() == 2, child=worker)
        assert sum(m is not None and m.lane is Lane.LEASED for m in stored(place, good)) <= 5
        (place / "go").touch()
        worker.ends_well()
    balanced(place)
