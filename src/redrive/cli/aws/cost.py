"""`redrive cost`: estimate what SQS, and the services beside it, bill for a volume of messages."""

from __future__ import annotations

import re
from typing import Any

import click

from ...config import settings, some_size
from ...errors import ConfigError
from ...present.commands import program
from ...present.failure import USAGE, Failure
from ..opening import app_option, find, lead_on_at, output_option, url_option
from ..terminal.output import Column, Output

_SCALES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


class CountType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """An option that takes a whole number, such as 250k or 10M."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"([0-9][0-9_]*(?:\.[0-9]+)?)([kMG]?)", str(value))
        if match is None:
            self.fail(f"{value!r} is no count; expected a number such as 250000, 250k or 10M", param, ctx)
        return round(float(match[1]) * _SCALES[match[2]])


class ShareType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """An option that takes a share of one, such as 20% or 0.2."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value)
        try:
            return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            self.fail(f"{value!r} is no share; expected 20% or 0.2", param, ctx)


class SizeType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """An option that takes a number of bytes, such as 2KB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return some_size(value)
        except ValueError as error:
            self.fail(f"{error}; expected bytes, such as 2048, 2KB or 1MiB", param, ctx)


@click.command()
@click.option("--messages", type=CountType(), help="messages a month, such as 10M")
@click.option(
    "--from-history",
    "span",
    metavar="TIME",
    help="a month of messages and retries as in a past time: 'yesterday 14:00..16:00', '3h..1h' (ago)",
)
@click.option("--fill", type=float, default=10.0, help="messages in a batch, 1 to 10 [10]")
@click.option(
    "--retries", type=ShareType(), default="0", help="retries for each message: 20% if a fifth fails once [0]"
)
@click.option("--poison", type=ShareType(), default="0", help="share of the messages that fail at every attempt [0]")
@click.option("--attempts", type=click.IntRange(1), default=5, help="attempts of each message that always fails [5]")
@click.option("--body", type=SizeType(), default="1KiB", help="size of a message, attributes included [1KiB]")
@click.option("--pollers", type=click.IntRange(0), default=1, help="workers that wait for messages all month [1]")
@click.option("--poll", type=float, default=20.0, help="seconds of a long poll [20]")
@click.option(
    "--mode",
    type=click.Choice(("visibility", "requeue")),
    default="visibility",
    help="how a retry waits: hidden in its queue, or as a delayed copy [visibility]",
)
@click.option("--fifo", is_flag=True, help="a FIFO queue")
@click.option("--fair", is_flag=True, help="messages with a group on a standard queue")
@click.option("--price", type=float, help="dollars for a million requests, if not 0.40 as in the price list")
@click.option("--free", is_flag=True, help="subtract the account's free million")
@click.option("--sharers", type=click.IntRange(0), default=0, help="DynamoDB: pairs of a worker and a dependency [0]")
@click.option("--lambda-ms", type=float, default=0.0, help="Lambda: milliseconds of an invocation [no Lambda]")
@click.option("--memory", type=click.IntRange(1), default=256, help="Lambda: its MB [256]")
@click.option("--blobs", type=ShareType(), default="0", help="S3: share of the messages with a large body [0]")
@click.option("--blob", type=SizeType(), default="1MB", help="S3: size of such a body [1MB]")
@click.option("--blob-days", type=float, default=14.0, help="S3: days that it is kept [14]")
@click.option("--metered", type=click.IntRange(0), default=0, help="CloudWatch: queues with metrics [0]")
@click.option("--alarms", type=click.IntRange(0), default=0, help="CloudWatch: alarms [0]")
@click.option("--loggers", type=click.IntRange(0), default=0, help="CloudWatch: processes that write metrics [0]")
@app_option
@url_option
@output_option
def cost(
    messages: int | None,
    span: str | None,
    fill: float,
    retries: float,
    poison: float,
    attempts: int,
    body: int,
    pollers: int,
    poll: float,
    mode: str,
    fifo: bool,
    fair: bool,
    price: float | None,
    free: bool,
    sharers: int,
    lambda_ms: float,
    memory: int,
    blobs: float,
    blob: int,
    blob_days: float,
    metered: int,
    alarms: int,
    loggers: int,
    app: str | None,
    url: str | None,
    output: str | None,
) -> None:
    """Estimate what SQS bills for a month's messages: requests by action, and dollars.

    For comparison it also shows a consumer that handles one message at a time and retries by a copy. Options of
    DynamoDB, Lambda, S3 or CloudWatch add their lines and the total.
    """
    from ...aws.cost import beside, bill, retries_of

    if (messages is None) == (span is None):
        why = "expected a month's messages, or a past time to take them from, and not both"
        raise Failure("--messages or --from-history", why, f"{program()} cost --help", USAGE)
    if span is not None:
        messages, retries = _as_then(span, app, url)
    assert messages is not None
    try:
        retries = retries_of(retries, poison=poison, attempts=attempts)
        given: dict[str, Any] = {
            "retries": retries, "body_bytes": body, "pollers": pollers, "poll_s": poll, "fifo": fifo, "fair": fair,
            "price": price, "free": free,
        }  # fmt: skip
        ours = bill(messages, fill=fill, requeue=mode == "requeue", **given)
        naive = bill(messages, fill=1.0, requeue=True, **given)
        lines = beside(
            messages, retries=retries, fill=fill, sharers=sharers, lambda_ms=lambda_ms, memory_mb=memory, blobs=blobs,
            blob_bytes=blob, blob_days=blob_days, metered=metered, alarms=alarms, loggers=loggers,
        )  # fmt: skip
    except ConfigError as error:
        what, _, why = str(error).partition(": ")
        raise Failure(what, why, f"{program()} cost --help", USAGE) from None
    out = Output(settings({"output": output}).output)
    rows = [
        {
            "what": name,
            "per_message": b.per_message,
            "requests": round(b.total),
            "dollars": round(b.dollars, 2),
            **_by(b),
        }
        for name, b in (("redrive", ours), ("one by one", naive))
    ]
    empty = dict.fromkeys(rows[0])
    for line in lines:
        named = {"what": f"{line.service}, {line.unit}", "requests": round(line.count, 1)}
        rows.append({**empty, **named, "dollars": round(line.dollars, 2)})
    if lines:
        total = ours.dollars + sum(line.dollars for line in lines)
        rows.append({**empty, "what": "redrive and these", "dollars": round(total, 2)})
    columns = (
        Column("what", ""),
        Column("per_message", "requests each"),
        *(Column(name, name, _grouped) for name in _ACTIONS),
        Column("requests", "billed", _grouped),
        Column("dollars", "USD a month"),
    )
    out.rows(rows, columns, id="what")


_ACTIONS = {
    "send": "SendMessage",
    "receive": "ReceiveMessage",
    "delete": "DeleteMessage",
    "change": "ChangeMessageVisibility",
    "idle": "ReceiveMessage (idle)",
}


def _by(bill: Any) -> dict[str, int]:
    return {name: round(bill.requests.get(action, 0)) for name, action in _ACTIONS.items()}


def _as_then(span: str, app: str | None, url: str | None) -> tuple[int, float]:
    """Return the messages of a month that goes on like a past time, and the retries per message."""
    from ...aws.cost import MONTH_S
    from ...simulate.past import read_past, read_span

    lead_on_at(app, url)
    opened = find(settings({"app": app, "url": url}), app_flag=app is not None, url_flag=url is not None)
    try:
        since_ms, until_ms = read_span(span, opened.store.now_ms())
        past = read_past(opened.store, opened.app, since_ms, until_ms)
    finally:
        opened.store.close()
    retries = max(0, past.calls - past.enqueued) / past.enqueued if past.enqueued else 0.0
    return round(past.enqueued * MONTH_S * 1000 / (until_ms - since_ms)), retries


def _grouped(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
