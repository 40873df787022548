"""Import the app's code only from folders and files that this user and root alone may write."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from ..config import trust


class Distrusted(ImportError):
    """Raised if a module is not imported because another user owns its file or may write it."""

    place: Path
    why: str

    def __init__(self, name: str, place: Path, why: str) -> None:
        super().__init__(f"{place} is not imported: {why}", name=name, path=str(place))
        self.place, self.why = place, why


class Guard:
    """An import hook that loads nothing, and refuses modules in or below the folders in `places` that other users could
    change. `places` maps each folder to the reason why nothing may be imported from it, or to None."""

    def __init__(self) -> None:
        self.places: dict[Path, str | None] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or not spec.has_location:
            return
        origin = Path(spec.origin).absolute()
        place = self._place_of(origin)
        if place is None:
            return
        if (why := self.places[place]) is not None:
            raise Distrusted(name, place, why)
        for file in [origin] if spec.cached is None else [origin, Path(spec.cached)]:
            there = next(part for part in (file, *file.parents) if part.exists())  # for a module in an archive
            if (why := trust.why_not(there)) is not None:
                raise Distrusted(name, there, why)

    def _place_of(self, origin: Path) -> Path | None:
        real = origin.parent.resolve()
        if real.is_relative_to(sys.prefix):  # the modules of the running interpreter are trusted
            return None
        return next((place for place in self.places if real.is_relative_to(place)), None)


_guard = Guard()


def look_in(folders: Iterable[Path]) -> dict[Path, str]:
    """Add these folders to the import path, the last one first, except those that other users may write; return the
    latter, with the reasons."""
    if _guard not in sys.meta_path:
        sys.meta_path.insert(0, _guard)
    _guard.places = {folder.resolve(): trust.why_not_folder(folder) for folder in folders}
    for folder, why in _guard.places.items():
        if why is None and str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    return {folder: why for folder, why in _guard.places.items() if why is not None}
