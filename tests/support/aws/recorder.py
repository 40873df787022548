"""Which actions of AWS a program used on what, seen at its clients; and which ones the template grants it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import boto3

from redrive.aws.cloudformation.access import iam_actions
from redrive.aws.cloudformation.template import Settings, template
from redrive.awsapi.http import QuickCalls

PREFIX, QUEUE = "shop", "orders"
KINDS = {"": "queue", "-dlq": "dlq", "-poison": "poison", "-work": "work"}
Used = set[tuple[str, str]]  # what was acted on, and the IAM action


@contextmanager
def recorded(*, fifo: bool = False) -> Iterator[Used]:
    """All that boto3 clients call that are made within the block, and what is called beside them."""
    used: Used = set()

    def add(service: str, name: str, params: dict[str, Any]) -> None:
        actions = iam_actions(service, name, params)
        used.update((on, action) for on in _targets(params, fifo) for action in actions)

    def note(params: dict[str, Any], model: Any, **_: Any) -> None:
        add(model.service_model.service_name, model.name, params)

    make = boto3.session.Session.client

    def client(session: Any, *given: Any, **words: Any) -> Any:
        found = make(session, *given, **words)
        found.meta.events.register_first("provide-client-params.*.*", note)
        return found

    call = QuickCalls.call

    def quick(calls: QuickCalls, action: str, params: dict[str, Any]) -> Any:
        add("sqs", action, params)
        return call(calls, action, params)

    with patch.object(boto3.session.Session, "client", client), patch.object(QuickCalls, "call", quick):
        yield used


def _targets(params: dict[str, Any], fifo: bool) -> set[str]:
    """What a call acts on, as the table of access calls it; anything else as it is."""
    keys = ("QueueUrl", "QueueName", "SourceArn")  # where a move task leads, SQS sends in the caller's name
    found = {re.split("[/:]", str(params[key]))[-1] for key in keys if key in params}
    kinds = {_kind_of(name, fifo) for name in found}
    if {"TableName", "RequestItems", "TransactItems"} & params.keys():
        kinds.add("cells")
    kinds |= {
        kind
        for key, kind in {"TopicArn": "topic", "taskToken": "machine", "TaskHandle": "dlq"}.items()
        if key in params
    }
    return kinds or {f"? {sorted(params)}"}


def _kind_of(name: str, fifo: bool) -> str:
    if fifo and name == f"{PREFIX}-{QUEUE}":
        return "plain"
    return KINDS.get(name.removesuffix(".fifo").removeprefix(f"{PREFIX}-{QUEUE}"), name)


def granted(logical: str, **settings: Any) -> Used:
    """What the template's role or policy of this logical name allows, beside writing its log."""
    resources = template(Settings(prefix=PREFIX, queues=(QUEUE,), machine=True, **settings))["Resources"]
    properties = resources[logical]["Properties"]
    policy = properties.get("PolicyDocument") or properties["Policies"][0]["PolicyDocument"]
    found: Used = set()
    for statement in policy["Statement"]:
        if "Fn::If" in statement or statement["Action"][0].startswith("logs:"):
            continue  # the stack's own key, where it has one, and the log
        resources = statement["Resource"]
        on = [_kind(one) for one in (resources if isinstance(resources, list) else [resources])]
        found |= {(kind, action) for kind in on for action in statement["Action"]}
    return found


def _kind(resource: Any) -> str:
    if ":stateMachine:" in resource.get("Fn::Sub", ""):
        return "machine"
    if resource.get("Fn::Sub", "").endswith(":${Prefix}-orders"):
        return "plain"
    name = resource["Ref"] if "Ref" in resource else resource["Fn::GetAtt"][0]
    kinds = {"Cells": "cells", "Topic": "topic", "OrdersQueue": "queue", "OrdersDlq": "dlq"}
    return kinds.get(name) or {"OrdersPoison": "poison", "OrdersWork": "work"}[name]
