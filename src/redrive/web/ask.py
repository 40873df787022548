"""The request of a page or an action: its user, address, query and form."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..audit import user as system_user
from ..duration import milliseconds
from ..errors import ConfigError
from ..present.confirm import is_number, needs_number
from ..present.formats import timestamp
from ..present.permissions import Permission, User
from ..triage.dlq import DeadLetters
from .sums import OLD_S, WAITED_S

TEXT_MAX, SELECTOR_MAX = 4_000, 100_000  # the most characters of a form's field, and of a selector

if TYPE_CHECKING:
    from ..read_model import ReadModel
    from ..registry import Registry
    from ..status import Status
    from ..store import Store
    from .access import Access
    from .sums import KeptValue, Sums

T = TypeVar("T")
Record = dict[str, Any]


class MenuPage(Protocol):
    @property
    def title(self) -> str: ...
    @property
    def key(self) -> str:
        """The key that opens the page when pressed after `g`."""
        ...


class SiteParts(Protocol):
    """The parts of a site that pages and actions use."""

    menu: Sequence[MenuPage]
    app: ReadModel
    registry: Registry | None
    read_only: bool
    environment: str | None
    url: str
    access: Access
    sums: Sums

    @property
    def lost(self) -> bool:
        """True if the store did not answer the last call: what is shown beside a page's record must not ask it."""
        ...

    def status(self, patience_s: float = 0.0) -> KeptValue[Status]:
        """Return the store's status, as `redrive status` shows it, with its age. Raises StoreError."""
        ...


class Problem(Exception):
    """An error to show: what happened, why, the next step, and the HTTP status."""

    what: str
    why: str
    next: str
    status: int

    def __init__(self, what: str, why: str = "", next: str = "", status: int = 400) -> None:
        super().__init__(what)
        self.what, self.why, self.next, self.status = what, why, next, status


