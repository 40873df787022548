"""The person that test_mending starts and kills: `python -m tests.support.crash.edits mender PLAN` edits, discards,
quarantines and readmits dead messages, and imports others. `look` says whether each of these is whole, or not begun.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from msgspec.structs import replace
from tests.support.crash.ledger import Journal, handled, url_of
from tests.support.crash.programs import Plan, hook

import redrive
from redrive.ids import new_id
from redrive.message import ClaimRequest, DeadLetter, Draft, Lane, Quarantine, Settlement, Swap
from redrive.store import Store
from redrive.triage.dlq import DeadLetters
from redrive.triage.export import write_line

KEY, WHY = "order-7", "by hand"
MINE = "ids"  # the cell that says which messages are which


def make_app(place: Path) -> redrive.App:
    app = redrive.App(url_of(place))

    @app.task(name="push")
    def push(record_id: int) -> None: ...

    return app


def fill(place: Path) -> None:
    """Dead messages to edit, discard (three) and quarantine, a quarantined one to readmit, and a file to import."""
    app = make_app(place)
    drafts = [Draft(task="push", key=KEY), *[Draft(task="push") for _ in range(5)]]
    ids = [put.id for put in app.store.put(drafts)]
    for each in app.store.exchange([], [ClaimRequest("default", 9, 60_000)]).deliveries:
        decision = Quarantine() if each.message.id == ids[5] else DeadLetter("exhausted")
        app.store.exchange([Settlement(each.receipt, decision)], [])
    message = app.store.find(ids[1:2])[0]
    assert message is not None
    carried = [new_id(n) for n in (1, 2)]
    (place / "dead.jsonl").write_bytes(b"".join(write_line(replace(message, id=id)) for id in carried))
    app.store.cells.swap([Swap(MINE, 0, msgspec.json.encode(ids + carried))])
    app.store.close()


def mend(plan: Plan) -> None:
    """Do what was not done yet, so that it can be called again after a kill."""
    place = Path(plan.place)
    app = make_app(place)
    hook(app.store, Journal(handled(place)), plan)
    done, ids, dlq = look(app.store), mine(app.store), app.dlq
    if not done["edit"]:
        dlq.edit(ids[0], args={"record_id": 7}, reason=WHY)
    dlq.discard(ids[1:4], reason=WHY)
    dlq.quarantine(ids[4:5], reason=WHY)
    dlq.readmit(ids[5:6], reason=WHY)
    dlq.import_(place / "dead.jsonl", reason=WHY)
    app.store.close()


def mine(store: Store) -> list[str]:
    (cell,) = store.cells.read([MINE])
    assert cell is not None
    return msgspec.json.decode(cell.value, type=list[str])


def look(store: Store) -> dict[str, bool]:
    """Of each action whether it was done. Fails on half of one: the change without its entry or the reverse, the new
    message beside the original or neither. An import's entry goes before it."""
    dlq, ids = DeadLetters(store), mine(store)
    log = {entry.action: entry for entry in dlq.audit()}
    found = [None if message is None else message.lane for message in store.find(ids)]
    ready = store.peek(Lane.READY).messages
    edited = found[0] is None
    assert found[0] in (None, Lane.DEAD) and len(ready) == edited, "neither or both of an edit"
    if edited:
        assert (ready[0].key, ready[0].causation_id, ready[0].body) == (KEY, ids[0], b'{"record_id":7}')
        assert log["edit"].ids == (ids[0], ready[0].id)
    holder = store.put([Draft(task="push", key=KEY)])[0]
    assert holder.duplicate and holder.id == (ready[0].id if edited else ids[0]), "its unique key went astray"
    assert len(set(found[1:4])) == 1, "half a batch"
    assert found[4] in (Lane.DEAD, Lane.QUARANTINE) and found[5] in (Lane.DEAD, Lane.QUARANTINE)
    done = {
        "edit": edited,
        "discard": found[1] is None,
        "quarantine": found[4] is Lane.QUARANTINE,
        "readmit": found[5] is Lane.DEAD,
    }
    assert {action: action in log for action in done} == done, "a change without its entry, or the reverse"
    assert len(set(found[6:])) == 1, "half an import"
    assert found[6] is None or "import" in log, "an import without its entry"
    return {**done, "import": found[6] is Lane.DEAD}


if __name__ == "__main__":
    mend(msgspec.json.decode(sys.argv[2], type=Plan))
