"""One meaning for each option: `--reason` is why, `--died-of` filters."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from tests.support.storefront import Shop, shop  # noqa: F401

from redrive.audit.log import Audit
from redrive.cli.main import cli
from redrive.cli.terminal.failure import USAGE


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """All commands without subcommands, by their path."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


def test_an_option_has_one_meaning_in_every_command() -> None:
    helps: dict[str, set[str]] = {}
    for _, command in commands(cli):
        for option in command.params:
            if isinstance(option, click.Option):
                helps.setdefault(option.opts[-1], set()).add(str(option.help))
    assert all("why" in help for help in helps["--reason"])
    assert all(help.startswith("only ") for help in helps["--died-of"])
    assert "--why" not in helps and len(helps["--actor"]) == 2  # whose it is, or a filter of the audit log


def test_a_script_that_still_filters_by_reason_moves_nothing(shop: Shop) -> None:
    said = shop("dlq", "retry", "--all", "--reason", "rejected")
    what, _, next = said.three
    assert said.code == USAGE and what == "--reason rejected is no filter"
    assert next.endswith(" dlq retry --all --died-of rejected")
    assert shop("dlq", "list", "-o", "ids").out.count("\n") == 5
    assert shop.again(said).err == "2 retried\n"


@pytest.mark.parametrize("given", [(), ("--reason", "another")])
def test_the_reason_of_a_plan_is_that_of_its_run_unless_another_is_given(shop: Shop, given: tuple[str, ...]) -> None:
    id = shop("dlq", "plan", "--reason", "CRM-77", "-o", "ids").out.strip()
    assert shop("dlq", "apply", id, *given).code == 0
    with shop.store() as store:
        assert next(iter(Audit(store))).reason == (given[1] if given else "CRM-77")
