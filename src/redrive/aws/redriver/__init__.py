"""The re-driver of SQS dead-letter queues: the step of each message, the rate, and the continuation.

The Lambda function (`run.py`) and the Step Functions machine (`aws/stepfunctions`) share all of it except the loop.
"""

from __future__ import annotations

from .action_log import log_action, log_moves
from .gate import Gate, health_of
from .pace import Known
from .run import FAN_OUT, Continuation, Redriver, RedriverReport
from .settings import RedriverSettings, settings_of
from .steps import MoveStep, Raw, RedriveStep, group_of, next_step
from .transfer import BATCH_MAX, MoveOutcome, SqsCall, calls, hide, hold, receive, send
from .work_queue import count, trigger_of

__all__ = [
    "BATCH_MAX",
    "FAN_OUT",
    "Continuation",
    "Gate",
    "Known",
    "MoveOutcome",
    "MoveStep",
    "Raw",
    "RedriveStep",
    "Redriver",
    "RedriverReport",
    "RedriverSettings",
    "SqsCall",
    "calls",
    "count",
    "group_of",
    "health_of",
    "hide",
    "hold",
    "log_action",
    "log_moves",
    "next_step",
    "receive",
    "send",
    "settings_of",
    "trigger_of",
]  # fmt: skip
