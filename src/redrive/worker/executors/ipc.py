"""The frames between a worker and its child processes: msgpack on a pair of sockets, each frame after its length.

Only these two processes have the channel, so frames are trusted. The only code that they name is the worker's own app.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from ...fault import Fault
from ...idempotency import Claim
from ...message import Draft, Message
from ...store import Traits

T = TypeVar("T")
_LENGTH = struct.Struct("<I")
READ_BYTES = 256 * 1024  # the most bytes of one read


class Hello(Struct, frozen=True, array_like=True, tag="hello"):
    """The first frame to a child: how to import the app, the `url` of its store, and a limit of the address space."""

    spec: str  # MODULE:NAME of the app, or of one of its tasks
    modules: tuple[str, ...]  # other modules that declare tasks of the app
    main: str | None  # the file of the worker's program, if the app is declared in the program
    main_module: str | None  # the program's module name, if the worker was started with -m
    path: tuple[str, ...]
    argv: tuple[str, ...]
    url: str | None
    traits: Traits  # the traits of the worker's store
    memory: int | None = None  # limit of the address space, in bytes
    tells_peak: bool = False


class ChildWork(Struct, frozen=True, array_like=True, tag="work"):
    """Requests a run of this message. `number` rises with every message of the child; `deadline_s` is in monotonic
    time.

    A message that is not `together` is sent only to a child without executions, and runs alone in it.
    """

    number: int
    message: Message
    deadline_s: float
    now_ms: int  # the time of the store's clock when the frame was sent
    body: bytes | None = None  # the content of the blob, if the message's own body refers to one
    claim: Claim | None = None  # the claim of the message's idempotency key, without its `box`
    together: bool = False  # True if the message may run beside others that are `together`
    trace: str | None = None  # the traceparent of the run's span


class Stop(Struct, frozen=True, array_like=True, tag="stop"):
    """Asks the child to stop the handler of the execution with this `number`; `why` is as in `Context.stop`."""

    number: int
    why: str


class CheckpointAnswer(Struct, frozen=True, array_like=True, tag="kept"):
    """Answers a Checkpoint: `held` if the message still had its lease, or the store's `error` and its `text`."""

    number: int
    held: bool = True
    error: str = ""
    text: str = ""


class Ready(Struct, frozen=True, array_like=True, tag="ready"):
    """Reports that the child has imported the app, and which `tasks` the app has there."""

    tasks: tuple[str, ...]


class Broken(Struct, frozen=True, array_like=True, tag="broken"):
    """Reports that the child cannot start, why, and that it ends."""

    text: str


class Checkpoint(Struct, frozen=True, array_like=True, tag="keep"):
    """Asks the worker to store a checkpoint of the message with the number `run`; `number` is that of this request."""

    number: int
    state: bytes
    run: int = 0  # 0: from an older version, which runs one message at a time


class Ended(Struct, frozen=True, array_like=True, tag="ended"):
    """Reports that a handler has ended. `memory`: it ran out of memory, so the child must not be used again."""

    number: int
    fault: Fault | None = None
    result: bytes | None = None
    complaint: str | None = None
    unreadable: str | None = None
    degraded: str | None = None
    follow_ups: tuple[Draft, ...] = ()
    completed: bool = False  # True if the handler completed its idempotency key itself
    memory: bool = False
    peak_bytes: int | None = None
    unknown: tuple[str, ...] = ()  # names of unknown arguments, if they make the body unreadable
    spent: dict[str, float] = {}  # what `ctx.spend` reported


ToChild = Hello | ChildWork | Stop | CheckpointAnswer
ToWorker = Ready | Broken | Checkpoint | Ended
_encode = msgspec.msgpack.Encoder().encode


def pack(frame: ToChild | ToWorker) -> bytes:
    body = _encode(frame)
    return _LENGTH.pack(len(body)) + body


class FrameDecoder(Generic[T]):
    """Decodes frames of these kinds from the pieces that a socket returns."""

    def __init__(self, kinds: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(kinds).decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[T]:
        """Yield the frames that are complete once `data` is added to the earlier pieces."""
        buffer = self._buffer
        buffer += data
        at, size = 0, len(buffer)
        try:
            while size - at >= 4:
                end = at + 4 + _LENGTH.unpack_from(buffer, at)[0]
                if end > size:
                    return
                with memoryview(buffer) as view:
                    frame: T = self._decode(view[at + 4 : end])
                at = end
                yield frame
        finally:
            del buffer[:at]
