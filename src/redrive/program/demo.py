"""`redrive demo`: what redrive does, in less than a minute, with proof."""

from __future__ import annotations

import random
import shlex
from typing import TYPE_CHECKING

import click

from ..cli.terminal.stderr import note
from ..present.commands import program
from ..present.failure import DONE, FAILED, INTERRUPTED, Failure
from ..redact import redact
from ..system import need_posix

if TYPE_CHECKING:
    from ..demo.run import PagesOf


@click.command()
@click.option("--seed", type=click.IntRange(0), help="repeat the run that printed this seed (default: a new one)")
@click.option("--keep", is_flag=True, help="keep the store and the logs, and say where they are")
@click.option(
    "--url",
    metavar="URL",
    help="use this store, not SQS; its contents stay (default: an SQLite file of its own)",
)
@click.option("--web", is_flag=True, help="slower, with web pages, on which you redrive at the end")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="the report, or its figures")
def demo(seed: int | None, keep: bool, url: str | None, web: bool, output: str) -> int:
    """Deliver 329 real webhooks to an endpoint that misbehaves, and prove that none is lost.

    The endpoint runs on this machine. It throttles, fails, answers too late, drops connections and goes down for
    seconds; which event meets what is drawn from the seed. Then its own log is joined with the store by another
    process. The dead events are planned for a redrive, which is tried while the endpoint is still broken: its canary
    fails and the redrive stops itself. Then the endpoint is fixed, the same is done again, and the ledger is checked
    once more. Last, two endpoints have the same outage: one is called without a circuit breaker, one with it, and the
    requests that each gets meanwhile are counted. It takes about 25 s.

    With --web it is slower, and you do the last part: the endpoint is fixed, and you redrive the dead messages of three
    causes on the web pages. Then the ledger is checked. After five minutes the demo redrives the rest itself.

    Exit codes: 0 the ledger balances each time, 1 it does not, 130 interrupted.
    """
    need_posix("redrive demo")
    import httpx  # noqa: F401 # imported here, to report a missing package before anything starts
    from rich.console import Console

    from ..cli.terminal.warnings import tell_warnings
    from ..demo.run import run_demo

    pages: PagesOf | None = None
    if web:
        from .demo_pages import DemoPages

        pages = DemoPages
    tell_warnings()
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    console = Console(stderr=output == "json", highlight=False)
    console.print("[bold]redrive demo[/]  329 real GitHub webhook events, one endpoint, nothing lost")
    try:
        result = run_demo(seed, console, keep=keep, url=url, pages=pages)
    except KeyboardInterrupt:
        note("interrupted")
        return INTERRUPTED
    if output == "json":
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(result)).decode())
    if not result.balanced:
        why = f"see above; --seed {seed} --keep repeats it and keeps the evidence"
        raise Failure("the ledger does not balance", why, f"{program()} demo --seed {seed} --keep", FAILED)
    console.print(f"\n[bold green]Every event is accounted for, each time.[/]  {result.took_s:g} s in all.")
    if result.folder is not None:
        console.print(f"Kept in {result.folder}: look at it with", soft_wrap=True)
        url = shlex.quote(redact(url) if url else f"sqlite:///{result.folder}/demo.db")
        console.print(f"  {program()} dlq list --url {url}", soft_wrap=True)
    else:
        console.print(f"Now your own: {program()} deliver FILE.jsonl --to https://…", soft_wrap=True)
    return DONE