class PageAnswer(Record):
    """A page's record with another HTTP `status`, or with an address (parts as `url` takes them) to which browsers are
    redirected (`to`). `typed` has the reader's input, which the page shows unchanged and JSON omits. An action that
    returns a PageAnswer shows the page `name` instead of a result."""

    status: int
    to: tuple[str, ...]
    typed: Mapping[str, Any] | dict[str, Any]
    name: str

    def __init__(
        self,
        record: Mapping[str, Any],
        *,
        status: int = 200,
        to: tuple[str, ...] = (),
        typed: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> None:
        super().__init__(record)
        self.status, self.to, self.typed, self.name = status, to, typed or {}, name


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an action: a text, the address to go to (parts as `url` takes them), and the record for JSON."""

    text: str
    to: tuple[str, ...] = ("",)
    record: Record = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Download:
    """A file that an action returns for download."""

    name: str
    content: bytes
    type: str = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One request. `path` has the parts of the address by name, `query` and `form` the last value of each name, `lists`
    all values of each name."""

    site: SiteParts
    user: User
    path: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, str]
    lists: Mapping[str, Sequence[str]]
    patience_s: float = 0.0  # seconds to wait for a new sum if the cached one is old
    ages_s: list[float] = field(default_factory=list)  # ages in seconds of the sums that the page uses

    @property
    def app(self) -> ReadModel:
        """The app; only its read model if only the store's URL is known."""
        return self.site.app

    @property
    def registry(self) -> Registry | None:
        """The app with its declarations; None if only the store's URL is known."""
        return self.site.registry

    @property
    def store(self) -> Store:
        return self.site.app.store

    @property
    def dlq(self) -> DeadLetters:
        """The dead letters of the store, without the app's declarations if only the store's URL is known."""
        return DeadLetters(self.store, self.registry)

    @property
    def actor(self) -> str:
        """The actor that the audit log names. A user's name that could be taken for another name, or for the system
        user of this process, is quoted."""
        name, process = self.user.name, system_user()
        return repr(name) if name and (name != name.strip() or name == process) else name or process

    @property
    def sees_bodies(self) -> bool:
        return self.user.may(Permission.VIEW_BODIES)

    def kept(self, key: str, read: Callable[[], T]) -> KeptValue[T]:
        """Return a sum over many messages, cached under `key` for all pages, with its age. See `sums.py`."""
        return self._aged(self.site.sums.get(key, read, self.patience_s))

    def status(self) -> KeptValue[Status]:
        """Return the store's status, as `redrive status` shows it, with its age. Raises StoreError."""
        return self._aged(self.site.status(self.patience_s))

    def _aged(self, kept: KeptValue[T]) -> KeptValue[T]:
        self.ages_s.append(kept.age_s)
        return kept

    def stale(self, now_ms: int) -> Record | None:
        """Return the age of the oldest sum on the page; None if that is younger than OLD_S."""
        age_s = max(self.ages_s, default=0.0)
        return {"as_of": timestamp(now_ms - round(age_s * 1000)), "age_s": age_s} if age_s >= OLD_S else None

    def kept_soon(self, key: str, read: Callable[[], T]) -> KeptValue[T] | None:
        """Return a cached sum as `kept` does, or None if it is not available within WAITED_S."""
        kept = self.site.sums.within(WAITED_S, key, read)
        return None if kept is None else self._aged(kept)

    def command(self, *words: str) -> str:
        """Return the command line of `redrive` with these words, for this app or store."""
        return self.leads(shlex.join(words))

    def leads(self, words: str) -> str:
        """Return the command line of `redrive` with these words, which are quoted already, for this app or store."""
        spec = getattr(self.registry, "spec", None)
        at = ("--app", spec) if spec else ("--url", self.site.url)
        named = spec is not None and spec in shlex.split(words)  # the words contain the app already
        return f"redrive {words}" if named else f"redrive {words} {shlex.join(at)}"

    def text(self, name: str, default: str = "") -> str:
        """Return a field of the form, or else of the query, without surrounding space. Raises Problem if it is too
        long; the limit is higher for a selector, which may list messages."""
        given = self.form.get(name) or self.query.get(name) or default
        if len(given) > (most := SELECTOR_MAX if name == "q" else TEXT_MAX):
            raise Problem(f"{name} is too long", f"it has {len(given):,} characters; at most {most:,}", status=413)
        return given.strip()

    def needed(self, name: str, what: str = "") -> str:
        """Return the field `name`. Raises Problem, which calls it `what`, if it is empty."""
        if not (text := self.text(name)):
            raise Problem(f"{what or name} is missing", f"the field '{name}' is empty", "go back and fill it in", 422)
        return text

    def number(self, name: str, default: int, *, least: int = 0, most: int = 10**9) -> int:
        """Return the field `name` as a whole number, or `default` if it is empty. Raises Problem if it is no number
        from `least` to `most`."""
        if not (given := self.text(name)):
            return default
        try:
            found = int(given)
        except ValueError:
            raise Problem(f"{name}={given!r} is not a number", f"expected {least} to {most}", status=422) from None
        if not least <= found <= most:
            raise Problem(f"{name}={found} is out of bounds", f"expected {least} to {most}", status=422)
        return found

    def duration_ms(self, name: str, default: str) -> int:
        """Return the field `name`, or else `default`, in ms: a duration such as 30s, 10m or 6h. Raises Problem for any
        other text."""
        try:
            return milliseconds(self.text(name, default), name)
        except (ConfigError, ValueError, TypeError) as error:
            raise Problem(str(error), status=422) from None

    def lasting(self, name: str) -> str | None:
        """Return the field `name`, a duration; None if it is empty. Raises Problem for any other text."""
        if not (given := self.text(name)):
            return None
        try:
            milliseconds(given, name)
        except (ConfigError, ValueError, TypeError):
            raise Problem(f"{name}={given!r} is not a duration", "expected such as 15m, 2h or 1d", status=422) from None
        return given

    def checked(self, name: str) -> bool:
        """Return True if the box of this name is ticked."""
        return self.text(name).lower() in ("on", "1", "true", "yes")

    def all(self, name: str) -> list[str]:
        """Return all values of this name in the request that are not empty, such as the ticked rows of a list."""
        return [value for value in self.lists.get(name, ()) if value]

    @property
    def reason(self) -> str:
        """The reason that the user gave for a change. Raises Problem if it is empty."""
        return self.needed("reason", "the reason")

    def confirm(self, count: int) -> None:
        """Raise Problem if an action concerns more than a hundred messages and the user did not type their number."""
        typed = self.text("count")
        if needs_number(count) and not is_number(typed, count):
            said = f"'{typed}' was typed" if typed else "it was not typed"
            why = f"this concerns {count:,} messages, and {said}"
            raise Problem("nothing was done: type the number of messages", why, "go back and type the number", 409)
