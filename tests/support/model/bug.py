"""A plausible bug: something wrong in the place of one function of the memory store, of `admit` or of `decide`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from redrive.message import Lane, Message
from redrive.stores.memory.tables import Tables


@dataclass(frozen=True)
class Bug:
    """`wrong` instead of `place.name`: it gets the right function first and then its arguments."""

    what: str
    place: Any
    name: str
    wrong: Callable[..., Any]

    def put_into(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right, wrong = getattr(self.place, self.name), self.wrong
        monkeypatch.setattr(self.place, self.name, lambda *args, **parts: wrong(right, *args, **parts))


class Bugs(list[Bug]):
    """Some bugs; call it to decorate a wrong function."""

    def __call__(self, place: Any, name: str, what: str) -> Callable[[Callable[..., Any]], None]:
        return lambda wrong: self.append(Bug(f"{name}: {what}", place, name, wrong))


def any_fence(tables: Tables, receipt: Any) -> Message | None:
    """The message of that receipt while it is leased at all: `Tables.held` without its fence."""
    kept = tables.kept.get(receipt.handle)
    return kept.message if kept is not None and kept.message.lane is Lane.LEASED else None
