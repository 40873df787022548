"""One meaning for each option: `--reason` is why, `--died-of` filters."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from tests.support.storefront import Shop, filled, shop  # noqa: F401

from redrive.audit.log import Audit
from redrive.errors import SchemaError
from redrive.present.failure import REFUSED, USAGE, failure_of
from redrive.program.main import cli


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


@pytest.mark.parametrize(
    "words, field, near",
    [
        ("dlq list --queue crn", "queue", "crm"),
        ("dlq groups --task crm.psh", "task", "crm.push"),
        ("dlq list --died-of exausted", "reason of death", "exhausted"),
        ("dlq list 'queue:crn -error:Foo'", "queue", "crm"),
        ("job list --queue crn", "queue", "crm"),
        ("job list --task=crm.psh", "task", "crm.push"),
        ("dlq list --task mail.snd --url sqlite:///work.db", "task", "mail.send"),
    ],
)
def test_an_unknown_name_in_a_filter_is_a_mistake_and_the_nearest_is_offered(
    shop: Shop, words: str, field: str, near: str
) -> None:
    said = shop.line(words)
    what, why, next = said.three
    assert (said.code, said.out) == (USAGE, "") and what.startswith(f"there is no {field} '")
    assert why.startswith(f"did you mean '{near}'? known: ") and near in next
    assert shop.again(said).code == 0


@pytest.mark.parametrize(
    "command", ["retry --all", "plan", "discard --all --yes --reason r", "quarantine --all --reason r"]
)
def test_an_act_on_a_name_that_nothing_has_does_nothing_and_looks_first(shop: Shop, command: str) -> None:
    said = shop.line(f"dlq {command} queue:crn")
    assert said.code == USAGE and "did you mean 'crm'?" in said.three[1] and said.three[2].endswith(" dlq groups")
    assert shop.again(said).code == 0


@pytest.mark.parametrize(
    "words, what, why",
    [
        (
            "dlq retry --all --queue crm --task mail.send", "retried: 5 are dead, 0 match",
            "queue crm 3, mail 2; task crm.push 3, mail.send 2",
        ),
        (
            "dlq retry --all --error ConectionError", "retried: 5 are dead, 0 match",
            "error ConnectionError 5; nearest: error ConnectionError",
        ),
        ("dlq retry --all --died-of budget", "retried: 5 are dead, 0 match", "reason of death exhausted 3, rejected 2"),
        ("dlq plan failed:<2000-01-01T00:00:00Z", "planned: 5 are dead, 0 match", "task crm.push 3, mail.send 2"),
        ("dlq plan id:POISON", "planned: all 1 that match are left out", "left out: quarantined 1"),
        ("dlq discard 'age:>5d' --reason r", "discarded: 5 are dead, 0 match", "task crm.push 3, mail.send 2"),
        (
            "dlq export id:POISON", "exported: 5 are dead, 0 match",
            "1 that match are in quarantine: name them by lane:quarantine; task crm.push 3, mail.send 2",
        ),
        ("dlq readmit queue:mail --reason r", "readmitted: 1 is in quarantine, 0 match", "queue crm 1"),
        ("queue purge mail --yes --reason r", "cancelled: nothing waits in queue mail", "what waits: crm 1"),
    ],
)  # fmt: skip
def test_an_act_that_matches_nothing_fails_and_says_what_is_there(shop: Shop, words: str, what: str, why: str) -> None:
    said = shop.line(words)
    assert said.code == 1 and said.three[:2] == (f"nothing was {what}", why)
    assert shop.again(said).code == 0


def test_reading_what_is_empty_is_no_failure(shop: Shop) -> None:
    assert shop("dlq", "discard", "--all", "--yes", "--reason", "a drill").code == 0
    assert shop("dlq", "list", "--queue", "crm").code == 0  # declared, though nothing of it is dead
    said = shop("dlq", "groups", "-o", "json")
    assert (said.code, said.out) == (0, "[]\n") and "nothing is dead in sqlite:///work.db" in said.err
    said = shop("dlq", "retry", "--all", "-o", "json")
    assert (said.code, said.out) == (1, "") and said.three[0].endswith("nothing is dead in sqlite:///work.db")


@pytest.mark.parametrize("printed", ["store sql", "store sql --from-version 9"])
def test_the_failure_of_an_old_schema_ends_with_the_command_that_its_error_names(printed: str) -> None:
    refused = SchemaError(
        f"db: permission denied for schema jobs; let somebody who may run what `redrive {printed}` prints"
    )
    assert failure_of(refused).next.endswith(f" {printed}")


def test_an_upgrade_of_an_sqlite_file_has_no_sql(shop: Shop) -> None:
    said = shop("store", "sql", "--from-version", "6")
    assert said.code == REFUSED and said.three[0] == "there is no SQL to upgrade an SQLite file"
