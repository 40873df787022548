"""Set up a child process: import the app, limit its memory, and end it with its worker."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...errors import Unsupported
from ...store import Store, Traits
from .app_import import Origin, imported
from .ipc import Hello

if TYPE_CHECKING:
    from ...registry import Registry

ROOM_BYTES = 32 * 1024 * 1024  # address space that a memory limit must leave beyond that of the imported app
ORPHAN_LOOK_S = 1.0
_PR_SET_PDEATHSIG, _M_ARENA_MAX = 1, -8


class Elsewhere:
    """Replaces, in a child process, a store that is in the memory of the worker's process."""

    def __init__(self, traits: Traits) -> None:
        self.traits = traits

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(
            f"store.{name}: the store {self.traits.name} is in the memory of the worker, and this is a child "
            "process; use ctx.enqueue(…) here, or a store that processes can share"
        )

    def close(self) -> None:
        """Do nothing, as there is no connection to close."""


def app_of(hello: Hello) -> Registry:
    sys.path[:], sys.argv[:] = hello.path, hello.argv
    app = imported(Origin(hello.spec, hello.modules, hello.main, hello.main_module))
    app._flusher = None  # a child writes no counts: its memory may be limited, and it may be killed at any time
    if not hello.traits.shared:
        app._store = cast(Store, Elsewhere(hello.traits))
        app._unapplied.clear()
    elif hello.url is not None and app.url is not None and app._store is None:
        app.url = hello.url
    return app


def bound_memory(memory: int | None) -> None:
    if memory is None:
        return
    size = _address_space()
    if size is not None and size + ROOM_BYTES > memory:
        raise MemoryError(
            f"memory={memory} bytes is less than the {size} that the child takes once the app is imported, and "
            f"{ROOM_BYTES} to work with; give it more"
        )
    _one_arena()
    limit_memory(memory)


def limit_memory(memory: int | None) -> None:
    """Limit this process's address space to `memory` bytes, or lift the limit. On macOS without effect."""
    most = resource.RLIM_INFINITY if memory is None else memory
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _address_space() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return None


def _one_arena() -> None:
    """Use one arena of memory: else the C library reserves 64 MiB of address space for each thread that allocates."""
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def end_with(parent: int) -> None:
    """End this process when `parent` ends, even within a C function. If the system has no signal for that, a thread
    checks, which has to wait while a C function holds the interpreter's lock."""
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0:
            if os.getppid() != parent:
                os._exit(1)
            return
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(ORPHAN_LOOK_S)
    os._exit(1)
