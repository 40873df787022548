"""The re-driver of SQS dead-letter queues: what becomes of each message, at which pace, and who goes on.

The Lambda function (`run.py`) and the Step Functions machine (`aws/stepfunctions`) share all of it but the loop.
"""

from __future__ import annotations

from .action_log import log_action, log_moves
from .gate import Gate, health_of
from .pace import Known
from .run import FAN_OUT, Carried, Redriver, Work
from .settings import Settings, settings_of
from .steps import Move, Raw, Step, group_of, next_step
from .transfer import BATCH_MAX, Call, Outcome, calls, hide, hold, receive, send
from .work_queue import count, trigger_of

__all__ = [
    "BATCH_MAX", "FAN_OUT", "Call", "Carried", "Gate", "Known", "Move", "Outcome", "Raw", "Redriver", "Settings",
    "Step", "Work", "calls", "count", "group_of", "health_of", "hide", "hold", "log_action", "log_moves", "next_step",
    "receive", "send", "settings_of", "trigger_of",
]  # fmt: skip
