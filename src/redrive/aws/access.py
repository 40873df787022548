"""Who may call what: the IAM actions of each role, by what they act on. The template's policies are made of this table,
and a test holds it to the calls that were really made: no more, no less.

What a role acts on: `queue`, `dlq`, `poison`, `work` (SQS queues of one redrive queue), `topic`, `cells` (the table).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Grants = Mapping[str, Sequence[str]]  # actions by what they act on

_SEND = "sqs:SendMessage"
_DRAIN = ("sqs:ReceiveMessage", "sqs:DeleteMessage")
_COUNT = "sqs:GetQueueAttributes"
_FIND = "sqs:GetQueueUrl"
_HIDE = "sqs:ChangeMessageVisibility"
_READ_CELLS = ("dynamodb:GetItem", "dynamodb:BatchGetItem")
_SWAP_CELLS = (*_READ_CELLS, "dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem")

GRANTS: dict[str, Grants] = {
    # `redrive worker` on sqs://, with cells in the table and dead letters in the SQS queues.
    "worker": {
        "queue": (_FIND, _COUNT, *_DRAIN, _SEND, _HIDE),
        "dlq": (_FIND, _SEND),
        "poison": (_FIND, _SEND),
        "cells": _SWAP_CELLS,
    },
    # Programs that enqueue, or publish to the topic.
    "producer": {"queue": (_FIND, _SEND), "topic": ("sns:Publish",)},
    # `redrive dlq ingest` and redrives out of a triage store.
    "triage": {"dlq": (_FIND, _COUNT, *_DRAIN), "poison": (_FIND, _COUNT, *_DRAIN), "queue": (_FIND, _SEND)},
    # The re-driver Lambda. Lambda itself drains the work queue, in its name.
    "redriver": {
        "dlq": (_COUNT, *_DRAIN),
        "queue": (_SEND,),
        "poison": (_SEND,),
        "work": (_COUNT, _SEND, *_DRAIN),
    },
}
FIFO_GRANTS: dict[str, Grants] = {"redriver": {"dlq": (_HIDE,)}}  # on FIFO queues moreover
DEPENDENCY_GRANTS: dict[str, Grants] = {"redriver": {"cells": _READ_CELLS}}  # where a breaker is looked at, moreover
EVENT_SOURCE = (_COUNT, *_DRAIN)  # what Lambda needs of a queue that it polls for a function, by AWS's documentation
_OF_BATCH = {"SendMessageBatch": _SEND, "DeleteMessageBatch": _DRAIN[1], "ChangeMessageVisibilityBatch": _HIDE}
_OF_WRITE = {"Put": "PutItem", "Update": "UpdateItem", "Delete": "DeleteItem", "ConditionCheck": "ConditionCheckItem"}


def iam_actions(service: str, call: str, parameters: Mapping[str, Any]) -> set[str]:
    """The IAM actions that a call of the API needs. Batches and transactions go by the actions of their parts.

    >>> sorted(iam_actions("sqs", "SendMessageBatch", {}))
    ['sqs:SendMessage']
    """
    if service == "sqs":
        return {_OF_BATCH.get(call, f"sqs:{call}")}
    if call == "TransactWriteItems":
        return {f"{service}:{_OF_WRITE[kind]}" for item in parameters["TransactItems"] for kind in item}
    return {f"{service}:{call}"}


def grants(role: str, *, fifo: bool = False) -> dict[str, tuple[str, ...]]:
    """What a role is granted, on standard or on FIFO queues."""
    found = {on: tuple(actions) for on, actions in GRANTS[role].items()}
    for on, actions in (FIFO_GRANTS.get(role, {}) if fifo else {}).items():
        found[on] = (*found.get(on, ()), *actions)
    return found
