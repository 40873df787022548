"""`redrive doctor`: find what is damaged, unsafe, slow or not running about a store and its app."""

from __future__ import annotations

import click

from ...present.commands import onward
from ...present.failure import DONE, FAILED
from ..opening import OpenedStore, at_store
from ..terminal.output import Output
from ..terminal.stderr import note


@click.command()
@at_store(absent=True)
def doctor(opened: OpenedStore, out: Output) -> int:
    """Check the set-up for damage, risks and slowness; exits 1 if it finds any.

    Each line says what is wrong, what it may cause, and what to do. It also names hung workers, and batches whose state
    is lost. It changes nothing. With --app it checks three more things: does the store fit the app's tasks, does a
    scheduler run its schedules, and are the dependencies of its tasks declared? Before the first message only the app
    is checked.

    \b
      redrive doctor --app tasks:app
    """
    from ...batch import lost_batches
    from ...schedule import warning
    from ...status import hung_workers
    from ...status.cells import problems
    from ...worker.preflight import advice, doubts

    there = opened.store.traits.shared  # an empty store in memory, for one that does not exist yet, needs no check
    lines = [*problems(opened.store), *opened.store.doctor()] if there else []
    if there and opened.store.traits.cells:
        lines += [f"{text}; see: {onward(f'dlq list batch:{id}')}" for id, text in lost_batches(opened.store)]
    lines += [f"{text}; see: {onward('status')}" for text in hung_workers(opened.store)]
    if opened.app is not None:
        lines += advice(opened.app, opened.store) if there else doubts(opened.app)
        if opened.store.traits.cells and (late := warning(opened.app, opened.store)) is not None:
            lines.append(late)
    findings = list(dict.fromkeys(lines))
    out.record({"ok": not findings, "findings": findings}, table=lambda: findings or ["ok"])
    if findings:
        note(f"{len(findings)} finding{'s' * (len(findings) > 1)} about {opened.url if there else 'the app'}")
        return FAILED
    note(f"nothing to mend about {opened.url}" if there else "nothing to mend about the app")
    return DONE
