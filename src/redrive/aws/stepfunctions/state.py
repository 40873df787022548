"""The values that the state machine passes from one state to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ...errors import ConfigError


class PageBatch(Struct, kw_only=True):
    """Messages with one wait, stored under the key of their page. `step`: redrive or isolate."""

    key: str
    step: str
    wait_s: int
    count: int


class BatchResult(Struct, kw_only=True):
    """The outcome of a batch. `put_back`: messages left in the dead-letter queue, as breaker or health required."""

    key: str
    redriven: int = 0
    isolated: int = 0
    failed: int = 0
    put_back: int = 0


class MachineState(Struct, kw_only=True):
    """The data passed between the machine's states, also the input of an execution.

    `chain`: the first of the executions that continue each other. `turns` counts this execution's; `checks` counts
    those in a row that found the breaker open or the health URL down (see `open` and `why`), `idle` those that found
    nothing. `held_until_ms`: when the next message waiting in the queue is due. `takeover`: start although another
    chain seems to work.
    """

    chain: str = ""
    takeover: bool = False
    approved: bool = False
    turns: int = 0
    checks: int = 0
    idle: int = 0
    busy: bool = False
    open: bool = False
    why: str = ""
    wait_s: int = 0
    dead: int = 0
    count: int = 0
    held_until_ms: int = 0
    redriven: int = 0
    isolated: int = 0
    failed: int = 0
    batches: list[PageBatch] = []
    results: list[BatchResult] = []


def state_of(event: Mapping[str, Any]) -> MachineState:
    """Return the state in an event; an empty one for a fresh execution. Raises ConfigError."""
    given = event.get("state")
    try:
        return msgspec.convert(given if isinstance(given, dict) else {}, MachineState)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the state of the machine is not understood: {error}") from error
