"""Find the enqueued messages that a test expects, and explain why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ...codec import Codec
from ...duration import show
from .records import Enqueued, call

SHOWN_MAX = 20  # messages that the text of a failed assertion lists


class ExpectedMessage(Struct, frozen=True):
    """The message that a test expects. Arguments that `args` lacks, and options that are None, match any value."""

    task: str
    args: Mapping[str, Any]
    options: Mapping[str, Any]  # the names are delay_s, queue, key and group

    def differences(self, message: Enqueued) -> list[str]:
        """Return how the message differs from the expected one, as texts; empty if it matches."""
        pairs = [(name, message.args.get(name, "nothing"), value) for name, value in self.args.items()]
        pairs += [(name, getattr(message, name), value) for name, value in self.options.items() if value is not None]
        return [_difference(name, had, wanted) for name, had, wanted in pairs if not wanted == had]  # noqa: SIM201

    def __str__(self) -> str:
        options = {name: value for name, value in self.options.items() if value is not None}
        parts = [_option(name, value) for name, value in options.items()]
        return call(self.task, self.args) + (f" with {', '.join(parts)}" if parts else "")


def named_arguments(codec: Codec, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given arguments of a call by name; any may be missing. Raises TypeError for one that the handler does
    not take."""
    try:
        return dict(codec.signature.bind_partial(*args, **kwargs).arguments)
    except TypeError as error:
        raise TypeError(f"task {codec.name!r}: {error}; it takes {codec.signature}") from None


def complaint(wanted: ExpectedMessage, times: int | None, enqueued: Sequence[Enqueued]) -> str | None:
    """Return the text of a failed assertion that `wanted` was enqueued `times` times; None if it holds."""
    of_task = [message for message in enqueued if message.task == wanted.task]
    matching = [message for message in of_task if not wanted.differences(message)]
    if (matching and times is None) or len(matching) == times:
        return None
    if matching:
        expected = "none" if times == 0 else f"{times}"
        return f"{wanted} was enqueued {len(matching)} times, expected {expected}:\n{_list(matching)}"
    head = f"{wanted} was not enqueued" + (f", expected {times} times." if times else ".")
    if not enqueued:
        return f"{head}\nNothing was."
    near = sorted(of_task, key=lambda message: len(wanted.differences(message)))
    others = [message for message in enqueued if message.task != wanted.task]
    lines = [_lines(message, wanted) for message in near] + [f"  {message!r}" for message in others]
    return f"{head}\nWhat was, the likest first:\n" + _cut(lines)


def _lines(message: Enqueued, wanted: ExpectedMessage) -> str:
    return f"  {message!r}\n      " + "; ".join(wanted.differences(message))


def _list(messages: Sequence[Enqueued]) -> str:
    return _cut([f"  {message!r}" for message in messages])


def _cut(lines: Sequence[str]) -> str:
    more = [f"  … and {len(lines) - SHOWN_MAX} more"] if len(lines) > SHOWN_MAX else []
    return "\n".join([*lines[:SHOWN_MAX], *more])


def _difference(name: str, value: Any, wanted: Any) -> str:
    if name == "delay_s":
        return f"delay is {show(value)}, expected {show(wanted)}"
    return f"{name} is {value!r}, expected {wanted!r}"


def _option(name: str, value: Any) -> str:
    return f"delay {show(value)}" if name == "delay_s" else f"{name} {value!r}"
