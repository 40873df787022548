"""What SQS says of a queue, for the rules of `preflight.py`: a few calls that change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ...errors import ConfigError, StoreError
from ...message import Lane
from ...store import Work
from .client import Sqs
from .preflight import QueueFacts, redrive_policy, refusals, sent_by_sns, warnings
from .queues import Place, Queues
from .url import SqsUrl

# Each is refused for what it asks, if it is not refused for who asks. SQS may look at the first before the second:
# then a missing right is not found here, but never is a right that is there told missing.
_PROBES: tuple[tuple[str, dict[str, object]], ...] = (
    ("SendMessageBatch", {"Entries": [{"Id": "probe", "MessageBody": "\x00"}]}),
    ("ReceiveMessage", {"MaxNumberOfMessages": 11}),
    ("DeleteMessageBatch", {"Entries": [{"Id": "probe", "ReceiptHandle": "none"}]}),
    ("ChangeMessageVisibilityBatch", {"Entries": [{"Id": "probe", "ReceiptHandle": "none", "VisibilityTimeout": 0}]}),
)


class Looks:
    """Looks at queues of one prefix. `cells`, `triage`: whether the store has them."""

    def __init__(self, sqs: Sqs, at: SqsUrl, places: Queues, *, cells: bool, triage: bool) -> None:
        self._sqs, self._at, self._places = sqs, at, places
        self._cells, self._triage = cells, triage

    def vet(self, works: Sequence[Work], *, advise: bool = False, function_s: float | None = None) -> list[str]:
        """As `Work` says of a store's `vet`. `function_s`: the timeout of a Lambda function that does them. Raises
        ConfigError for a queue that is not there, StoreUnavailable."""
        found: list[str] = []
        for queue in dict.fromkeys(work.queue for work in works):
            facts = self.facts(queue, probe=advise)
            facts = facts if function_s is None else replace(facts, function_s=function_s)
            found += refusals(facts, works)
            found += warnings(facts, works) if advise else []
        return found

    def doctor(self) -> list[str]:
        """What is doubtful about every queue there is, whatever works it."""
        return [line for queue in self._places.names() for line in warnings(self.facts(queue, probe=True))]

    def facts(self, queue: str, *, probe: bool = False) -> QueueFacts:
        """What is known of the queue; with `probe` also who else uses its dead-letter queue, and missing rights."""
        place = self._places.of(queue)
        attributes = self._places.attributes(place.url)
        dead, receives_max = redrive_policy(attributes)
        facts = QueueFacts(
            queue=queue,
            name=place.name,
            mode=self._at.mode.value,
            fifo=place.fifo,
            cells=self._cells,
            triage=self._triage,
            receives_max=receives_max,
            retention_s=int(attributes["MessageRetentionPeriod"]),
            visibility_s=int(attributes["VisibilityTimeout"]),
            poll_s=self._at.poll_s,
            in_flight=int(attributes.get("ApproximateNumberOfMessagesNotVisible", 0)),
            dead=dead,
            dead_found=self._triage or self._rests(queue, Lane.DEAD),
            poison_found=self._triage or self._rests(queue, Lane.QUARANTINE),
        )
        return self._probed(facts, place) if probe else facts

    def _rests(self, queue: str, lane: Lane) -> bool:
        try:
            self._places.resting(queue, lane)
        except ConfigError:
            return False
        return True

    def _probed(self, facts: QueueFacts, place: Place) -> QueueFacts:
        facts = replace(facts, denied=tuple(self._denied(place)))
        if facts.dead is None:
            return facts
        try:
            url = str(self._sqs.call("GetQueueUrl", QueueName=facts.dead)["QueueUrl"])
            attributes = self._places.attributes(url)
        except (ConfigError, StoreError):  # of another account, perhaps
            return facts
        return replace(
            facts,
            dead_retention_s=int(attributes["MessageRetentionPeriod"]),
            dead_from_sns=sent_by_sns(attributes),
            dead_sources=tuple(name for name in self._sources(url) if name != place.name),
        )

    def _sources(self, url: str) -> list[str]:
        try:
            answer = self._sqs.call("ListDeadLetterSourceQueues", QueueUrl=url)
        except (ConfigError, StoreError):
            return []
        return [source.rpartition("/")[2] for source in answer.get("queueUrls") or ()]

    def _denied(self, place: Place) -> Iterator[str]:
        for action, parameters in _PROBES:
            try:
                self._sqs.call(action, QueueUrl=place.url, **parameters)
            except ConfigError:  # of rights: the queue is there
                yield action.removesuffix("Batch")
            except StoreError:
                continue
