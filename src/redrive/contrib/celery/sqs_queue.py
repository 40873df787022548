"""Take messages that kombu sent to SQS. They are deleted only when they are in the app's store.

If the bridge is killed before that, SQS delivers them again after `HIDDEN_S`, and their keys make the second put a
duplicate.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from ...errors import ConfigError, Unsupported
from ...stores.sqs.client import DELETE, ENTRIES_MAX, Sqs
from ...urls import shown, split
from .source import Taken

HIDDEN_S = 120  # the visibility timeout in seconds, within which messages must be put
WAIT_S = 1  # seconds for which a receive waits for its first message
EXPECTED = "expected sqs://REGION, such as sqs://eu-central-1; credentials are found as boto3 finds them"


class SqsQueues:
    """The queues of one account and region. Their names are those of SQS, with kombu's `queue_name_prefix`."""

    def __init__(self, url: str) -> None:
        parts = split(url)
        options = dict(parts.options())
        endpoint = options.pop("endpoint", None)
        if not parts.hosts or parts.user is not None or parts.path.strip("/") or options:
            raise ConfigError(f"broker URL {shown(url)!r}: {EXPECTED}")
        self.where: str = shown(url.partition("?")[0])
        self._sqs = Sqs(parts.hosts, endpoint)
        self._urls: dict[str, str] = {}

    def take(self, queue: str, most: int) -> list[Taken]:
        """Receive at most ten messages of the queue, and hide them for HIDDEN_S."""
        received = self._sqs.call(
            "ReceiveMessage",
            QueueUrl=self._url(queue),
            MaxNumberOfMessages=min(most, ENTRIES_MAX),
            VisibilityTimeout=HIDDEN_S,
            WaitTimeSeconds=WAIT_S,
        )
        return [Taken(_envelope(each["Body"]), each["ReceiptHandle"]) for each in received.get("Messages") or ()]

    def remove(self, queue: str, taken: Sequence[Taken]) -> None:
        """Delete messages that are in the app's store; a message whose delete fails is delivered again."""
        entries = [{"Id": str(at), "ReceiptHandle": each.handle} for at, each in enumerate(taken)]
        for at in range(0, len(entries), ENTRIES_MAX):
            self._sqs.call(DELETE, QueueUrl=self._url(queue), Entries=entries[at : at + ENTRIES_MAX])

    def refuse(self, queue: str, taken: Taken) -> str:
        """Leave a message that the store refuses in its queue, where the queue's redrive policy applies; return that
        place."""
        return f"the queue {queue}"

    def take_held(self, queues: Sequence[str], older_s: float) -> int:
        raise Unsupported("SQS itself delivers again what a worker did not acknowledge; nothing needs to be taken over")

    def close(self) -> None:
        self._sqs.close()

    def _url(self, queue: str) -> str:
        if queue not in self._urls:
            self._urls[queue] = self._sqs.call("GetQueueUrl", QueueName=queue)["QueueUrl"]
        return self._urls[queue]


def _envelope(body: str) -> bytes:
    """Return the envelope in a body: kombu writes it in base64, unless `sqs_base64_encoding` is off."""
    if body.lstrip().startswith("{"):
        return body.encode()
    try:
        return base64.b64decode(body, validate=True)
    except ValueError:
        return body.encode()
