"""Edit JSON whose secrets are hidden: a value that is not edited keeps its stored secrets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..redact import HIDDEN, in_json, redact_json
from . import exact


class Veiled:
    """A JSON body with its secrets replaced by stars. Raises ValueError or RecursionError if the body is not JSON."""

    shown: Any
    text: str

    def __init__(self, body: bytes) -> None:
        self._stored = exact.read(body)
        self.shown = exact.read(redact_json(body))
        self.text = in_json(exact.pretty(self.shown))
        self._hides = not exact.same(self._stored, self.shown)

    def stored(self, typed: Any) -> Any:
        """Return the edited value with the stored secrets in place of its stars. Raises ValueError for stars that hide
        no stored secret."""
        return self._restored(typed, self.shown, self._stored, "")

    def _restored(self, typed: Any, shown: Any, stored: Any, path: str) -> Any:
        if exact.same(typed, shown):
            return stored
        if isinstance(typed, exact.Pairs):
            return self._object(typed, _both(shown, stored, exact.Pairs), path)
        if isinstance(typed, list):
            return self._array(typed, _both(shown, stored, list), path)
        as_stored = isinstance(stored, str) and HIDDEN in stored
        if self._hides and isinstance(typed, str) and HIDDEN in typed and not as_stored:
            where = f"field {path}" if path else "the body"
            raise ValueError(f"{where} holds {HIDDEN}, which hides no value there; write the whole value")
        return typed

    def _object(self, typed: exact.Pairs, known: Any, path: str) -> exact.Pairs:
        parts: list[tuple[str, Any, str, Any]] = [] if known is None else list(_fields(*known))
        made = exact.Pairs()
        for name, value in typed:
            at = next((at for at, part in enumerate(parts) if part[0] == name), None)
            _, shown, real, stored = (name, _NEW, name, None) if at is None else parts.pop(at)
            made.append((real, self._restored(value, shown, stored, f"{path}.{name}" if path else name)))
        return made

    def _array(self, typed: list[Any], known: Any, path: str) -> list[Any]:
        shown, stored = ([], []) if known is None else known
        return [self._element(n, value, len(typed), shown, stored, f"{path}.{n}") for n, value in enumerate(typed)]

    def _element(self, n: int, typed: Any, count: int, shown: list[Any], stored: list[Any], path: str) -> Any:
        """Return the stored element that the `n`th typed one of `count` means. A moved element is identified by its
        value, if only one stored element is shown so."""
        if count == len(shown) and (exact.same(typed, shown[n]) or not self._moved(typed, shown)):
            return self._restored(typed, shown[n], stored[n], path)
        meant = [behind for seen, behind in zip(shown, stored, strict=True) if exact.same(seen, typed)]
        if any(not exact.same(behind, meant[0]) for behind in meant):
            raise ValueError(f"field {path} holds {HIDDEN}, and several values are hidden so; write the whole value")
        return meant[0] if meant else self._restored(typed, _NEW, None, path)

    @staticmethod
    def _moved(typed: Any, shown: list[Any]) -> bool:
        return any(exact.same(typed, each) for each in shown)


_NEW = object()  # stands for the shown value of a new element: equal to no typed one


def _both(shown: Any, stored: Any, kind: type[list[Any]]) -> Any:
    """Return both values, if both are lists of this kind and equally long, else None."""
    alike = type(shown) is kind and type(stored) is kind
    return (shown, stored) if alike and len(shown) == len(stored) else None


def _fields(shown: exact.Pairs, stored: exact.Pairs) -> Iterator[tuple[str, Any, str, Any]]:
    for (name, value), (real, behind) in zip(shown, stored, strict=True):
        yield name, value, real, behind
