"""Check whether a queue of SQS suits the work that a worker is about to do on it.

A worker refuses to start if the queue would lose messages, move them away before their retries are over, or never
deliver any. The doctor warns of unsafe, expensive or surprising settings. Each line states both numbers and the remedy.

The rules are pure functions of `QueueFacts`; `Preflight` reads these facts with a few calls that change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ...duration import show
from ...errors import ConfigError, StoreError
from ...message import Lane
from ...store import Work
from .client import Sqs
from .queues import QueueDirectory, SqsQueue, redrive_policy
from .url import SqsUrl

DELAY_MAX_S = 900  # longest delay that SQS allows for one message
VISIBILITY_MAX_S = 43_200  # longest time for which SQS hides a message, counted from the receive
RECEIVES_MAX = 1000  # largest maxReceiveCount of a redrive policy
POLL_MAX_S = 20
LAMBDA_TIMES = 6  # AWS advises: the queue's visibility timeout is this many times the function's timeout


class QueueFacts(Struct, frozen=True, kw_only=True):
    """The facts about a queue and its dead-letter queue, from GetQueueAttributes.

    `receives_max`: maxReceiveCount, None without a redrive policy. `dead`: the dead-letter queue that the policy names,
    or, without a policy, the one that the app declares; `dead_declared`: the app's; `dead_retention_s` None:
    unreadable. `dead_sources`: other queues that send dead letters to `dead`. `denied`: API actions that were refused
    when tried. `function_s`: the timeout of the Lambda function that an event source feeds, None for a worker that
    receives by itself.
    """

    queue: str
    name: str
    mode: Literal["visibility", "requeue"] = "visibility"
    fifo: bool = False
    cells: bool = True
    triage: bool = False
    receives_max: int | None = None
    retention_s: int = 345_600
    visibility_s: int = 30
    poll_s: int = POLL_MAX_S
    in_flight: int = 0
    dead: str | None = None
    dead_declared: str | None = None
    dead_exists: bool = True
    dead_retention_s: int | None = None
    dead_sources: tuple[str, ...] = ()
    dead_from_sns: bool = False
    poison_exists: bool = True
    denied: tuple[str, ...] = ()
    function_s: float | None = None

    @property
    def where(self) -> str:
        """The text with which every line about the queue begins."""
        return f"queue {self.queue!r} ({self.name})"


def sent_by_sns(attributes: Mapping[str, str]) -> bool:
    """True if the policy of a queue lets SNS send to it: the queue may be the dead-letter queue of a subscription."""
    text = attributes.get("Policy") or "{}"
    statements = json.loads(text).get("Statement") or []
    return "sns.amazonaws.com" in json.dumps(statements) or ":sns:" in json.dumps(statements)


def refusals(facts: QueueFacts, works: Sequence[Work]) -> list[str]:
    """Return why the queue does not support those works that are on it, one line each; empty if it does."""
    mine = [work for work in works if work.queue == facts.queue]
    return [f"{facts.where}: {line}" for line in _refusals(facts, mine)]


def warnings(facts: QueueFacts, works: Sequence[Work] = ()) -> list[str]:
    """The unsafe, expensive or surprising settings of the queue, one line each, given the works that are on it."""
    mine = [work for work in works if work.queue == facts.queue]
    return [f"{facts.where}: {line}" for line in _warnings(facts, mine)]


def receives(work: Work, facts: QueueFacts) -> tuple[int, int]:
    """Return how many receives of one message the work may need, and how many of these come before it is due: a wait
    beyond 12 hours needs one for each further 12 hours, unless a copy of the message waits."""
    if facts.mode == "requeue":
        return work.crash_cap, 0
    hops = 0
    if facts.cells and work.longest_s > VISIBILITY_MAX_S:
        each = ceil(work.longest_s / VISIBILITY_MAX_S) - 1
        hops = min((work.attempts - 1) * each, int(work.horizon_s // VISIBILITY_MAX_S))
    return work.attempts + work.crash_cap + hops, hops


# -- reasons to refuse


def _refusals(facts: QueueFacts, works: Sequence[Work]) -> Iterator[str]:
    if facts.fifo and facts.mode == "requeue":
        yield (
            "mode=requeue sends a copy for each retry, which would come after the rest of its group: a FIFO queue "
            "keeps its order only with mode=visibility; set mode=visibility in the URL, or take a standard queue"
        )
    yield from _received_too_often(facts, works)
    yield from _expired(facts, works)
    yield from _without_cells(facts, works)
    if not facts.dead_exists and not facts.triage:
        dead = facts.dead_declared or facts.dead or f"{facts.name}-dlq"
        yield (
            f"its dead-letter queue {dead} does not exist, and no triage= store is named: "
            "dead letters would have nowhere to go; create it (redrive aws template, or create=true in the URL), or "
            "add &triage=postgresql://…"
        )
    if facts.function_s is not None and facts.visibility_s < facts.function_s:
        yield (
            f"its visibility timeout is {facts.visibility_s} s and the function's timeout {facts.function_s:g} s: what "
            "still runs would be delivered again; set VisibilityTimeout to "
            f"{ceil(LAMBDA_TIMES * facts.function_s)} (six timeouts) or more"
        )


def _received_too_often(facts: QueueFacts, works: Sequence[Work]) -> Iterator[str]:
    if facts.receives_max is None or not works:
        return
    worst = max(works, key=lambda work: receives(work, facts)[0])
    need, hops = receives(worst, facts)
    if facts.receives_max >= need:
        return
    if facts.mode == "requeue":
        yield (
            f"maxReceiveCount is {facts.receives_max}, and {_task(worst)} is convicted by {worst.crash_cap} crashes: "
            "SQS may take it away before; set maxReceiveCount to "
            f"{worst.crash_cap + 1} or more, or lower Poison(crashes={worst.crash_cap})"
        )
        return
    parts = f"{worst.attempts} attempts + {worst.crash_cap} crashes" + (f" + {hops} hops" if hops else "")
    raised = (
        f"set maxReceiveCount to {need} or more"
        if need <= RECEIVES_MAX
        else f"SQS allows {RECEIVES_MAX} at most, so lower max_attempts"
    )
    other = "" if facts.fifo else ", or take mode=requeue, in which each attempt is a message of its own"
    yield (
        f"maxReceiveCount is {facts.receives_max}, and in visibility mode {_task(worst)} may be received {need} times "
        f"({parts}): SQS would take it away before its policy is through; {raised}{other}"
    )


def _expired(facts: QueueFacts, works: Sequence[Work]) -> Iterator[str]:
    """Yield a line if messages can expire during retries. In requeue mode each copy starts with a full retention."""
    if not works:
        return
    held = show(facts.retention_s)
    longest = max(works, key=lambda work: work.longest_s)
    wait_s = longest.longest_s if facts.mode == "visibility" else min(longest.longest_s, DELAY_MAX_S)
    last = max(works, key=lambda work: work.horizon_s)
    if wait_s > facts.retention_s:
        yield (
            f"it keeps messages for {held}, and {_task(longest)} may wait {show(wait_s)} for its next attempt: it "
            f"would be deleted unrun; set MessageRetentionPeriod to more than {ceil(wait_s)} s (1209600, 14 days, is "
            "the most), or lower the cap of its backoff or max_retry_after"
        )
    elif facts.mode == "visibility" and last.horizon_s > facts.retention_s:
        yield (
            f"it keeps messages for {held}, and {_task(last)} may be retried for {show(last.horizon_s)}: it would be "
            f"deleted before its last attempt; set MessageRetentionPeriod to more than {ceil(last.horizon_s)} s "
            "(1209600, 14 days, is the most), or lower its max_elapsed"
        )


def _without_cells(facts: QueueFacts, works: Sequence[Work]) -> Iterator[str]:
    needing = [] if facts.cells else [work for work in works if work.needs]
    for work in needing[:1]:
        others = f" (and {len(needing) - 1} more)" if len(needing) > 1 else ""
        yield (
            f"{_task(work)}{others} has {' and '.join(work.needs)}, which all workers share, and SQS keeps no such "
            "state; add &cells=dynamodb://TABLE, or &cells= with a redis://, postgresql:// or sqlite:/// URL"
        )
    waiting = [work for work in works if work.longest_s > VISIBILITY_MAX_S]
    if facts.fifo and not facts.cells and waiting:
        yield (
            f"{_task(waiting[0])} may wait {show(waiting[0].longest_s)}, and a message of a FIFO queue can be hidden "
            "for 12h: longer waits are noted in cells; add &cells=dynamodb://TABLE, or lower the cap of its backoff"
        )


def _task(work: Work) -> str:
    return f"task {work.task!r}" if work.task else "a message"


# -- warnings of the doctor


def _warnings(facts: QueueFacts, works: Sequence[Work]) -> Iterator[str]:
    yield from _dead_letter_queue(facts)
    yield from _timing(facts, works)
    if facts.denied:
        yield (
            f"this user may not {', '.join(facts.denied)}: redrive needs sqs:{', sqs:'.join(facts.denied)} on this "
            "queue; add them to its policy (redrive aws template writes the least that is needed)"
        )
    if facts.in_flight >= 100_000:
        yield (
            f"{facts.in_flight:,} messages are in flight, and at 120,000 SQS hands out nothing more, without an error; "
            "take mode=requeue, in which what waits is not in flight"
        )


def _dead_letter_queue(facts: QueueFacts) -> Iterator[str]:
    if facts.receives_max is None:
        kept = "the triage= store" if facts.triage else facts.dead or "its -dlq queue"
        yield (
            f"it has no redrive policy: redrive sends dead letters to {kept} by itself, but what other consumers "
            "cannot handle comes back until it expires; set RedrivePolicy with a deadLetterTargetArn and a "
            "maxReceiveCount"
        )
    elif facts.dead_declared not in (None, facts.dead):
        yield (
            f"the app declares dlq={facts.dead_declared!r}, and its redrive policy leads to {facts.dead}: workers send "
            "dead letters to the one, SQS moves what it gives up to the other; let both name the same queue"
        )
    if facts.dead_retention_s is not None and facts.dead_retention_s < facts.retention_s:
        yield (
            f"its dead-letter queue {facts.dead} keeps messages for {show(facts.dead_retention_s)}, less than the "
            f"{show(facts.retention_s)} of the queue itself: SQS counts from the first send, so what it moves there "
            "late is deleted at once; set MessageRetentionPeriod of it to 1209600 (14 days)"
        )
    if facts.dead_sources or facts.dead_from_sns:
        others = ", ".join(facts.dead_sources)
        sns = "SNS" if facts.dead_from_sns else ""
        yield (
            f"its dead-letter queue {facts.dead} also takes those of {' and '.join(filter(None, (others, sns)))}: "
            "no one can tell whose they are, and "
            + ("AWS refuses to move from a queue that SNS fills" if sns else "a move task takes them all")
            + "; give each source a dead-letter queue of its own"
        )
    if not facts.poison_exists and not facts.triage:
        yield "its -poison queue does not exist: what is quarantined goes to the dead-letter queue; create it"


def _timing(facts: QueueFacts, works: Sequence[Work]) -> Iterator[str]:
    longest = max(works, key=lambda work: work.timeout_s, default=None)
    if longest is not None and facts.visibility_s < longest.timeout_s and facts.function_s is None:
        yield (
            f"its visibility timeout is {facts.visibility_s} s, below the {show(longest.timeout_s)} that "
            f"{_task(longest)} may run: our workers set their own at each receive and renew it, but a Lambda event "
            f"source or another consumer goes by the queue's; set VisibilityTimeout to {ceil(longest.timeout_s)} or "
            "more"
        )
    elif facts.function_s is not None and facts.visibility_s < LAMBDA_TIMES * facts.function_s:
        yield (
            f"its visibility timeout is {facts.visibility_s} s; AWS advises six times the function's timeout "
            f"({facts.function_s:g} s), so that throttled batches are not delivered twice: set it to "
            f"{ceil(LAMBDA_TIMES * facts.function_s)}"
        )
    if facts.fifo and any(work.attempts > 1 for work in works):
        yield (
            "it is a FIFO queue: a message that waits for its retry, or was put with delay=, holds its whole group, "
            "and SQS takes no delay for one message; keep backoffs short here, or take a standard queue where order is "
            "not needed"
        )
    if facts.poll_s < 1:
        yield (
            "poll=0 in the URL: an idle worker asks again at once, about 50 paid requests a second; take it out (20 s "
            "is the default, and a message ends the wait)"
        )


# -- the facts

# Calls that SQS rejects as invalid, unless it first rejects them for missing rights. If SQS checks in the other order,
# a missing right goes unnoticed; an existing right is never reported as missing.
_PROBES: tuple[tuple[str, dict[str, object]], ...] = (
    ("SendMessageBatch", {"Entries": [{"Id": "probe", "MessageBody": "\x00"}]}),
    ("ReceiveMessage", {"MaxNumberOfMessages": 11}),
    ("DeleteMessageBatch", {"Entries": [{"Id": "probe", "ReceiptHandle": "none"}]}),
    ("ChangeMessageVisibilityBatch", {"Entries": [{"Id": "probe", "ReceiptHandle": "none", "VisibilityTimeout": 0}]}),
)


class Preflight:
    """Checks the queues of one prefix. `cells`, `triage`: True if the store has cells, a triage store."""

    def __init__(self, sqs: Sqs, at: SqsUrl, queues: QueueDirectory, *, cells: bool, triage: bool) -> None:
        self._sqs, self._at, self._queues = sqs, at, queues
        self._cells, self._triage = cells, triage

    def check(self, works: Sequence[Work], *, advise: bool = False, function_s: float | None = None) -> list[str]:
        """Why these works cannot be done, one line each with the remedy; with `advise` also warnings. `function_s`: the
        timeout of the Lambda function that works. Raises ConfigError for a missing queue, and StoreError."""
        problems: list[str] = []
        for queue in dict.fromkeys(work.queue for work in works):
            facts = self.facts(queue, probe=advise)
            facts = facts if function_s is None else replace(facts, function_s=function_s)
            problems += refusals(facts, works)
            problems += warnings(facts, works) if advise else []
        return problems

    def doctor(self) -> list[str]:
        """Return warnings about the queues under the prefix and those that the app names, except dead-letter queues."""
        all_facts = [self.facts(queue, probe=True) for queue in self._queues.names()]
        dead = {facts.dead for facts in all_facts}
        return [line for facts in all_facts if facts.name not in dead for line in warnings(facts)]

    def facts(self, queue: str, *, probe: bool = False) -> QueueFacts:
        """Read the facts of a queue; with `probe` also which queues share its dead-letter queue, and missing rights."""
        sqs_queue = self._queues.of(queue)
        attributes = self._queues.attributes(sqs_queue.url)
        target, receives_max = redrive_policy(attributes)
        declared, dead = self._queues.declared_dead(queue), self._rests(queue, Lane.DEAD)
        facts = QueueFacts(
            queue=queue,
            name=sqs_queue.sqs_name,
            mode=self._at.mode.value,
            fifo=sqs_queue.fifo,
            cells=self._cells,
            triage=self._triage,
            receives_max=receives_max,
            retention_s=int(attributes["MessageRetentionPeriod"]),
            visibility_s=int(attributes["VisibilityTimeout"]),
            poll_s=self._at.poll_s,
            in_flight=int(attributes.get("ApproximateNumberOfMessagesNotVisible", 0)),
            dead=target or declared,
            dead_declared=declared,
            dead_exists=self._triage or dead is not None,
            poison_exists=self._triage or self._rests(queue, Lane.QUARANTINE) != dead,
        )
        return self._probed(facts, sqs_queue) if probe else facts

    def _rests(self, queue: str, lane: Lane) -> SqsQueue | None:
        try:
            return None if self._triage else self._queues.resting(queue, lane)
        except ConfigError:
            return None

    def _probed(self, facts: QueueFacts, queue: SqsQueue) -> QueueFacts:
        facts = replace(facts, denied=tuple(self._denied(queue)))
        if facts.dead is None:
            return facts
        try:
            url = str(self._sqs.call("GetQueueUrl", QueueName=facts.dead)["QueueUrl"])
            attributes = self._queues.attributes(url)
        except (ConfigError, StoreError):  # the dead-letter queue may be in another account
            return facts
        return replace(
            facts,
            dead_retention_s=int(attributes["MessageRetentionPeriod"]),
            dead_from_sns=sent_by_sns(attributes),
            dead_sources=tuple(name for name in self._sources(url) if name != queue.sqs_name),
        )

    def _sources(self, url: str) -> list[str]:
        try:
            answer = self._sqs.call("ListDeadLetterSourceQueues", QueueUrl=url)
        except (ConfigError, StoreError):
            return []
        return [source.rpartition("/")[2] for source in answer.get("queueUrls") or ()]

    def _denied(self, queue: SqsQueue) -> Iterator[str]:
        for action, parameters in _PROBES:
            try:
                self._sqs.call(action, QueueUrl=queue.url, **parameters)
            except ConfigError:  # the queue exists, so this is a missing right
                yield action.removesuffix("Batch")
            except StoreError:
                continue
