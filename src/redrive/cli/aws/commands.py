"""`redrive aws`: write the infrastructure of a deployment on AWS."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...aws.bundle import MACHINES, RUNTIMES
from ...aws.bundle import package as packaged
from ...aws.cloudformation import INLINE_MAX, PARTITIONS, PROFILES, Settings, text
from ...aws.cloudformation import template as made
from ...aws.sns import SCOPES
from ...errors import ConfigError
from ...files import output
from ...present.commands import program
from ...present.failure import USAGE, Failure
from ..subcommands import Subcommands
from ..terminal.stderr import note


@click.group(cls=Subcommands)
def aws() -> None:
    """Write the infrastructure of a deployment on AWS: its template, and the zip of its Lambdas. Never calls AWS."""


@aws.command()
@click.option(
    "--prefix",
    default="redrive",
    envvar="REDRIVE_AWS_PREFIX",
    help="the prefix of queue names, as in sqs://REGION/PREFIX [redrive] [REDRIVE_AWS_PREFIX]",
)
@click.option("-q", "--queue", "queues", multiple=True, metavar="NAME", help="a queue; any number of them [default]")
@click.option(
    "--profile",
    type=click.Choice(tuple(PROFILES)),
    default="standard",
    envvar="REDRIVE_AWS_PROFILE",
    help="defaults of the template's parameters [standard] [REDRIVE_AWS_PROFILE]",
)
@click.option("--fifo", is_flag=True, help="FIFO queues and a FIFO topic")
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="QUEUE=JSON",
    help="the SNS filter policy of a queue (default: attribute queue is its name)",
)
@click.option(
    "--filter-scope",
    type=click.Choice(tuple(SCOPES)),
    default="attributes",
    help="what --filter applies to [attributes]",
)
@click.option("--topic", default="events", metavar="NAME", help="the topic, after the prefix [events]")
@click.option(
    "--keep/--no-keep", default=None, help="queues and table outlive the stack (default: of profile critical only)"
)
@click.option("--state-machine", "machine", is_flag=True, help="a state machine that can send dead messages back, too")
@click.option("--approval", is_flag=True, help="the state machine asks a person before it moves messages")
@click.option(
    "--partition",
    type=click.Choice(PARTITIONS),
    default=PARTITIONS[0],
    help="the partition of AWS, for China and GovCloud [aws]",
)
@click.option("--consumers", type=int, default=50, metavar="N", help="invocations of your Lambda at once, at most [50]")
@click.option("--format", "form", type=click.Choice(("yaml", "json")), default="yaml", help="of the template [yaml]")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="where to [stdout]")
def template(
    prefix: str,
    queues: Sequence[str],
    profile: str,
    fifo: bool,
    filters: Sequence[str],
    filter_scope: str,
    topic: str,
    keep: bool | None,
    machine: bool,
    approval: bool,
    partition: str,
    consumers: int,
    form: str,
    out: Path | None,
) -> None:
    """Write a CloudFormation template: queues with dead-letter and poison queues, topic, table of cells, alarms,
    dashboard, re-driver, policies.

    Its parameters have descriptions, and defaults from --profile. It creates Lambdas only if CodeBucket is given.
    """
    settings = Settings(
        prefix=prefix,
        queues=tuple(queues) or ("default",),
        profile=profile,
        fifo=fifo,
        filters=dict(_filter(text) for text in filters),
        filter_scope=filter_scope,
        topic=topic,
        keep=keep,
        machine=machine,
        approval=approval,
        partition=partition,
        consumers=consumers,
    )
    written = text(made(settings), form)
    if out is None:
        click.echo(written, nl=False)
    else:
        _write(out, written)
    if len(written.encode()) > INLINE_MAX:
        note(f"it has {len(written.encode()):,} bytes: deploy it through a bucket (aws … --s3-bucket NAME)")


@aws.command()
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.zip")
@click.option(
    "--python", type=click.Choice(RUNTIMES), default=RUNTIMES[-1], help="the Python version of the functions [3.13]"
)
@click.option("--architecture", type=click.Choice(tuple(MACHINES)), default="arm64", help="[arm64]")
@click.option(
    "--add",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="a module or package of yours, with the handler; any number of them",
)
def package(out: Path, python: str, architecture: str, add: Sequence[Path]) -> None:
    """Write the zip of a Lambda function: redrive, msgspec and your code. boto3 is on Lambda already.

    The defaults are those of the template's parameters Runtime and Architecture. pip downloads compiled packages
    if those of this machine do not fit.
    """
    try:
        written = packaged(out, python=python, architecture=architecture, add=add)
    except (ConfigError, OSError) as error:
        next = f"{program()} aws package FILE.zip --python 3.13 --architecture x86_64"
        raise Failure(f"{out} was not written", str(error), next) from error
    size = f"{written.zip_bytes:,} bytes; {written.files} files of {written.bytes:,} bytes"
    note(f"{out}: {size}, for Python {python} on {architecture}")


def _filter(given: str) -> tuple[str, dict[str, Any]]:
    queue, equals, policy = given.partition("=")
    try:
        value = json.loads(policy)
    except ValueError:
        value = None
    if not equals or not isinstance(value, dict):
        next = f"""{program()} aws template -q orders --filter 'orders={{"queue": ["orders"]}}'"""
        raise Failure(f"--filter {given}: it is not QUEUE=JSON", "an SNS filter policy is a JSON object", next, USAGE)
    return queue, value


def _write(path: Path, written: str) -> None:
    try:
        with output(path, public=True) as out:
            out.write(written.encode())
    except OSError as error:
        raise Failure(f"{path} cannot be written", str(error), f"{program()} aws template --out FILE") from error
