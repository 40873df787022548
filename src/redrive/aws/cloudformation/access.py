"""The IAM actions of each role, by resource. The template's policies are made from this table, and a test compares it
with the calls that are actually made.

The resources are `queue`, `dlq`, `poison`, `work` (SQS queues of one redrive queue), `topic`, `cells` (the table).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Grants = Mapping[str, Sequence[str]]  # actions by resource

_SEND = "sqs:SendMessage"
_DRAIN = ("sqs:ReceiveMessage", "sqs:DeleteMessage")
_COUNT = "sqs:GetQueueAttributes"
_FIND = "sqs:GetQueueUrl"
_HIDE = "sqs:ChangeMessageVisibility"
_MOVE = (
    "sqs:ListDeadLetterSourceQueues",
    "sqs:StartMessageMoveTask",
    "sqs:ListMessageMoveTasks",
    "sqs:CancelMessageMoveTask",
)
_PUBLISH = "sns:Publish"
_READ, _SWAP = "dynamodb:BatchGetItem", "dynamodb:PutItem"

GRANTS: dict[str, Grants] = {
    # `redrive worker` on sqs://, with cells in the table and dead letters in the SQS queues.
    "worker": {
        "queue": (_FIND, _COUNT, *_DRAIN, _SEND, _HIDE),
        "dlq": (_FIND, _SEND),
        "poison": (_FIND, _SEND),
        "cells": (_READ, _SWAP),
    },
    # Programs that enqueue, or publish to the topic.
    "producer": {"queue": (_FIND, _SEND), "topic": (_PUBLISH,)},
    # `redrive dlq ingest`, redrives out of a triage store, and `redrive dlq move`.
    "triage": {
        "dlq": (_FIND, _COUNT, *_DRAIN, _HIDE, *_MOVE),
        "poison": (_FIND, *_DRAIN, _HIDE),
        "queue": (_FIND, _COUNT, _SEND),
    },
    # For the re-driver Lambda.
    "redriver": {
        "dlq": (_COUNT, *_DRAIN),
        "queue": (_SEND,),
        "poison": (_SEND,),
        "work": (_COUNT, _SEND),
        "cells": (_READ, _SWAP),
    },
    # For the functions of the state machine's states.
    "check_breaker": {"cells": (_READ, _SWAP)},
    "fetch": {"dlq": (_COUNT, _DRAIN[0], _HIDE), "cells": (_READ, _SWAP)},
    "redrive": {"dlq": (_DRAIN[1], _HIDE), "queue": (_SEND,), "poison": (_SEND,), "cells": (_READ, _SWAP)},
    "isolate": {"dlq": (_DRAIN[1], _HIDE), "poison": (_SEND,), "cells": (_READ, _SWAP)},
}
# Additional actions on FIFO queues. `plain`: the name without .fifo, which programs look up too; no queue has it.
FIFO_GRANTS: dict[str, Grants] = {
    "redriver": {"dlq": (_HIDE,)},
    **{role: {"plain": (_FIND,)} for role in ("worker", "producer", "triage")},
}
APPROVAL_GRANTS: dict[str, Grants] = {"check_breaker": {"dlq": (_COUNT,)}}  # additional actions, if a person approves
EVENT_SOURCE = (_COUNT, *_DRAIN)  # actions that Lambda needs on a queue that it polls (AWS documentation)
_PREFIXES = {"stepfunctions": "states"}
_OF_BATCH = {
    "SendMessageBatch": _SEND,
    "DeleteMessageBatch": _DRAIN[1],
    "ChangeMessageVisibilityBatch": _HIDE,
    "PublishBatch": _PUBLISH,
}
_OF_WRITE = {"Put": "PutItem", "Update": "UpdateItem", "Delete": "DeleteItem", "ConditionCheck": "ConditionCheckItem"}


def iam_actions(service: str, call: str, parameters: Mapping[str, Any]) -> set[str]:
    """Return the IAM actions that this API call needs. A batch or a transaction needs the actions of its parts.

    >>> sorted(iam_actions("sqs", "SendMessageBatch", {}))
    ['sqs:SendMessage']
    """
    if call in _OF_BATCH:
        return {_OF_BATCH[call]}
    if call == "TransactWriteItems":
        return {f"{service}:{_OF_WRITE[kind]}" for item in parameters["TransactItems"] for kind in item}
    return {f"{_PREFIXES.get(service, service)}:{call}"}


def grants(role: str, *, fifo: bool = False, approval: bool = False) -> dict[str, tuple[str, ...]]:
    """Return the actions that a role needs, by resource. `fifo`: for FIFO queues. `approval`: a person approves."""
    actions_on = {on: tuple(actions) for on, actions in GRANTS[role].items()}
    for more, holds in ((FIFO_GRANTS, fifo), (APPROVAL_GRANTS, approval)):
        for on, actions in (more.get(role, {}) if holds else {}).items():
            actions_on[on] = (*actions_on.get(on, ()), *actions)
    return actions_on
