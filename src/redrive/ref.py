"""Follow a message that was enqueued: its state, its progress, and its result."""

from __future__ import annotations

import time
import warnings
from typing import Any, Generic, TypeVar

import msgspec

from .duration import Duration, pauses
from .errors import NotDone, Unsupported
from .message import ABSENT, RESTING, Lane, Message
from .registry import Registry
from .run_context import progress_of, refuse_loop

R = TypeVar("R", covariant=True)


class Ref(msgspec.Struct, Generic[R], frozen=True):
    """A ref to an enqueued message; R is the type of its handler's return value. `duplicate`: an earlier message has
    the key, and the ref is to that message; `replaced`: it waited, and has the new arguments now."""

    id: str
    task: str
    queue: str
    duplicate: bool
    _app: Registry
    replaced: bool = False

    @property
    def state(self) -> str:
        """The current state: ready, scheduled, parked, leased, dead, quarantine, done or cancelled. Done messages are
        deleted, so a missing one is done. Raises Unsupported if the store cannot find it (SQS)."""
        message = self._look()
        return "done" if message is None else message.state_at(self._app.store.now_ms())

    def _look(self) -> Message | None:
        """Return the message, None if it does not exist. Raises Unsupported if the store cannot say whether a missing
        message is done or waits."""
        message = self._app.store.find([self.id])[0]
        traits = self._app.store.traits
        if message is None and not traits.finds:
            raise Unsupported(
                f"message {self.id} of task {self.task!r}: store {traits.name} cannot look up what waits or runs, "
                "so it cannot tell whether this is done; have the handler write down or send on what you wait for"
            )
        return message

    @property
    def progress(self) -> Any:
        """The state of the message's last checkpoint, as plain JSON values; None if there is none, or if the message is
        deleted."""
        message = self._look()
        if message is not None and message.content == ABSENT:
            raise Unsupported(f"message {self.id} of task {self.task!r} is known by its record, without its checkpoint")
        return None if message is None else progress_of(message.progress)

    def wait(self, timeout: Duration | None = None) -> R:
        """Wait until the message is done, and return the handler's return value, decoded by its return annotation.
        It is None, whatever R says, where no `keep_result=` keeps it (with a UserWarning) or it is kept no longer.

        Queries the store every few milliseconds at first, four times a second in the end. Raises NotDone when the
        message is dead or cancelled (a redrive may still revive it), TimeoutError after `timeout`, RuntimeError inside
        a running event loop: use `await_` there. A message that is gone counts as done; where a store cannot look up
        what waits or runs (SQS), this raises Unsupported instead.
        """
        refuse_loop("ref.wait()", "await ref.await_(…)")
        looks = pauses(timeout, f"message {self.id} of task {self.task!r}")
        while (message := self._look()) is not None and message.lane is not Lane.DONE:
            self._refuse_resting(message)
            time.sleep(next(looks))
        result: R = self._result(message)
        return result

    async def await_(self, timeout: Duration | None = None) -> R:
        """Do as `wait` does, in asyncio code."""
        import asyncio

        looks = pauses(timeout, f"message {self.id} of task {self.task!r}")
        while (message := await asyncio.to_thread(self._look)) is not None and message.lane is not Lane.DONE:
            self._refuse_resting(message)
            await asyncio.sleep(next(looks))
        result: R = self._result(message)
        return result

    def _refuse_resting(self, message: Message) -> None:
        if message.lane in RESTING:
            last = message.faults[-1] if message.faults else None
            text = "" if last is None else f"{last.error}: {last.text}"
            raise NotDone(self.id, self.task, message.lane.value, message.reason, text)

    def _result(self, message: Message | None) -> Any:
        task = self._app.tasks.get(self.task)
        if message is None:
            if task is not None and not task.keep_ms and task.codec.returns:
                warnings.warn(
                    f"message {self.id} of task {self.task!r} is done and what it returned was not kept, so that this "
                    "is None; @app.task(keep_result='1h') keeps it",
                    stacklevel=3,
                )
            return None
        if message.reason == "cancelled":
            raise NotDone(self.id, self.task, "cancelled")
        if message.result is None:
            return None
        return msgspec.json.decode(message.result) if task is None else task.codec.decode_result(message.result)
