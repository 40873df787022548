"""The values that the state machine passes from one state to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ...errors import ConfigError


class PageBatch(Struct, kw_only=True):
    """Messages with one wait, by the key of their page; `step`: redrive or isolate."""

    key: str
    step: str
    wait_s: int
    count: int


class BatchResult(Struct, kw_only=True):
    """What became of a batch. `put_back`: left in the queue, as the breaker had opened, or health failed."""

    key: str
    redriven: int = 0
    isolated: int = 0
    failed: int = 0
    put_back: int = 0


class MachineState(Struct, kw_only=True):
    """What a machine knows from one state to the next; also what an execution may be started with.

    `chain`: the first execution of those that continue each other. `turns` of this execution; `checks` that found it
    held by breaker or health URL, which `open` and `why` tell, and `idle` looks that found nothing, in a row.
    `held_until_ms`: when the next one comes due of those that wait in the queue. `takeover`: begin although another
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
    """The state of an event; of a fresh execution, whatever started it, an empty one. Raises ConfigError."""
    given = event.get("state")
    try:
        return msgspec.convert(given if isinstance(given, dict) else {}, MachineState)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the state of the machine is not understood: {error}") from error
