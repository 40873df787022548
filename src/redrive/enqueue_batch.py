"""Concurrent `aenqueue`s share a commit: what arrives while one put is under way goes with the next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from .errors import BlobsUnavailable, StoreError
from .message import Draft, Put
from .store import Store


class Batch:
    """The puts of one event loop on their way to one store."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store, self.loop = store, loop
        self._waiting: list[tuple[Sequence[Draft], asyncio.Future[list[Put]]]] = []
        self._flusher: asyncio.Task[None] | None = None

    async def put(self, drafts: Sequence[Draft]) -> list[Put]:
        future: asyncio.Future[list[Put]] = self.loop.create_future()
        self._waiting.append((drafts, future))
        if self._flusher is None:
            self._flusher = self.loop.create_task(self._flush())
        return await asyncio.shield(future)

    async def _flush(self) -> None:
        try:
            while self._waiting:
                taken, self._waiting = self._waiting, []
                for results, future in await asyncio.to_thread(self._write, taken):
                    if isinstance(results, BaseException):
                        future.set_exception(results)
                    else:
                        future.set_result(results)
        finally:
            self._flusher = None

    def _write(
        self, taken: list[tuple[Sequence[Draft], asyncio.Future[list[Put]]]]
    ) -> list[tuple[list[Put] | Exception, asyncio.Future[list[Put]]]]:
        try:
            puts = iter(self._store.put([draft for drafts, _ in taken for draft in drafts]))
            return [([next(puts) for _ in drafts], future) for drafts, future in taken]
        except BlobsUnavailable:  # only those with large bodies are concerned
            return [(self._write_one(drafts), future) for drafts, future in taken]
        except StoreError as error:
            return [(error, future) for _, future in taken]
        except Exception:  # one caller's draft was refused: the others must not suffer for it
            return [(self._write_one(drafts), future) for drafts, future in taken]

    def _write_one(self, drafts: Sequence[Draft]) -> list[Put] | Exception:
        try:
            return self._store.put(drafts)
        except Exception as error:
            return error


def batch_of(store: Store, batches: dict[int, Batch]) -> Batch:
    """The running loop's batch for `store`, kept in `batches`."""
    loop = asyncio.get_running_loop()
    found = batches.get(id(loop))
    if found is None:
        for key, batch in [*batches.items()]:  # a batch holds its loop, so that no other can have its id till then
            if batch.loop.is_closed():
                batches.pop(key, None)
        found = batches[id(loop)] = Batch(store, loop)
    return found
