"""`redrive deliver`: send the lines of a file as durable HTTP POSTs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..present.commands import program, typed
from ..present.failure import DONE, FAILED, INTERRUPTED, PARTIAL, REFUSED, USAGE, Failure
from ..redact import redact
from ..system import need_posix
from ..urls import shown
from .opening import OpenedStore, at_store
from .selecting import signature
from .terminal.output import Column, Output
from .terminal.stderr import note
from .terminal.types import DURATION

if TYPE_CHECKING:
    from ..deliver import FileRecord, Ledger, Summary
    from ..deliver.run import DeliveryOptions, FileDelivery
    from ..deliver.sending import UrlTarget

QUOTED_MIN = 6  # the least length of a header's value that is hidden in answers: a shorter one occurs in any text
_COLUMNS = (
    Column("outcome"),
    Column("count"),
    Column("reason"),
    Column("failure", show=lambda text: _short(text), shrinks=True),
    Column("lines", shrinks=True),
    Column("fingerprint", spare=True),
    Column("sample_id", spare=True),
)


@click.command()
@click.argument("file")
@click.option("--to", required=True, metavar="URL", envvar="REDRIVE_TO", help="where each line is POSTed [REDRIVE_TO]")
@click.option("--concurrency", type=int, metavar="N", help="requests at once (default: 10) [REDRIVE_CONCURRENCY]")
@click.option("--rate", envvar="REDRIVE_RATE", help="the highest rate of requests: 50/s or 600/m [REDRIVE_RATE]")
@click.option("--timeout", type=DURATION, default="30s", envvar="REDRIVE_TIMEOUT",
              help="time limit of a request and its whole answer (default: 30s) [REDRIVE_TIMEOUT]")  # fmt: skip
@click.option("--retry", default="patient", metavar="POLICY", envvar="REDRIVE_RETRY",
              help="for lines that fail: patient (the default), or a preset [REDRIVE_RETRY]")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="'K: V'", help="send this header too; may be repeated")
@click.option("--header-env", "from_env", multiple=True, metavar="NAME=VAR",
              help="send header NAME with the value of variable VAR, which no list of processes shows")  # fmt: skip
@click.option("--secret", "secrets", multiple=True, metavar="whsec_…", envvar="REDRIVE_SECRET",
              help="sign as Standard Webhooks specify; a variable is safer [REDRIVE_SECRET]")  # fmt: skip
@click.option(
    "--skip-bad",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="leave bad lines out, and write them to this file",
)
@click.option("--append", is_flag=True, help="send only the lines that were added to the file since it was sent")
@click.option("--dry-run", is_flag=True, help="check the file and show what would be sent; send nothing")
@click.option("--forget", is_flag=True, help="forget that this file was sent to this URL; send nothing")
@click.option("--yes", is_flag=True, help="with --forget: remove undelivered lines from the store, too")
@signature(required=False)
@at_store(create=True)
def deliver(opened: OpenedStore, output: Output, file: str, **given: Any) -> int:
    """Deliver each line of FILE as a durable HTTP POST.

    FILE holds JSON lines, plain or gzipped; `-` is standard input. Every line is checked first: a bad one stops the
    command before anything is enqueued. Then each line becomes a message in the store and is sent as it is, with its
    message's id as Idempotency-Key and the headers of Standard Webhooks, until the endpoint answers with a 2xx.
    It honours Retry-After, and does not follow redirects.

    After Ctrl-C or kill -9 the same command continues where it was, and enqueues no line twice: the store keeps a
    record of the file's contents and the URL until --forget. Once all lines are done, the same command sends only those
    that `redrive dlq retry` has put back. If lines were added to the file since, --append sends these alone.

    The policy `patient` waits 1 s and doubles that up to 60 s, with half of it random, and gives a line up at its 16th
    failure, 5 to 10 minutes after the first: an outage of 5 minutes loses nothing. Throttled requests do not count, up
    to 100 attempts. The time limit of a preset counts from the first failure of a line.

    Exit codes: 0 all delivered, 5 some were not, 1 bad input, 130 interrupted.
    """
    need_posix("redrive deliver")
    from ..deliver import spool_folder

    target = _target(given)
    _options(given)  # called early, to report misspelled options before a large file is read
    elsewhere = f"{program()} deliver {typed(file)} --to {typed(redact(given['to']))} --url sqlite:///redrive.db"
    if not opened.store.traits.durable:
        why = f"{opened.url} forgets everything when the command ends, so nothing could be resumed"
        raise Failure("this store cannot keep lines", why, elsewhere, REFUSED)
    if not opened.store.traits.finds:
        why = f"{opened.url} cannot look up what waits, so a call that was cut off could not go on where it was"
        raise Failure("this store cannot tell lines apart", why, elsewhere, REFUSED)
    folder = spool_folder(opened.store)
    return _Command(opened, output, file, given, target, folder).run()


class _Command:
    """One call of `redrive deliver`, with its options and the state of its file."""

    def __init__(
        self, opened: OpenedStore, output: Output, file: str, given: dict[str, Any], target: UrlTarget, folder: Path
    ) -> None:
        from ..deliver import LINE_MAX

        self.store, self.output, self.file, self.given = opened.store, output, file, given
        self.target, self.folder = target, folder
        self.name = "standard input" if file == "-" else file
        self.unfinished = False
        self.limit = min(LINE_MAX, opened.store.traits.body_bytes_max)

    def run(self) -> int:
        """Check, enqueue and send the lines; return the exit code. Keeps spooled input while lines are unsent."""
        from ..deliver import ProgressBar, check, readable, spool_path

        self.path = readable(self.file, self.folder)
        with ProgressBar() as bar, self.path.open("rb") as opened:
            self.checked = check(opened, limit=self.limit, tick=bar.checked)
        try:
            return self._run()
        finally:
            if not self.unfinished:
                spool_path(self.folder, self.checked.digest).unlink(missing_ok=True)

    def _run(self) -> int:
        from ..deliver import Ledger, first_record, record_key
        from ..deliver.growth import Growth, grow
        from ..deliver.sending import show_url

        key = record_key(self.checked.digest, self.target.url)
        ledger = Ledger(self.store, key)
        if self.given["forget"]:
            return self._forget(ledger)
        start = ledger.record or first_record(
            self.name, show_url(self.target.url), key, self.checked, self.store.now_ms()
        )
        growth = Growth(self.store, self.path, self.target.url, self.limit)
        earlier = growth.earlier(self.checked.size) if ledger.record is None else None
        if earlier is not None and not self._append(earlier, start):
            earlier = None
        elif earlier is not None:
            start = grow(earlier, start)
        if ledger.record is None and (earlier is None or self.checked.bad > earlier.bad):
            self._judge_bad_lines()
        if self.given["dry_run"]:
            return self._dry_run(start)
        if self.checked.good == 0:
            note(f"{self.name} holds no lines to send")
            return DONE
        growth.remember(self.checked)
        if earlier is not None:
            growth.replace(ledger, start)
        return self._deliver(ledger, start)

    def _append(self, earlier: FileRecord, start: FileRecord) -> bool:
        """Return True if only the new lines of the file are to be enqueued. If all lines are to be enqueued again,
        warns and, on a terminal, asks the user."""
        if self.given["append"]:
            return True
        before, whole = f"{earlier.done:,} of these {_lines(start.total)} were sent before", self._again("--append")
        note(f"warning: {before}, and are sent again; to send only the others: {whole}")
        ask = sys.stdin.isatty() and sys.stderr.isatty() and not self.given["dry_run"]
        if ask and not click.confirm(f"Send all {start.total:,} lines?", err=True):
            raise Failure(before, "nothing was sent now", whole, REFUSED)
        return False

    def _deliver(self, ledger: Ledger, start: FileRecord) -> int:
        from ..deliver import ProgressBar, close, summarize
        from ..deliver.run import FileDelivery

        if ledger.record is not None:
            before = summarize(self.store, ledger.record)
            if before.finished:
                return self._done_before(before)
            note(f"going on: {before.delivered:,} of {before.lines:,} lines were delivered before")
        with ProgressBar() as bar:
            options = _options(self.given)
            delivery = FileDelivery(self.store, ledger, start, self.target, options, bar.tick)
            self.unfinished = True
            delivery.run(self.path, self.checked.stamp, self.limit)
        summary = summarize(self.store, delivery.record)
        close(ledger, summary)
        self._tell(summary, delivery)
        return self._end(summary)

    def _done_before(self, summary: Summary) -> int:
        self._tell(summary)
        note(f"all lines were sent before; nothing was sent now. To send them again: {self._again('--forget')}")
        return _code(summary)

    def _end(self, summary: Summary) -> int:
        self.unfinished = not summary.finished
        if summary.finished:
            return _code(summary)
        left = summary.lines - summary.delivered - summary.failed
        note(f"interrupted: {_lines(left)} still to be delivered")
        again = self._again(name=str(self.path)) if self.file == "-" else "the same command goes on from here"
        note(f"next: {again}")
        return INTERRUPTED

    def _judge_bad_lines(self) -> None:
        """Raise Failure if the file has bad lines; with --skip-bad, write them to that option's file instead."""
        from ..deliver import write_bad

        bad, first, target = self.checked.bad, self.checked.first_bad, self.given["skip_bad"]
        if not bad:
            return
        for line in first if bad > 1 or target else ():
            note(f"line {line.number}: {line.why}")
        if bad > len(first):
            note(f"… and {bad - len(first):,} more")
        if target is None:
            what = f"line {first[0].number} of {self.name} cannot be sent: {first[0].why}"
            why = f"{bad:,} of {_lines(bad + self.checked.good)} cannot be sent, so nothing was enqueued"
            raise Failure(what, why, self._again("--skip-bad bad.jsonl"), FAILED)
        if not self.given["dry_run"]:
            write_bad(self.path, target, limit=self.limit)
            note(f"{_lines(bad)} left out, and written to {target}")

    def _dry_run(self, record: FileRecord) -> int:
        from ..deliver import summarize

        self.output.record(
            {
                "file": self.name,
                "to": record.to,
                "queue": record.queue,
                "lines": self.checked.good,
                "bad": self.checked.bad,
                "enqueued": record.done,
                "delivered": summarize(self.store, record).delivered,
                "retry": self.given["retry"],
            }
        )
        note("dry run: nothing was enqueued or sent")
        return DONE

    def _forget(self, ledger: Ledger) -> int:
        from ..deliver import remove, summarize
        from ..triage.pauses import tell

        if ledger.record is None:
            note(f"nothing to forget: with this store, {self.name} was never sent there")
            return DONE
        left = summarize(self.store, ledger.record)
        held = left.waiting + left.dead + left.quarantined
        if held and not self.given["yes"]:
            what = f"{_lines(held)} of {self.name} in the store were not delivered"
            why = "forgetting would leave them behind; --yes removes them"
            raise Failure(what, why, self._again("--forget --yes"), REFUSED)
        by = {name: self.given[name] for name in ("actor", "reason")}
        tell(self.store, "forget", f"queue/{ledger.record.queue}", count=held, **by)
        cancelled, discarded = remove(self.store, ledger.record.queue)
        ledger.write(None)
        note(f"forgotten; {cancelled:,} waiting messages cancelled, {discarded:,} dead ones discarded")
        return DONE

    def _tell(self, summary: Summary, delivery: FileDelivery | None = None) -> None:
        import msgspec

        session = {} if delivery is None else delivery.session()
        if self.output.form in ("json", "jsonl"):
            self.output.record({**msgspec.to_builtins(summary), **session})
        else:
            columns = _COLUMNS[:-1] if self.output.is_table else _COLUMNS
            self.output.rows(_rows(summary), columns, id="sample_id")
        if session:
            note(
                "this run: {requests:,} requests; {retries:,} retries brought {saved:,} lines through".format(**session)
            )
        if summary.dead:
            note(f"next: {program()} dlq list --queue {typed(summary.queue)}{self._store()}")

    def _again(self, more: str = "", name: str | None = None) -> str:
        file = typed(name or self.file)
        return f"{program()} deliver {file} --to {typed(redact(self.given['to']))}{self._store()} {more}".rstrip()

    def _store(self) -> str:
        context = click.get_current_context(silent=True)
        names = context.params if context is not None else {}
        given = {"app": names.get("app"), "url": shown(names["url"]) if names.get("url") else None}
        return "".join(f" --{name} {typed(text)}" for name, text in given.items() if text)


