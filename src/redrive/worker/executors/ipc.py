"""The frames between a worker and its child processes: msgpack on a pair of sockets, each frame after its length.

Only these two processes have the channel, so its frames are trusted to be whole. They name no code but the app that the
worker itself runs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from ...fault import Fault
from ...idempotency.claim import Claim
from ...message import Draft, Message
from ...store import Traits

T = TypeVar("T")
_LENGTH = struct.Struct("<I")
READ_BYTES = 256 * 1024  # at once

# -- from the worker


class Hello(Struct, frozen=True, array_like=True, tag="hello"):
    """The first frame: which app to import, and how. `url` is its store's; `memory` bounds the address space."""

    spec: str  # MODULE:NAME of the app, or of one of its tasks
    modules: tuple[str, ...]  # where else its tasks are declared
    main: str | None  # the file of the worker's own program, where the app is in that
    main_module: str | None  # or its name, where it was started by that
    path: tuple[str, ...]
    argv: tuple[str, ...]
    url: str | None
    traits: Traits  # of the worker's store
    memory: int | None = None  # bytes
    tells_peak: bool = False


class ChildWork(Struct, frozen=True, array_like=True, tag="work"):
    """Run this message. `number` rises with every message of the child; `deadline_s` is of the monotonic clock.

    A message that is not `together` comes only when the child runs nothing, and is the only one until it has ended.
    """

    number: int
    message: Message
    deadline_s: float
    now_ms: int  # of the store's clock
    body: bytes | None = None  # where the message's own is a reference to a blob
    claim: Claim | None = None  # of its idempotency key
    together: bool = False  # beside others that are
    trace: str | None = None  # the traceparent of its span


class Stop(Struct, frozen=True, array_like=True, tag="stop"):
    """Stop that handler; `why` as for `Context.stop`."""

    number: int
    why: str


class CheckpointAnswer(Struct, frozen=True, array_like=True, tag="kept"):
    """The answer to Keep: whether the lease still held; or which error the store raised, and its text."""

    number: int
    held: bool = True
    error: str = ""
    text: str = ""


# -- from the child


class Ready(Struct, frozen=True, array_like=True, tag="ready"):
    """The app is imported, with these tasks."""

    tasks: tuple[str, ...]


class Broken(Struct, frozen=True, array_like=True, tag="broken"):
    """It cannot start, and ends."""

    text: str


class Checkpoint(Struct, frozen=True, array_like=True, tag="keep"):
    """A checkpoint of the message that runs as number `run`; `number` is the question's own."""

    number: int
    state: bytes
    run: int = 0  # 0: of a version that runs one after the other


class Ended(Struct, frozen=True, array_like=True, tag="ended"):
    """How that handler ended. `memory`: no memory was left, so the child must not be used again."""

    number: int
    fault: Fault | None = None
    result: bytes | None = None
    complaint: str | None = None
    unreadable: str | None = None
    degraded: str | None = None
    follow_ups: tuple[Draft, ...] = ()
    completed: bool = False  # it completed its idempotency key itself
    memory: bool = False
    peak_bytes: int | None = None
    unknown: tuple[str, ...] = ()  # the arguments that are not known here, if its body is unreadable for them


ToChild = Hello | ChildWork | Stop | CheckpointAnswer
ToWorker = Ready | Broken | Checkpoint | Ended
_encode = msgspec.msgpack.Encoder().encode


def pack(frame: ToChild | ToWorker) -> bytes:
    """The frame as bytes to send."""
    body = _encode(frame)
    return _LENGTH.pack(len(body)) + body


class FrameDecoder(Generic[T]):
    """Decodes frames from the pieces that a socket gives."""

    def __init__(self, kinds: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(kinds).decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[T]:
        """The frames that are complete with this piece."""
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
