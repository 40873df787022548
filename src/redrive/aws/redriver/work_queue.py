"""The work queue of a re-driver: its messages, by which one run calls the next, and other triggers.

Without cells only one re-driver works a dead-letter queue at a time, and its work queue shows that: the one at work has
a message there, which called it or which it sent before it moved messages. A run that finds others there leaves the
work to them, and schedules a check that they did it. The used seconds of the rate are passed on in the message that
calls the next run, until all of them are past.

This is as exact as SQS's counts, which lag: two runs called at the same moment may both find themselves alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ...errors import StoreError
from ...ids import new_id
from ...policy import draw
from .pace import Known, PaceSlots, as_text, merged, of_text
from .steps import DELAY_MAX_S
from .transfer import SqsCall

GO_ON, LOOK = "go on", "look"
ALARM = "ALARM"
LOOKS = 3  # checks that find other runs before none follows; a single one may rely on a count that lags
TRIES = 3  # most attempts to send a message to the work queue
_COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")


class Said(Struct, frozen=True):
    """The content of the work-queue messages that called a re-driver. `look`: continue only if no other run does, after
    `looks` checks that found others. `slots`: the assigned seconds passed on."""

    look: bool = False
    looks: int = 0
    slots: PaceSlots = {}


NOTHING = Said()


class Others(Struct, frozen=True):
    """Other runs are in the work queue. `come`: at least one of them has not started yet."""

    come: bool


class Chain:
    """The work queue `url` of a re-driver, if it has one. Its messages carry the assigned seconds in `known`."""

    def __init__(self, call: SqsCall, url: str | None, now_ms: Callable[[], int], known: Known | None) -> None:
        self._call, self._url, self._now_ms, self._known = call, url, now_ms, known

    def others(self, own: int) -> Others | None:
        """Return the other runs in the work queue, if any; `own` of its messages are this run's. Raises StoreError."""
        if self._url is None:
            return None
        seen, held, delayed = count(self._call, self._url)
        return Others(seen + delayed > 0) if seen + held + delayed > own else None

    def call_another(self, delay_s: int, why: str, word: str = GO_ON, looks: int = 0) -> None:
        """Let another run be called in `delay_s` seconds, if there is a work queue. Raises StoreError."""
        if self._url is None:
            return
        given = self._known.to_come(self._now_ms() // 1000) if self._known is not None and word == GO_ON else {}
        entry: dict[str, Any] = {"Id": "0", "MessageBody": body(word, why, looks, given)}
        if delay_s:
            entry["DelaySeconds"] = min(delay_s, DELAY_MAX_S)
        failed: Sequence[Any] = ()
        for _ in range(TRIES):
            failed = self._call("SendMessageBatch", QueueUrl=self._url, Entries=[entry]).get("Failed") or ()
            if not failed:
                return
        said = f"{failed[0].get('Code')} {failed[0].get('Message')}"
        raise StoreError(f"the work queue {self._url} took no message: {said}")

    def some_s(self, least_s: int) -> int:
        """Return random seconds from `least_s` up to twice that, so that two runs do not meet again and again."""
        return least_s + int(draw(new_id(self._now_ms()), 0, 0) * least_s)


def count(call: SqsCall, url: str) -> tuple[int, int, int]:
    """Return the numbers of visible, held and delayed messages of a queue. Raises StoreError."""
    counts = call("GetQueueAttributes", QueueUrl=url, AttributeNames=list(_COUNTS))["Attributes"]
    seen, held, delayed = (int(counts.get(name, 0)) for name in _COUNTS)
    return seen, held, delayed


class _TriggerBody(Struct):
    redrive: str = ""
    looks: int = 0
    slots: str = ""


def body(word: str, why: str, looks: int, given: PaceSlots) -> str:
    """Return the text of a work-queue message: the word GO_ON or LOOK, and data for the next run."""
    more = ({"looks": looks} if looks else {}) | ({"slots": as_text(given)} if given else {})
    return json.dumps({"redrive": word, "why": why, **more})


def said(texts: Sequence[str]) -> Said:
    """Merge the texts of several work-queue messages into one `Said`. Never raises: an invalid text counts as GO_ON."""
    markers = [_read(text) for text in texts]
    known: PaceSlots = {}
    for each in markers:
        known = merged(known, of_text(each.slots))
    look = bool(markers) and all(each.redrive == LOOK for each in markers)
    return Said(look, max((each.looks for each in markers), default=0), known)


def _read(text: str) -> _TriggerBody:
    try:
        return msgspec.json.decode(text, type=_TriggerBody)
    except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError):
        return _TriggerBody()


# -- what called it


class Trigger(Struct, frozen=True):
    """The trigger of a run. `acts`: messages are to be moved, unlike at the end of an alarm. `work`: the trigger came
    from the work queue, with `said`."""

    what: str
    acts: bool = True
    work: bool = False
    said: Said = NOTHING


def trigger_of(event: Any) -> Trigger:
    """Read the trigger from an event. Never raises: an unknown event is a call, which costs little if none is dead."""
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
        if all(alarm is not None for alarm in alarms):  # the work queue subscribes to the alarm's topic
            acts = any(alarm == ALARM for alarm in alarms)
            return Trigger("alarm, by the work queue", acts=acts, work=True, said=Said(look=True))
        texts = [_at(record, "body") for record in records if isinstance(record, Mapping)]
        return Trigger("the work queue", work=True, said=said(texts))
    states = [_alarm(_at(record, "Sns", "Message")) for record in records if isinstance(record, Mapping)]
    return Trigger("an alarm's notification", acts=any(state in (ALARM, None) for state in states))


def _alarm(text: Any) -> str | None:
    """Return the new state in an alarm's notification, also one inside a notification of SNS; None for other text."""
    try:
        alarm = json.loads(text)
        if isinstance(alarm, dict) and isinstance(alarm.get("Message"), str):
            alarm = json.loads(alarm["Message"])
        return str(alarm["NewStateValue"])
    except (TypeError, ValueError, KeyError, RecursionError):
        return None


def _at(value: Any, *names: str) -> str:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""