def _target(given: dict[str, Any]) -> UrlTarget:
    from ..deliver import read_secret
    from ..deliver.sending import UrlTarget, check_url

    keys = tuple(read_secret(text) for text in given["secrets"])
    headers = dict(_headers(given["headers"]))
    secrets = dict(_secret_headers(given["from_env"]))
    return UrlTarget(
        url=check_url(given["to"]),
        headers=headers | secrets,
        keys=keys,
        timeout_s=given["timeout"],
        secrets=tuple(value for value in secrets.values() if len(value) >= QUOTED_MIN),
    )


def _headers(texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    for text in texts:
        name, colon, value = text.partition(":")
        shown = f"--header {name.strip()!r}"
        if not colon or not _fits(name, text):
            raise Failure(
                f"{shown} is refused", "expected 'Name: value' in ASCII", f"{program()} deliver --help", USAGE
            )
        yield _admitted(name, shown), value.strip()


def _secret_headers(texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield (header, value) for each --header-env NAME=VARIABLE. The errors never quote a value."""
    help = f"{program()} deliver --help"
    for text in texts:
        name, equals, variable = (part.strip() for part in text.partition("="))
        if not equals or not variable or not _fits(name, text):
            raise Failure(f"--header-env {name!r} is refused", "expected NAME=VARIABLE in ASCII", help, USAGE)
        shown = f"--header-env {name!r}"
        value = os.environ.get(variable, "").strip()
        if not value:
            why = "it must hold the header's value"
            raise Failure(f"{shown}: the variable {variable!r} is not set, or empty", why, help, USAGE)
        if not _fits(name, value):
            why = "a header's value is printable ASCII in one line"
            raise Failure(f"{shown}: what {variable!r} holds cannot be sent", why, help, USAGE)
        yield _admitted(name, shown), value


def _fits(name: str, text: str) -> bool:
    """Return True if `name` is a token of RFC 9110, and `text` is printable ASCII."""
    return re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII) is not None and text.isprintable() and text.isascii()


def _admitted(name: str, shown: str) -> str:
    from ..deliver.sending import OWN_HEADERS

    if name.lower() in OWN_HEADERS:
        why = "redrive sets it: it says which line this is, or how the request is sent"
        raise Failure(f"{shown} cannot be set", why, f"{program()} deliver --help", USAGE)
    return name


def _options(given: dict[str, Any]) -> DeliveryOptions:
    from ..config import settings
    from ..deliver import read_retry
    from ..deliver.run import DeliveryOptions
    from ..flow.limits import read_rate

    chosen = settings({"concurrency": given["concurrency"]})
    return DeliveryOptions(
        retry=read_retry(given["retry"]),
        concurrency=chosen.concurrency or 10,
        rate=None if given["rate"] is None else read_rate(given["rate"]),
        lease_s=chosen.lease_s,
    )


def _rows(summary: Summary) -> list[dict[str, Any]]:
    counts = {
        "delivered": summary.delivered,
        "waiting": summary.waiting,
        "not enqueued": summary.lines - summary.enqueued,
        "cancelled": summary.cancelled,
        "removed": summary.removed,
        "bad": summary.bad,
    }
    rows: list[dict[str, Any]] = [
        {"outcome": name, "count": count} for name, count in counts.items() if count or name == "delivered"
    ]
    for group in summary.groups:
        shown = ", ".join(map(str, group.lines)) + (", …" if group.count > len(group.lines) else "")
        cause = {"reason": group.reason, "failure": group.text or group.error, "lines": shown}
        same = {"fingerprint": group.fingerprint, "sample_id": group.sample_id}
        rows.append({"outcome": group.lane, "count": group.count, **cause, **same})
    return rows


def _short(text: str | None) -> str:
    """Return the text of a failure without the URL, which is the same for every line of the file."""
    return (text or "–").partition(" from http")[0]


def _code(summary: Summary) -> int:
    return PARTIAL if summary.failed else DONE


def _lines(count: int) -> str:
    return f"{count:,} line{'' if count == 1 else 's'}"
