"""What called the re-driver: an alarm, a rule or schedule of EventBridge, its own work queue, or a person."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from .chain import NOTHING, Said, said

ALARM = "ALARM"


class Trigger(Struct, frozen=True):
    """`acts`: whether it asks for anything, as an alarm that ends does not. `work`: it is the work queue's, and `said`
    what that says."""

    what: str
    acts: bool = True
    work: bool = False
    said: Said = NOTHING


def trigger_of(event: Any) -> Trigger:
    """Never raises: what is not understood is a wish to look, which costs little where nothing is dead."""
    if not isinstance(event, Mapping):
        return Trigger("a call")
    records = event.get("Records")
    if isinstance(records, list) and records and isinstance(records[0], Mapping):
        return _of_records(records)
    if event.get("source") == "aws.cloudwatch":
        state = _at(event, "detail", "state", "value")
        return Trigger(f"alarm {_at(event, 'detail', 'alarmName')}", acts=state in (ALARM, ""))
    return Trigger(str(event.get("detail-type") or "a call"))


def _of_records(records: list[Any]) -> Trigger:
    first = records[0]
    if first.get("eventSource") == "aws:sqs":
        alarms = [_alarm(record.get("body")) for record in records if isinstance(record, Mapping)]
        if all(alarm is not None for alarm in alarms):  # the topic feeds the work queue
            acts = any(alarm == ALARM for alarm in alarms)
            return Trigger("alarm, by the work queue", acts=acts, work=True, said=Said(look=True))
        texts = [_at(record, "body") for record in records if isinstance(record, Mapping)]
        return Trigger("the work queue", work=True, said=said(texts))
    states = [_alarm(_at(record, "Sns", "Message")) for record in records if isinstance(record, Mapping)]
    return Trigger("an alarm's notification", acts=any(state in (ALARM, None) for state in states))


def _alarm(text: Any) -> str | None:
    """The new state that an alarm's notification tells of, also inside a notification of SNS; None for other text."""
    try:
        told = json.loads(text)
        if isinstance(told, dict) and isinstance(told.get("Message"), str):
            told = json.loads(told["Message"])
        return str(told["NewStateValue"])
    except (TypeError, ValueError, KeyError, RecursionError):
        return None


def _at(value: Any, *names: str) -> str:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""
