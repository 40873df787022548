"""`redrive cost`: estimate what SQS bills for a volume of messages."""

from __future__ import annotations

import re
from typing import Any

import click

from ...config import settings, some_size
from ...errors import ConfigError
from ...present.commands import program
from ...present.failure import USAGE, Failure
from ..opening import output_option
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
@click.option("--messages", type=CountType(), required=True, help="messages a month, such as 10M")
@click.option("--fill", type=float, default=10.0, help="messages in a batch, 1 to 10 [10]")
@click.option(
    "--retries", type=ShareType(), default="0", help="retries for each message: 20% where a fifth fails once [0]"
)
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
@click.option("--price", type=float, help="dollars for a million requests, where they are not the list's 0.40")
@click.option("--free", is_flag=True, help="take off the account's free million")
@output_option
def cost(
    messages: int,
    fill: float,
    retries: float,
    body: int,
    pollers: int,
    poll: float,
    mode: str,
    fifo: bool,
    fair: bool,
    price: float | None,
    free: bool,
    output: str | None,
) -> None:
    """Estimate what SQS bills for a month's messages: requests by action, and dollars.

    For comparison it also shows a consumer that handles one message at a time and retries by a copy.
    """
    from ...aws.cost import bill

    given: dict[str, Any] = {
        "retries": retries, "body_bytes": body, "pollers": pollers, "poll_s": poll, "fifo": fifo, "fair": fair,
        "price": price, "free": free,
    }  # fmt: skip
    try:
        ours = bill(messages, fill=fill, requeue=mode == "requeue", **given)
        naive = bill(messages, fill=1.0, requeue=True, **given)
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


def _grouped(value: float) -> str:
    return f"{value:,.0f}"
