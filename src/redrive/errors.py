"""All errors that redrive raises, and the four that handlers raise to steer their message.

RedriveError
├── ConfigError          a setting or a declaration is wrong; nothing was started
│   └── Misread          a text with a grammar of its own cannot be read; points at the mistake
│       ├── SelectorError    a selector of dead letters
│       └── StopError        the rule that stops a run
├── EnqueueError         a message was refused; nothing was written
│   ├── EncodeError      its arguments cannot be written as JSON
│   └── TooLarge         its body is over the store's limit
├── Unreadable           a stored body does not fit its task (never raised into a handler)
├── Unroutable           no worker knows its task, version or arguments (never raised into a handler)
├── StoreError           the store refused or failed; nothing was done
│   ├── StoreUnavailable   unreachable, locked or an I/O error: the same call may work later
│   │   ├── StoreFull      out of space
│   │   ├── BlobsUnavailable   the storage of large bodies cannot be reached, read or written
│   │   └── PublishFailed  some events were not published to a topic; says which
│   ├── Conflict         a cell had another version; nothing of the commit was written
│   ├── Unsupported      this store cannot do that
│   ├── ReadOnly         this user may read the store, but not change it
│   └── SchemaError      the stored schema is newer than this program
├── NotDone              ref.wait(): the message died or was cancelled, so it has no result
├── InProgress           a direct call: another call is working on its idempotency key
├── KeyReused            its idempotency key belongs to other arguments
├── Refused              a safety check refuses, with the fix in the message
│   └── PlanRefused      a plan is altered, applied, too old, unknown or empty, or no reason was given; nothing moved
├── LeaseLost            the message is no longer this worker's: raised by ctx.check()
└── Cancelled            a cancel was requested, or the worker stops: raised by ctx.check()

Steer                    raised by handlers to steer: not failures of redrive
├── RetryAfter(delay)    try again, not before then (counts as an attempt)
├── Snooze(delay)        come back then (spends no attempt)
├── Reject(why)          never try again: dead lane, reason `rejected`
└── Quarantine(why)      poison: quarantine lane
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .duration import Duration, seconds


class RedriveError(Exception):
    """The root of all errors that redrive itself raises."""


class ConfigError(RedriveError, ValueError):
    """A setting or declaration is wrong; says which, what was expected, and the near miss."""


class Misread(ConfigError):
    """A text cannot be parsed: `what` is wrong, `why` says what was expected, and `pointer` has two lines: the text,
    and carets under the mistake."""

    what: str
    why: str
    text: str
    at: int
    end: int

    def __init__(self, what: str, why: str, text: str = "", at: int = 0, end: int = 0) -> None:
        self.what, self.why, self.text, self.at, self.end = what, why, text, at, end
        self.pointer: str = _pointer(text, at, max(end, at + 1)) if text else ""
        super().__init__(f"{what}; {why}" + (f"\n{self.pointer}" if text else ""))

    def __reduce__(self) -> tuple[type[Misread], tuple[object, ...]]:
        return type(self), (self.what, self.why, self.text, self.at, self.end)


class SelectorError(Misread):
    """A selector of dead letters cannot be read."""


class StopError(Misread):
    """The rule that stops a run cannot be read."""


def _pointer(text: str, at: int, end: int, around: int = 60) -> str:
    """Return two lines: the text around the mistake from `at` to `end`, without secrets, and carets below."""
    from .redact import redact  # imported only for an error

    hidden = redact(text)
    if hidden != text:  # secrets are hidden before the text is cut, and the carets move accordingly
        at, end = (min(len(redact(text[:place])), len(hidden)) for place in (at, end))
        text, end = hidden, max(at + 1, end)
    begin = max(0, at - around)
    shown = "".join(c if c.isprintable() else " " for c in text[begin : at + around])
    cut = "…" if begin else ""
    return f"  {cut}{shown}\n  {' ' * (len(cut) + at - begin)}{'^' * min(end - at, around)}"


class EnqueueError(RedriveError):
    """A message was refused; nothing was written."""


class EncodeError(EnqueueError, TypeError):
    """The arguments cannot be written as JSON."""


class TooLarge(EnqueueError, ValueError):
    """The body is larger than the store accepts."""


class Unreadable(RedriveError, ValueError):
    """A stored body cannot be decoded into its task's arguments, or a cell into its type."""


class Unroutable(RedriveError):
    """No task of that name, of that version or with those arguments is registered here."""


