"""Messages of SQS that somebody else received, and deletes when they are told to: Lambda, for a function."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ._sqs_tail import End

WAITED_MS = 5 * 60_000  # for so long a message may have been gathered with others before it was handed over


class Adopted:
    """The receipt handles of what was taken in, and which of it is to be deleted."""

    def __init__(self) -> None:
        self._handles = set[str]()
        self._over = dict[str, End]()

    def add(self, handles: Collection[str]) -> None:
        self._handles.update(handles)

    def without_deletes(self, ends: Sequence[End]) -> Sequence[End]:
        """What is to be done here; the deletes of adopted ones are left to whoever received them."""
        if not self._handles:
            return ends
        left = {end.handle: end for end in ends if end.until_ms is None and end.handle in self._handles}
        self._over |= left
        return [end for end in ends if end.handle not in left]

    def over(self, handles: Collection[str]) -> list[End]:
        """The deletes of these that were left so far."""
        found = [self._over.pop(handle) for handle in handles if handle in self._over]
        self._handles.difference_update(end.handle for end in found)
        return found

    def forget(self, handles: Collection[str]) -> None:
        self._handles.difference_update(handles)
