"""`redrive policy check`: say what will go wrong with an app's policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..config import settings
from ..errors import ConfigError
from ..files import output as written_file
from ..present.commands import program
from ..present.failure import DONE, FAILED, USAGE, Failure
from .opening import app_option, load_app, load_object, output_option, require, url_option
from .terminal.output import Column, Output
from .terminal.stderr import note
from .terminal.types import DURATION

if TYPE_CHECKING:
    from ..check import Assumptions, Case, CheckReport

_FIELDS = ("severity", "rule", "subject", "text", "fix", "accepted")
_SHARE = click.FloatRange(0, 1, max_open=True)


@click.command()
@app_option
@click.option("--celery", metavar="MODULE:APP", help="check this app of Celery instead")
@url_option
@click.option("--outage", "outage_s", type=DURATION, help="how long a dependency may be down, such as 2h")
@click.option("--rate", "rates", multiple=True, metavar="[TASK=]RATE", help="messages that arrive for each task: 50/s")
@click.option("--run", "run_s", type=DURATION, help="how long a run takes")
@click.option("--failing", type=_SHARE, help="the share of first attempts that fail in ordinary times: 0.02")
@click.option("--retry-after", "retry_after_s", type=DURATION, help="the longest wait that dependencies ask for")
@click.option("--deadline", "deadline_s", type=DURATION, help="the deadline= that producers give")
@click.option("--lease", "lease_s", type=DURATION, help="the lease of workers [REDRIVE_LEASE]")
@click.option("--processes", type=click.IntRange(1), help="worker processes, of all machines [REDRIVE_PROCESSES]")
@click.option("--connections", type=click.IntRange(1), help="connections that the runs of all processes share")
@click.option("--function", "function_s", type=DURATION, help="the timeout of the Lambda function that runs the tasks")
@click.option(
    "--blobs-expire", "blobs_s", type=DURATION, help="after what time the storage of large bodies expires them"
)
@click.option("--strict", is_flag=True, help="exit 1 on warnings too")
@click.option("--baseline", type=click.Path(path_type=Path), help="a file with accepted findings")
@click.option(
    "--write-baseline", type=click.Path(path_type=Path), help="write the present findings to this baseline file"
)
@click.option("--explain", metavar="RULE", help="explain a rule, and stop")
@partial(output_option, more=("sarif",))
def check(
    app: str | None,
    celery: str | None,
    url: str | None,
    rates: tuple[str, ...],
    strict: bool,
    baseline: Path | None,
    write_baseline: Path | None,
    explain: str | None,
    output: str | None,
    **assumed: Any,
) -> int:
    """Find problems in the policies of an app before they happen; exits 1 on errors.

    Each finding names its rule, its numbers, and the change that fixes it. The options are your assumptions; with --url
    they come from the store's history and the attributes of its queues. A rule that cannot decide counts as unknown and
    does not fail the check. Tasks accept findings by @app.task(accepts={RULE: REASON}).
    """
    from .. import check as checks

    if explain is not None:
        click.echo(checks.explained(explain))
        return DONE
    sarif = output == "sarif"
    chosen = settings({"app": app, "url": url, "output": None if sarif else output})
    given = {name: value for name, value in assumed.items() if value is not None}
    default = {"lease_s": chosen.lease_s, "processes": chosen.processes}
    assume = checks.Assumptions(**{**default, **given}, rates_per_s=_rates(rates))
    case = _celery_case(celery, chosen.folder, assume) if celery else _case(chosen, url is not None, assume)
    report = checks.report_on(case, baseline=[] if baseline is None else checks.read_baseline(baseline))
    if write_baseline is not None:
        with written_file(write_baseline, public=True) as file:
            file.write(checks.baseline_of(report).encode())
        note(f"{write_baseline} is written: --baseline {write_baseline} accepts these findings")
        return DONE
    out = Output(chosen.output)
    if sarif:
        click.echo(checks.sarif_of(report), nl=False)
    elif out.form == "json":
        out.record(checks.record_of(report))
    elif out.is_table:
        out.lines(_lines(report))
    else:
        out.rows(checks.record_of(report)["findings"], tuple(map(Column, _FIELDS)), id="rule")
    note(report.summary)
    return FAILED if report.fails(strict=strict) else DONE


def _case(chosen: Any, with_store: bool, assume: Assumptions) -> Case:
    from ..check import Case, facts_of
    from ..stores import engine_of, open_store

    if chosen.app is None:
        why = "neither --app, REDRIVE_APP nor redrive.toml names it"
        raise Failure("which app is meant?", why, f"{program()} policy check --app tasks:app", USAGE)
    app = load_app(chosen.app, chosen.folder)
    if not with_store:
        return Case(app, assume, engine="" if app.url is None else engine_of(app.url))
    require(chosen.url)
    store = open_store(chosen.url)
    try:
        return Case(app, assume, facts_of(app, store, chosen.url))
    finally:
        store.close()


def _celery_case(spec: str, folder: str | None, assume: Assumptions) -> Case:
    from ..check import CeleryCase

    try:
        _, app = load_object(spec, folder)
    except Failure as failure:
        if failure.next != f"{program()} init":  # which makes no app of Celery
            raise
        raise Failure(failure.what, failure.why, f"{program()} policy check --help", USAGE) from None
    if not hasattr(app, "conf") or not hasattr(app, "tasks"):
        next = f"{program()} policy check --celery proj.celery:app"
        raise Failure(f"'{spec}' is no app of Celery", f"it is of type {type(app).__name__}", next, USAGE)
    return CeleryCase(app, assume)


def _rates(texts: tuple[str, ...]) -> dict[str, float]:
    from ..flow.limits import read_rate

    pairs = [text.rpartition("=")[::2] for text in texts]
    try:
        return {task: read_rate(rate, "--rate") for task, rate in pairs}
    except ConfigError as error:
        raise Failure(str(error), "the check needs it", f"{program()} policy check --rate 50/s", USAGE) from None


def _lines(report: CheckReport) -> Iterator[str]:
    for finding in report.findings:
        where = "" if finding.place is None else f"{finding.place.file}:{finding.place.line}: "
        yield f"{where}{finding.severity} {finding.rule}: {finding.subject}"
        yield f"  {finding.text}"
        yield f"  accepted: {finding.accepted}" if finding.accepted is not None else f"  to mend it: {finding.fix}"
    for needs, count in sorted(Counter(unknown.needs for unknown in report.unknown).items()):
        yield f"unknown ({count}): {needs}"
