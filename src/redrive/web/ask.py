"""What a page or an action is given: who asks, for which address, with which form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..audit.actor import user as system_user
from ..duration import milliseconds
from ..errors import ConfigError
from ..present.formats import timestamp
from ..triage.actions import CONFIRM_ABOVE
from ..triage.dlq import DeadLetters
from .access import Permission, User
from .sums import OLD_S, WAITED_S

TEXT_MAX, SELECTOR_MAX = 4_000, 100_000  # characters of a field of a form, and of a selector

if TYPE_CHECKING:
    from ..read_model import ReadModel
    from ..registry import Registry
    from ..status import Status
    from ..store import Store
    from .access import Access
    from .sums import KeptValue, Sums

T = TypeVar("T")
Record = dict[str, Any]


class SiteParts(Protocol):
    """What pages and actions need of the site that they belong to."""

    app: ReadModel
    registry: Registry | None
    read_only: bool
    url: str
    access: Access
    sums: Sums

    def status(self, patience_s: float = 0.0) -> KeptValue[Status]:
        """The status, as `redrive status` shows it, with its age. Raises StoreError."""
        ...


class Problem(Exception):
    """A request that cannot be answered: what, why, what next, and the status of HTTP."""

    def __init__(self, what: str, why: str = "", next: str = "", status: int = 400) -> None:
        super().__init__(what)
        self.what, self.why, self.next, self.status = what, why, next, status


class PageAnswer(Record):
    """A page's record that is answered otherwise than by 200: with another `status` of HTTP or, to a browser, by
    leading it `to` an address (parts as `url` takes them). `typed` is what the reader typed: the page shows it again
    as it is, and JSON leaves it out. An action that returns one shows the page `name` instead of what it did."""

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
    """What an action did, in words; the address (parts as `url` takes them) that shows it; and the record of JSON."""

    text: str
    to: tuple[str, ...] = ("",)
    record: Record = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Download:
    """A file that an action returns."""

    name: str
    content: bytes
    type: str = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One request. `path` has the parts of the address, `query` and `form` the last value of each name, `lists` all
    values of the form and the query."""

    site: SiteParts
    user: User
    path: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, str]
    lists: Mapping[str, Sequence[str]]
    patience_s: float = 0.0  # how long a new sum is waited for where the known one is old
    ages_s: list[float] = field(default_factory=list)  # of the sums that were shown

    @property
    def app(self) -> ReadModel:
        """The app, or a bare one on the store where only its URL is known."""
        return self.site.app

    @property
    def registry(self) -> Registry | None:
        """The app's declarations; None where only the store's URL is known."""
        return self.site.registry

    @property
    def store(self) -> Store:
        return self.site.app.store

    @property
    def dlq(self) -> DeadLetters:
        """The dead letters; without an app's declarations where only the store's URL is known."""
        return DeadLetters(self.store, self.registry)

    @property
    def actor(self) -> str:
        """Who the audit log says it was. A login that could be taken for another name, or for the user of this process,
        is quoted."""
        name, process = self.user.name, system_user()
        return repr(name) if name and (name != name.strip() or name == process) else name or process

    @property
    def sees_bodies(self) -> bool:
        return self.user.may(Permission.VIEW_BODIES)

    def kept(self, key: str, read: Callable[[], T]) -> KeptValue[T]:
        """A sum over many messages that all pages share, with its age. See `sums.py`."""
        return self._aged(self.site.sums.get(key, read, self.patience_s))

    def status(self) -> KeptValue[Status]:
        """The status, as `redrive status` shows it. Raises StoreError."""
        return self._aged(self.site.status(self.patience_s))

    def _aged(self, kept: KeptValue[T]) -> KeptValue[T]:
        self.ages_s.append(kept.age_s)
        return kept

    def stale(self, now_ms: int) -> Record | None:
        """How old the oldest sum is that was shown; None if none is old."""
        age_s = max(self.ages_s, default=0.0)
        return {"as_of": timestamp(now_ms - round(age_s * 1000)), "age_s": age_s} if age_s >= OLD_S else None

    def kept_soon(self, key: str, read: Callable[[], T]) -> KeptValue[T] | None:
        """The same; None where a page can do without it and it is not there at once."""
        kept = self.site.sums.within(WAITED_S, key, read)
        return None if kept is None else self._aged(kept)

    # -- reading forms: each raises Problem for what it cannot take

    def text(self, name: str, default: str = "") -> str:
        """A field of the form or, without one, of the query, without white space around it. Raises Problem for one
        that is too long for what fields hold: names, reasons, numbers; a selector may list messages."""
        given = self.form.get(name) or self.query.get(name) or default
        if len(given) > (most := SELECTOR_MAX if name == "q" else TEXT_MAX):
            raise Problem(f"{name} is too long", f"it has {len(given):,} characters; at most {most:,}", status=413)
        return given.strip()

    def needed(self, name: str, what: str = "") -> str:
        """A field that must not be empty."""
        if not (text := self.text(name)):
            raise Problem(f"{what or name} is missing", f"the field '{name}' is empty", "go back and fill it in", 422)
        return text

    def number(self, name: str, default: int, *, least: int = 0, most: int = 10**9) -> int:
        """A whole number within bounds."""
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
        """A time such as 30s, 10m, 6h."""
        try:
            return milliseconds(self.text(name, default), name)
        except (ConfigError, ValueError, TypeError) as error:
            raise Problem(str(error), status=422) from None

    def checked(self, name: str) -> bool:
        """Whether a box is ticked."""
        return self.text(name).lower() in ("on", "1", "true", "yes")

    def all(self, name: str) -> list[str]:
        """All values of a name, such as the ticked rows of a list."""
        return [value for value in self.lists.get(name, ()) if value]

    @property
    def reason(self) -> str:
        """Why somebody acts: needed for all that changes messages."""
        return self.needed("reason", "the reason")

    def confirm(self, count: int) -> None:
        """Above a hundred messages, who acts types their number. Raises Problem."""
        if count <= CONFIRM_ABOVE:
            return
        typed = self.text("count").replace(",", "").replace(" ", "")
        if typed != str(count):
            said = f"'{typed}' was typed" if typed else "it was not typed"
            why = f"this concerns {count:,} messages, and {said}"
            raise Problem("nothing was done: type the number of messages", why, "go back and type the number", 409)
