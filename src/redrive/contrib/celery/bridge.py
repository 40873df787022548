"""Move messages from Celery's broker to the queues of an app."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from ...app import App
from ...duration import Duration, seconds
from ...errors import ConfigError, Reject, StoreError, StoreUnavailable
from ...fault import Kind, classify
from ...ids import new_id
from ...message import Draft, Lane, Message
from ...run_context import Context
from ...urls import shown
from .chords import KNOWN, Chords, Sizes
from .envelope import CeleryTask, CeleryUnsupported, key_of, read
from .proof import Proofs
from .source import BrokerSource, Taken
from .translation import ID, PARKED, Canvas, TaskCall

BATCH = 200  # the most messages in one commit
PAUSE_S = (1.0, 30.0)  # the first and the longest pause, in seconds, while the broker or the store cannot be reached
log: logging.Logger = logging.getLogger("redrive.celery")


class Moved(Struct):
    """The number of messages `taken` from the broker. Of these, `known` ones were in the store already, `parked` ones
    are dead because the app cannot run them, and `refused` ones were not accepted by the store."""

    taken: int = 0
    known: int = 0
    parked: int = 0
    refused: int = 0

    def add(self, other: Moved) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __str__(self) -> str:
        return ", ".join(f"{name} {getattr(self, name):,}" for name in self.__struct_fields__)


class CeleryBridge:
    """Moves the messages of Celery's queues to the app's tasks of the same names. Declare one beside the app.

    `broker`: `redis://HOST:PORT/DB`, `rediss://`, `redis+unix:///PATH`, or `sqs://REGION`. `queues` are Celery's;
    each message goes to the queue of its task here. `prefix` is kombu's `global_keyprefix` on Redis, `sep` its `sep`.
    A chord becomes a batch, whose size is in Celery's result backend: `results` is its URL, on Redis, `results_prefix`
    its `global_keyprefix`. What cannot be run here is dead in the queue `parked`, whole and with the reason: pickled or
    compressed bodies, protocol 1, unknown tasks, arguments that do not fit, chords without `results`, a `link_error`
    that the task does not have as its `on_dead`. A redrive translates such a message again.

    No message is lost, and none is put twice, when a process is killed: a message is moved to a place of the bridge's
    own on the broker, put into the store with a unique key, and then removed. Killed after the move, the next bridge
    begins with it. Killed after the put, it is put again, and its key, held for `key_for` after the put or until it is
    done, makes that put a duplicate; a bridge that stays down for longer may run it again. Several bridges may share
    the queues.

    Raises ConfigError for a broker that cannot be used. The methods raise it for a store that keeps no unique keys
    (`sqs://`) or nothing at all (`memory://`).
    """

    app: App
    queues: list[str]
    parked: str

    def __init__(
        self,
        app: App,
        broker: str,
        *,
        queues: Sequence[str] = ("celery",),
        prefix: str = "",
        sep: str = "\x06\x16",
        results: str | None = None,
        results_prefix: str = "",
        parked: str = "celery",
        key_for: Duration = "1d",
        poll: Duration = "200ms",
    ) -> None:
        if isinstance(queues, str) or not queues:
            raise ConfigError(f"queues={queues!r}: expected Celery's queues in a list, such as ['celery']")
        self.app, self.queues, self.parked = app, list(queues), parked
        self._broker, self._prefix, self._sep = broker, prefix, sep
        self._key_for_s, self._poll_s = seconds(key_for, "key_for"), seconds(poll, "poll")
        self._source: BrokerSource | None = None
        scheme = broker.partition("://")[0].partition("+")[0]
        if scheme not in ("redis", "rediss", "valkey", "valkeys", "sqs"):
            raise ConfigError(f"broker={shown(broker)!r}: expected redis://HOST:PORT/DB or sqs://REGION")
        self._sizes = None if results is None else Sizes(results, results_prefix)
        self._canvas = Canvas(app, Proofs(app), Chords(app, self._sizes), parked)
        app.task(name=PARKED, queue=parked, ctx=True)(self._translate_again)

    @property
    def source(self) -> BrokerSource:
        """The broker, opened at its first use. Raises ConfigError."""
        if self._source is None:
            traits = self.app.store.traits
            if not traits.unique or not traits.triages or not traits.durable:
                why = "loses what it has" if traits.unique else "keeps no unique keys"
                raise ConfigError(
                    f"a bridge cannot move messages to the store {traits.name}, which {why}; expected an app on "
                    "sqlite://, postgresql:// or redis://"
                )
            if self._broker.startswith("sqs://"):
                from .sqs_queue import SqsQueues

                self._source = SqsQueues(self._broker)
            else:
                from .redis_queue import RedisQueues

                self._source = RedisQueues(self._broker, prefix=self._prefix, sep=self._sep)
        return self._source

    def run(self, *, burst: bool = False, stop: threading.Event | None = None) -> Moved:
        """Move messages until `stop` is set; with `burst` until the queues are empty. Returns what was moved.

        If the broker or the store cannot be reached, tries again after a pause; with `burst`, raises StoreUnavailable.
        """
        stop, total, failures = stop or threading.Event(), Moved(), 0
        while not stop.is_set():
            try:
                moved, failures = self.once(), 0
            except StoreUnavailable as error:
                if burst:
                    raise
                failures += 1
                pause_s = min(PAUSE_S[0] * 2**failures, PAUSE_S[1])
                log.warning("%s; nothing is lost, and it is tried again in %g s", error, pause_s)
                stop.wait(pause_s)
                continue
            total.add(moved)
            if not moved.taken:
                if burst:
                    break
                stop.wait(self._poll_s)
        return total

    def once(self) -> Moved:
        """Move at most one batch of each queue, and return what was moved. After a StoreError, the next call takes the
        messages that were not finished again."""
        total = Moved()
        for queue in self.queues:
            taken = self.source.take(queue, BATCH)
            if taken:
                total.add(self._put(queue, taken))
        return total

    def take_held(self, older_than: Duration) -> int:
        """Take over messages on Redis that Celery's workers took that long ago and did not acknowledge; return their
        number.

        A killed worker leaves them in kombu's hash `unacked`. A living worker also has its running tasks there, and
        those with an eta, which would run twice: stop the workers first.
        """
        return self.source.take_held(self.queues, seconds(older_than, "older_than"))

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None
        if self._sizes is not None:
            self._sizes.close()

    def _put(self, queue: str, taken: Sequence[Taken]) -> Moved:
        moved, now = Moved(taken=len(taken)), datetime.now(UTC)
        drafts: list[tuple[Taken, Draft]] = []
        chords: dict[str, list[tuple[Taken, CeleryTask, TaskCall]]] = {}
        parked: list[tuple[Taken, Message]] = []
        for each in taken:
            try:
                sent = read(each.raw)
                call = self._canvas.call_of(sent, key_for=self._key_for_s, now=now)
                if call.end is None:
                    drafts.append((each, call.bound.draft(*call.args, **call.kwargs)))
                else:
                    chords.setdefault(call.end.group, []).append((each, sent, call))
            except StoreError:
                raise
            except CeleryUnsupported as error:
                parked.append((each, self._letter(each.raw, str(error))))
            except Exception as error:  # the error of one message must not stop the messages behind it
                why = f"it cannot be translated: {type(error).__name__}: {error}"
                parked.append((each, self._letter(each.raw, why)))
        moved.known = self._enqueue(drafts, parked) + sum(self._arrive(each, parked) for each in chords.values())
        left = self._park(queue, parked, moved)
        # If this process is killed here, the messages are both in the store and with the broker, and the next puts of
        # them are duplicates.
        self.source.remove(queue, [each for each in taken if each not in left])
        return moved

    def _arrive(
        self, members: Sequence[tuple[Taken, CeleryTask, TaskCall]], parked: list[tuple[Taken, Message]]
    ) -> int:
        """Put tasks of the header of one chord, and add those that cannot be put to `parked`; return how many were put
        before."""
        try:
            said = self._canvas.arrive([(sent, call) for _, sent, call in members])
        except StoreError:
            raise
        except Exception as error:  # the store refused one of them, or there is a bug, so put each alone
            if len(members) > 1:
                return sum(self._arrive([each], parked) for each in members)
            said = [str(error)]
        parked += [
            (taken, self._letter(taken.raw, why))
            for (taken, *_), why in zip(members, said, strict=True)
            if why not in ("", KNOWN)
        ]
        return said.count(KNOWN)

    def _enqueue(self, drafts: Sequence[tuple[Taken, Draft]], parked: list[tuple[Taken, Message]]) -> int:
        """Put the drafts in one commit, and add those that the store refuses to `parked`; return how many were
        duplicates."""
        put = self.app.put
        try:
            return sum(each.duplicate for each in put([draft for _, draft in drafts])) if drafts else 0
        except StoreError:
            raise
        except Exception:  # the store refused one of them, or there is a bug, so put each draft alone
            known = 0
            for taken, draft in drafts:
                try:
                    known += put([draft])[0].duplicate
                except StoreError:
                    raise
                except Exception as error:
                    parked.append((taken, self._letter(taken.raw, str(error))))
            return known

    def _park(self, queue: str, parked: Sequence[tuple[Taken, Message]], moved: Moved) -> set[Taken]:
        """Write the `parked` messages to the dead lane, unchanged, with their reasons; return those that the store
        refuses even there."""
        restore, left = self.app.store.restore, set[Taken]()
        try:
            written = restore([letter for _, letter in parked]) if parked else []
        except StoreError:
            raise
        except Exception:
            written = []
            for taken, letter in parked:
                try:
                    written += restore([letter])
                except StoreError:
                    raise
                except Exception as error:
                    left.add(taken)
                    written.append(False)
                    place = self.source.refuse(queue, taken)
                    log.error("message %s of Celery's queue %s stays in %s: %s", _id(letter), queue, place, error)
        for (taken, letter), new in zip(parked, written, strict=True):
            if new:
                log.warning("message %s of Celery's queue %s is dead: %s", _id(letter), queue, letter.faults[-1].text)
            moved.known += not new and taken not in left
        moved.parked, moved.refused = sum(written), len(left)
        return left

    def _letter(self, raw: bytes, why: str) -> Message:
        now, key = self.app.store.now_ms(), key_of(raw)
        fault = classify(CeleryUnsupported(why), ((CeleryUnsupported, Kind.PERMANENT),))
        id = new_id(now)
        return Message(
            id=id,
            task=PARKED,
            queue=self.parked,
            body=msgspec.json.encode({"envelope": raw.decode(errors="backslashreplace")}),
            correlation_id=id,
            lane=Lane.DEAD,
            enqueued_ms=now,
            life_ms=now,
            rested_ms=now,
            reason="rejected",
            key=key,
            headers={ID: key.removeprefix("celery:").partition(":")[0]},
            faults=(msgspec.structs.replace(fault, at_ms=now),),
        )

    def _translate_again(self, ctx: Context, envelope: str) -> None:
        """Run a redriven parked message: translate its envelope again, and enqueue the task with the ack."""
        try:
            sent = read(envelope.encode())
            call = self._canvas.call_of(sent, key_for=self._key_for_s, now=datetime.now(UTC))
            (why,) = [""] if call.end is None else self._canvas.arrive([(sent, call)])
        except StoreError:
            raise
        except Exception as error:
            raise Reject(str(error)) from error
        if why not in ("", KNOWN):
            raise Reject(why)
        if call.end is None:
            ctx.enqueue(call.bound, *call.args, **call.kwargs)


def _id(letter: Message) -> str:
    return letter.headers[ID]
