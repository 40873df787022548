"""The help of every command: it fits a terminal of 80 columns, and ends with an example that runs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

import click
import pytest
from tests.support.storefront import Shop, buried, filled, shop  # noqa: F401

from redrive import App, Draft
from redrive.cli.terminal.examples import EXAMPLES
from redrive.flow.gates import Gates
from redrive.message import GroupOrder, OnDead
from redrive.presence import ProcessCell, WorkerInfo
from redrive.program.main import cli
from redrive.triage.auto import machine
from redrive.triage.auto.machine import Machine
from redrive.triage.dlq import DeadLetters

LINES = sorted({line for lines in EXAMPLES.values() for line in lines})
# They run until they are stopped, call AWS, or build for minutes: these are parsed only.
PARSED = (
    "demo",
    "worker ",
    "scheduler",
    "metrics serve",
    "run watch",
    "batch watch",
    "top",
    "web",
    "watch --waiting",
    "dlq ingest",
    "dlq move",
    "aws package",
    "celery",
)
FINDING = ("status", "doctor", "store doctor")  # exit 1, as the store has dead messages and no scheduler runs


def commands(command: click.Command = cli, path: tuple[str, ...] = ()) -> Iterator[str]:
    yield " ".join(path)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


def test_every_command_has_an_example_and_each_is_of_a_command() -> None:
    assert sorted(EXAMPLES) == sorted(commands())
    for path, lines in EXAMPLES.items():
        assert lines and all(line.startswith(path) for line in lines)


def test_help_fits_80_columns_and_ends_with_examples(shop: Shop) -> None:
    shop.columns(80)
    for path, examples in EXAMPLES.items():
        said = shop(*path.split(), "--help")
        lines = said.out.splitlines()
        assert said.code == 0 and max(map(len, lines)) <= 80, max(lines, key=len)
        head, *shown = (line.strip() for line in lines[-len(examples) - 1 :])
        assert shown == [f"redrive {line}" for line in examples] and head in ("Example:", "Examples:")


@pytest.mark.parametrize("line", LINES)
def test_the_examples_of_help_run(shop: Shop, line: str) -> None:
    if line.startswith(PARSED):
        (shop.folder / "shop").mkdir()
        parsed(shlex.split(line))
        return
    for begin, prepare in PREPARED.items():
        if line.startswith(begin):
            prepare(shop)
    waits = line.startswith(("job cancel", "job run"))
    line = line.replace("ID", shop.names["WAITING" if waits else "DEAD"])
    said = shop.line(line + (" --dry-run" if line.startswith("deliver") else ""))
    assert said.code == (1 if line.startswith(FINDING) else 0), said.err


def parsed(words: list[str]) -> None:
    """Parse a command line as if it were about to be run. Raises click.UsageError."""
    command: click.Command = cli
    context, name = click.Context(cli, info_name="redrive"), ""
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None
        command = found
        context = (
            click.Context(command, info_name=name, parent=context) if isinstance(command, click.Group) else context
        )
    command.make_context(name, words, parent=context)


def _blocked(shop: Shop) -> None:
    with shop.store() as store:
        store.configure("line", group_order=GroupOrder.STRICT, on_dead=OnDead.BLOCK)
        buried(store, 1, Draft(task="crm.push", queue="line", group="acme"), "rejected", "ef" * 8)


def _paused(shop: Shop) -> None:
    assert shop.line("run pause RUN --reason r").code == 0


def _approving(shop: Shop) -> None:
    with shop.store() as store:
        plan = DeadLetters(store).select(f"id:{shop.names['MAIL']}").plan(gates=Gates(approval="anyone"))
        plan.start(reason="r")
    shop.names["RUN"] = plan.id


def _redriving(shop: Shop) -> None:
    with shop.store() as store:
        store.put([], swaps=machine.swaps(store, None, Machine(scope="queue/crm"), []))


def _muted(shop: Shop) -> None:
    assert shop.line("alerts mute --dependency stripe --for 1h --reason r").code == 0


def _merged(shop: Shop) -> None:
    assert shop.line(f"dlq merge {shop.names['FINGERPRINT']} {'f' * 16} --reason r").code == 0


def _working(shop: Shop) -> None:
    with shop.store() as store:
        ProcessCell(store).write(WorkerInfo(name="vm/a", started_ms=store.now_ms(), seen_ms=store.now_ms()))
    shop.names["WORKER"] = "vm/a"


def _with_blobs(shop: Shop) -> None:
    (shop.folder / "redrive.toml").write_text(f'app = "shop:app"\nblobs = "file://{shop.folder}/blobs"\n')
    (shop.folder / "blobs").mkdir()


def _batched(shop: Shop) -> None:
    with shop.store() as store:
        app = App("memory://")  # another app on the shop's store
        app._store = store
        shop.names["BATCH"] = app.batch([Draft(task="crm.push", delay_ms=10**8)], name="sync").enqueue().id


def _held(shop: Shop) -> None:
    assert shop.line("task pause crm.push --reason r").code == 0


PREPARED: dict[str, Callable[[Shop], None]] = {
    "batch": _batched,
    "workflow": _batched,
    "alerts unmute": _muted,
    "dlq unmerge": _merged,
    "group resume": _blocked,
    "task resume": _held,
    "run resume": _paused,
    "run approve": _approving,
    "dlq auto crm": _redriving,
    "store sweep": _with_blobs,
    "workers drain": _working,
}
