"""The Lambda functions that the state machine's states call. Deploy them as `redrive.aws.stepfunctions.NAME`.

Their environment:

- REDRIVE_DLQ_URL, REDRIVE_QUEUE_URL, REDRIVE_POISON_URL: the dead-letter queue, the queue that its messages came from,
  the poison queue.
- REDRIVE_TABLE, the DynamoDB table of the cells, or REDRIVE_CELLS, their URL. One of them is needed.
- REDRIVE_DEPENDENCY: NAME, or NAME/KEY, whose breaker is checked; optional.
- REDRIVE_METRICS_NAMESPACE: namespace of SuccessfulRedrives, PoisonPillsIsolated and RedriveFailures, written as EMF.
- The variables of `Machine.environment`: REDRIVE_BASE_S, REDRIVE_MAX_REDRIVES and so on.

`approve` needs no environment. Each function should be given 60 seconds at least, and no more than 90.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from ...awsapi import client as aws
from ...errors import ConfigError
from ...stores import open_cells
from ..redriver import calls, log_action, settings_of
from .machine import Machine, definition
from .tasks import Tasks

__all__ = ["Machine", "approve", "check_breaker", "definition", "fetch", "isolate", "redrive"]

_OVER = ("TaskTimedOut", "TaskDoesNotExist", "InvalidToken")


def check_breaker(event: Mapping[str, Any], context: object) -> Any:
    """Begin a turn of the state machine. In the returned state, `open` says that the breaker is open, with `wait_s`
    until the next check, and `busy` that another execution is at work. Raises ConfigError, StoreUnavailable."""
    state = _tasks().check_breaker(event)
    log_action("check_breaker", _now_ms(), open=state.open, busy=state.busy, wait_s=state.wait_s, why=state.why)
    return msgspec.to_builtins(state)


def fetch(event: Mapping[str, Any], context: object) -> Any:
    """Receive a page of dead messages and hide them for the length of their waits; `batches` has their steps. Raises
    ConfigError, StoreUnavailable."""
    state = _tasks().fetch(event)
    messages = sum(batch.count for batch in state.batches)
    log_action("fetch", _now_ms(), messages=messages, batches=state.count, wait_s=state.wait_s)
    return msgspec.to_builtins(state)


def redrive(event: Mapping[str, Any], context: object) -> Any:
    """Send a batch back to its queue, then delete it from the dead-letter queue. Messages that fail stay there and are
    counted. Raises ConfigError, StoreUnavailable; then nothing was sent."""
    return msgspec.to_builtins(_tasks().redrive(event))


def isolate(event: Mapping[str, Any], context: object) -> Any:
    """Send a batch to the poison queue, then delete it from the dead-letter queue. Errors as in `redrive`."""
    return msgspec.to_builtins(_tasks().isolate(event))


def approve(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Answer an execution that asks for approval: {"token": …, "actor": who, "reason": why, "approved": true}.

    `accepted` is False if the execution no longer waits. The execution's history has the answer. Raises ConfigError if
    the token, actor or reason is missing.
    """
    token, actor, reason = (event.get(name) for name in ("token", "actor", "reason"))
    approved = event.get("approved", True)
    if not (token and actor and reason and isinstance(approved, bool)):
        raise ConfigError("an approval names its token, actor and reason, and approved as true or false")
    answer = {"approved": approved, "actor": str(actor), "reason": str(reason)}
    try:
        _client("stepfunctions").send_task_success(taskToken=token, output=msgspec.json.encode(answer).decode())
    except aws.errors() as error:
        if aws.code_of(error) not in _OVER:
            raise aws.failure(error, "SendTaskSuccess") from error
        why = f"the execution waits for it no longer ({aws.code_of(error)})"
        log_action("approve", _now_ms(), **answer, accepted=False, why=why)
        return {"accepted": False, "why": why}
    log_action("approve", _now_ms(), **answer, accepted=True)
    return {"accepted": True, "approved": approved}


@functools.cache
def _client(service: str) -> Any:
    return aws.client(service, region=os.environ.get("AWS_REGION"))


@functools.cache
def _tasks() -> Tasks:
    settings = settings_of(os.environ)
    if settings.cells is None:
        raise ConfigError("REDRIVE_TABLE is not set; the state machine keeps its pages in cells: name a DynamoDB table")
    approval_s = os.environ.get("REDRIVE_APPROVAL_S", "0")
    if not (approval_s.isascii() and approval_s.isdigit()):
        raise ConfigError(f"REDRIVE_APPROVAL_S={approval_s!r}; expected a whole number of seconds")
    return Tasks(calls(_client("sqs")), open_cells(settings.cells), settings, _now_ms, int(approval_s))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