class UnknownArguments(Unreadable):
    """A stored body names arguments that its task does not take in this program; a newer one may."""

    def __init__(self, text: str = "", names: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.names = names  # the names of the unknown arguments


class KeyMissing(Unreadable):
    """The data is encrypted with a key that this process does not have. A message with such data waits for a worker
    that has the key."""


class Tampered(Unreadable):
    """The stored data was not encrypted for this message: it was changed, cut, or taken from another one."""


class StoreError(RedriveError):
    """The store refused or failed; nothing was done."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or written now; nothing was acknowledged, and the same call may work later."""


class StoreFull(StoreUnavailable):
    """The store is out of space; nothing was acknowledged."""


class BlobsUnavailable(StoreUnavailable):
    """Blob storage cannot be reached, read or written now; the same call may work later."""


class PublishFailed(StoreUnavailable):
    """Some events were not published: `failed` has their reasons, by index from 0. The others are published."""

    def __init__(self, text: str, failed: Mapping[int, str]) -> None:
        self.failed: dict[int, str] = dict(failed)
        super().__init__(text)

    def __reduce__(self) -> tuple[type[PublishFailed], tuple[object, ...]]:
        return type(self), (*self.args, self.failed)


class Conflict(StoreError):
    """A cell had another version than expected; nothing of that commit was written."""


class Unsupported(StoreError):
    """This store cannot do what was requested."""


class ReadOnly(StoreError):
    """This user or role may only read, or the file is read-only; nothing was changed."""


class SchemaError(StoreError):
    """This program cannot use the stored schema."""


class NotDone(RedriveError):
    """The message of `ref.wait()` ended without being done: `state` is dead, quarantine or cancelled, `reason` is why
    it died, `text` is the text of its last fault."""

    id: str
    task: str
    state: str
    reason: str | None
    text: str

    def __init__(self, id: str, task: str, state: str, reason: str | None = None, text: str = "") -> None:
        self.id, self.task, self.state, self.reason, self.text = id, task, state, reason, text
        why = f" ({reason})" if reason not in (None, state) else ""
        super().__init__(f"message {id} of task {task!r} is {state}{why}" + (f": {text}" if text else ""))

    def __reduce__(self) -> tuple[type[NotDone], tuple[str | None, ...]]:
        return NotDone, (self.id, self.task, self.state, self.reason, self.text)


class BatchNotDone(RedriveError):
    """The batch of `ref.wait()` ended without being done: `state` is partial or cancelled, and `failed` of its `total`
    members are dead, quarantined, cancelled or discarded."""

    id: str
    name: str
    state: str
    failed: int
    total: int

    def __init__(self, id: str, name: str, state: str, failed: int, total: int) -> None:
        self.id, self.name, self.state, self.failed, self.total = id, name, state, failed, total
        super().__init__(
            f"batch {name!r} ({id}) is {state}: {failed} of {total} members failed; `redrive dlq list batch:{id}` "
            "lists the dead ones"
        )

    def __reduce__(self) -> tuple[type[BatchNotDone], tuple[str, str, str, int, int]]:
        return BatchNotDone, (self.id, self.name, self.state, self.failed, self.total)


class InProgress(RedriveError):
    """Another call, `owner`, is working on the idempotency key of a direct call, for `retry_after` seconds at most.
    Nothing was run."""

    task: str
    key: str
    owner: str
    retry_after: float

    def __init__(self, task: str, key: str, owner: str, retry_after: float) -> None:
        self.task, self.key, self.owner, self.retry_after = task, key, owner, retry_after
        super().__init__(
            f"task {task!r}: {owner} is working on idempotency key {key!r}, and may for {retry_after:.1f} s more; call "
            "again then to get its result, or enqueue the call, which waits by itself"
        )

    def __reduce__(self) -> tuple[type[InProgress], tuple[str, str, str, float]]:
        return InProgress, (self.task, self.key, self.owner, self.retry_after)


class KeyReused(RedriveError, ValueError):
    """The idempotency key was used for a call with other arguments. Nothing was run."""

    task: str
    key: str
    owner: str

    def __init__(self, task: str, key: str, owner: str) -> None:
        self.task, self.key, self.owner = task, key, owner
        super().__init__(
            f"task {task!r}: idempotency key {key!r} was first used by {owner}, with other arguments; two different "
            "calls need two keys: make the key of all that tells them apart"
        )

    def __reduce__(self) -> tuple[type[KeyReused], tuple[str, str, str]]:
        return KeyReused, (self.task, self.key, self.owner)


class Refused(RedriveError):
    """A safety check refuses; the message names the fix."""


class PlanRefused(Refused):
    """A plan is not carried out, and nothing was moved: `what` is wrong, `why`, and the same in one `word`: altered,
    applied, old, unknown, empty or reason."""

    what: str
    why: str
    word: str

    def __init__(self, what: str, why: str, word: str) -> None:
        self.what, self.why, self.word = what, why, word
        super().__init__(f"{what}; {why}")

    def __reduce__(self) -> tuple[type[PlanRefused], tuple[str, str, str]]:
        return type(self), (self.what, self.why, self.word)


class LeaseLost(RedriveError):
    """The message was claimed by another worker, or its lease ended: stop working on it."""


class Cancelled(RedriveError):
    """A cancel was requested, or the worker is stopping: end this run."""


class Steer(Exception):
    """Raised by handlers to decide what happens next."""


class RetryAfter(Steer):
    """Try this message again, not before `delay` from now. Counts as an attempt; the delay is a floor under the
    backoff."""

    def __init__(self, delay: Duration, why: str = "") -> None:
        self.delay_s: float = seconds(delay, "RetryAfter delay")
        self.why = why
        super().__init__(why or f"asked to retry after {self.delay_s:g} s")


class Snooze(Steer):
    """Put this message back until `delay` from now, at least 100 ms. Spends no attempt."""

    def __init__(self, delay: Duration, why: str = "") -> None:
        self.delay_s: float = seconds(delay, "Snooze delay")
        self.why = why
        super().__init__(why or f"snoozed for {self.delay_s:g} s")


class Reject(Steer):
    """Never try this message again: it goes to the dead lane with reason `rejected`."""

    def __init__(self, why: str = "rejected by the handler") -> None:
        self.why = why
        super().__init__(why)


class Quarantine(Steer):
    """This message is poison: it goes to the quarantine lane, where bulk redrives cannot reach it."""

    def __init__(self, why: str = "quarantined by the handler") -> None:
        self.why = why
        super().__init__(why)


MEANT_MAX = 300  # the most characters of a word that is compared


def near_miss(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known word that was probably meant by `word`, for an error message; None if none is similar."""
    import difflib

    if len(word) > MEANT_MAX:  # the cost of a comparison grows with the square of the length
        return None
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=likeness)), None)
