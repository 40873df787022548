"""Read the class, text and attributes of an exception, and the exception it was raised from.

Clients, drivers and services are known by the names of their classes and attributes, so no library is imported. The
code of a foreign exception may raise, return wrong values or never return: classes are read past their metaclass,
attributes through `get`, texts through `text_of`. Only a KeyboardInterrupt passes, since it comes from the user and not
from the exception.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import TracebackType
from typing import Any, TypeAlias

from msgspec import Struct

from ..errors import Steer
from .known_errors import BY_AWS_CODE, BY_CLASS, BY_ERRNO, BY_SQLITE, BY_SQLSTATE, PROGRAM_ERRORS, kind_of_status
from .model import TEXT_MAX, Kind
from .retry_after import RETRY_AFTER_MAX_S, http_date, parse_retry_after, whole_seconds
from .text_patterns import over_quota

CAUSES_MAX = 8  # most exceptions read of a chain, from the outer one inwards
DEPTH_MAX = 4  # most levels of groups within groups
MEMBERS_MAX = 16  # most members read of an exception group
_REMEMBERED_MAX = 256  # most exceptions cached per failure
HEADER_MAX = 256
BODY_MAX = 4_096  # most bytes read of a response's body
CLASSES_MAX = 64  # most class names in Fault.errors
_CLASSES_REMEMBERED_MAX = 4_096
NAME_MAX = 200  # most characters of a class's qualified name, or of a service's code
WORD_MAX = 500  # characters; where a text is cut, a shorter word is dropped as a whole
SHOWN_MAX = 80  # most characters of a value in an error message

# Names of all attributes that are read, by the kind of library whose exceptions have them.
_SQL = frozenset({"connection_invalidated", "orig", "sqlstate", "pgcode", "sqlite_errorname"})
_HTTP = frozenset({"response", "status_code", "status", "http_status", "code", "headers", "retry_after"})
_TELLING = _SQL | _HTTP | {"errno", "reason"}
_NONE: frozenset[str] = frozenset()
_ANSWERING = frozenset({"__getattr__", "__getattribute__"})  # a class with one of these methods may have any attribute
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class was made at run time; static C classes cannot be changed

_Reading: TypeAlias = tuple[Kind | None, str, float | None]  # kind, code and requested delay in seconds


class ExceptionFacts(Struct, frozen=True):
    """The facts of one exception, without its causes."""

    exception: BaseException
    known: KnownClass
    text: str
    telling: frozenset[str]  # names of attributes of _TELLING that the exception may have
    kind: Kind | None
    code: str  # HTTP status, SQLSTATE, errno or service code; the fingerprint has it, since texts quote or omit it
    retry_after_s: float | None


class KnownClass(Struct, frozen=True):
    """The facts of an exception class."""

    name: str
    errors: tuple[str, ...]
    kind: Kind | None
    plain: bool  # builtin: of its attributes only those of OSError are read
    os_error: bool
    program_error: bool
    group: bool
    steer: bool
    telling: frozenset[str]  # names of attributes of _TELLING that its classes define
    namespaces: tuple[Mapping[str, object], ...]  # namespaces of its classes, if attributes can be added to them
    sizes: tuple[int, ...]  # sizes of the namespaces when they were read


class Inspection:
    """The exceptions of one failure, each read once for its kind, traceback and fingerprint."""

    __slots__ = ("_now", "_seen")

    def __init__(self, now: datetime | None) -> None:
        self._now = now
        self._seen: dict[int, ExceptionFacts] = {}  # by id, unique while the exception is in its facts

    def see(self, exception: BaseException) -> ExceptionFacts:
        """Return the facts of the exception, which is read only once."""
        seen = self._seen.get(id(exception))
        if seen is None:
            seen = _inspect(exception, self._now)
            if len(self._seen) < _REMEMBERED_MAX:
                self._seen[id(exception)] = seen
        return seen

    def chain(self, exception: BaseException) -> list[ExceptionFacts]:
        """Return the exception and its causes, outermost first. `__context__` does not count as a cause."""
        chain = [self.see(exception)]
        inner = _inner(chain[0])
        while inner is not None and len(chain) < CAUSES_MAX and all(inner is not each.exception for each in chain):
            chain.append(self.see(inner))
            inner = _inner(chain[-1])
        return chain


def _inspect(exception: BaseException, now: datetime | None) -> ExceptionFacts:
    known = _known_class(exception)
    text = text_of(exception, known.name)
    attributes = attributes_of(exception)
    if known.plain and not known.os_error and not attributes:
        return ExceptionFacts(exception, known, text, _NONE, known.kind, "", None)
    names = _telling(known, attributes)
    if not names:
        return ExceptionFacts(exception, known, text, _NONE, _kind_of_class(known, text), "", None)
    reading = call(_read, exception, known, text, names, now) or (known.kind, "", None)
    return ExceptionFacts(exception, known, text, names, *reading)


def _inner(seen: ExceptionFacts) -> BaseException | None:
    cause = cause_of(seen.exception)
    if cause is not None or seen.known.plain or "reason" not in seen.telling:
        return cause
    reason = get(seen.exception, "reason")  # an attribute of URLError (urllib) and MaxRetryError (urllib3)
    return reason if _is_exception(reason) else None


def _known_class(exception: BaseException) -> KnownClass:
    try:
        return _read_class_once(type(exception))
    except KeyboardInterrupt:
        raise
    except BaseException:  # a metaclass's __hash__ may raise
        return _read_class(type(exception))


def _read_class(cls: type) -> KnownClass:
    mro = bases_of(cls)
    names = tuple(_name_of(each) for each in mro[:CLASSES_MAX] if each is not object)
    plain = all(call(_module, each) == "builtins" for each in mro)
    namespaces = tuple(namespace_of(each) for each in mro if _flags_of(each) & _HEAP_TYPE)
    return KnownClass(
        name=names[0],
        errors=names,
        kind=next((BY_CLASS[name] for name in names if name in BY_CLASS), None),
        plain=plain,
        os_error=OSError in mro,
        program_error=plain and any(each in mro for each in PROGRAM_ERRORS),
        group=BaseExceptionGroup in mro,
        steer=Steer in mro,
        telling=_telling_of(mro),
        namespaces=namespaces,
        sizes=tuple(map(len, namespaces)),
    )


_read_class_once: Callable[[type], KnownClass] = lru_cache(maxsize=_CLASSES_REMEMBERED_MAX)(_read_class)


def _telling_of(mro: tuple[type, ...]) -> frozenset[str]:
    names: set[str] = set()
    for each in mro:
        if each is not BaseException and each is not object:  # both define an ordinary __getattribute__
            defined = call((_TELLING | _ANSWERING).intersection, namespace_of(each))
            names |= _ANSWERING if defined is None else defined
    return _TELLING if names & _ANSWERING else frozenset(names)


def _telling(known: KnownClass, attributes: Mapping[str, object]) -> frozenset[str]:
    """Return the names in _TELLING that an exception of this class with these attributes may have.

    Most exceptions have none of them, and reading all would cost more than the rest of a classification.
    """
    if type(attributes) is not dict or tuple(map(len, known.namespaces)) != known.sizes:
        return _TELLING  # a dict subclass may return wrong values; a class may have gained attributes
    try:
        return known.telling if _TELLING.isdisjoint(attributes) else _TELLING
    except KeyboardInterrupt:
        raise
    except BaseException:  # a key may not be comparable
        return _TELLING


def _read(
    exception: BaseException, known: KnownClass, text: str, telling: frozenset[str], now: datetime | None
) -> _Reading:
    """Read kind, code and requested delay. For the kind, a code outweighs the class, and the class a status."""
    kind, code = (None, "") if telling.isdisjoint(_SQL) else _read_sql(exception)
    status, service_code, asked_s = (None, "", None) if telling.isdisjoint(_HTTP) else _read_http(exception, now)
    kind = kind or BY_AWS_CODE.get(service_code) or _kind_of_class(known, text)
    code = code or service_code or str(status or "")
    if known.os_error and not code:
        number = _integer(get(exception, "errno"))
        kind, code = kind or BY_ERRNO.get(number or 0), str(number or "")
    if kind is None and status is not None:
        kind = Kind.QUOTA if _over_quota(exception, status, text) else kind_of_status(status, asked_s)
    if kind is None and asked_s is not None and status is None:
        kind = Kind.THROTTLED  # the only sign is a requested delay, as `retry_after` of a chat client
    return kind, code, asked_s


def _kind_of_class(known: KnownClass, text: str) -> Kind | None:
    """Return the class's kind, but permanent for a rejected certificate: clients report a failed connection."""
    refused = known.kind is Kind.TRANSIENT and "certificate verify failed" in text.lower().replace("_", " ")
    return Kind.PERMANENT if refused else known.kind


def _read_sql(exception: BaseException) -> tuple[Kind | None, str]:
    """Read kind and code of a SQL error: psycopg, asyncpg, psycopg2, sqlite3, or SQLAlchemy, which wraps it."""
    if get(exception, "connection_invalidated") is True:
        return Kind.TRANSIENT, "connection_invalidated"
    original = get(exception, "orig")
    source = original if _is_exception(original) else exception
    for name in ("sqlstate", "pgcode"):
        state = string(get(source, name))
        if len(state) == 5:
            return next((BY_SQLSTATE[state[:n]] for n in (5, 3, 2) if state[:n] in BY_SQLSTATE), None), state
    name = string(get(source, "sqlite_errorname"))[:NAME_MAX]
    return (_sqlite_kind(name, source), name) if name else (None, "")


def _sqlite_kind(name: str, exception: BaseException) -> Kind | None:
    primary = name.split("_")[1] if "_" in name else name  # SQLITE_BUSY_SNAPSHOT counts as BUSY
    if primary == "ERROR" and string(call(str, exception)).startswith(("no such table", "no such column", "near ")):
        return Kind.PERMANENT  # the statement is wrong; other uses of ERROR are ambiguous
    return BY_SQLITE.get(primary)


def _read_http(exception: BaseException, now: datetime | None) -> tuple[int | None, str, float | None]:
    """Return HTTP status, service code and requested delay in seconds, from a response or the exception itself.

    Does not touch `response.text` and similar attributes, which may read from the network.
    """
    response = get(exception, "response")
    if isinstance(response, dict):  # a response of botocore
        meta, error = response.get("ResponseMetadata"), response.get("Error")
        code = string(_item(error, "Code"))[:NAME_MAX]
        return _status(_item(meta, "HTTPStatusCode")), code, _asked_s(exception, _item(meta, "HTTPHeaders"), now)
    codes = [_status(get(response, name)) for name in ("status_code", "status")] if response is not None else []
    codes += [_status(get(exception, name)) for name in ("status_code", "status", "http_status", "code")]
    headers = get(response, "headers")
    headers = get(exception, "headers") if headers is None else headers
    return next((each for each in codes if each is not None), None), "", _asked_s(exception, headers, now)


def _status(value: object) -> int | None:
    number = _integer(value)
    return number if number is not None and 400 <= number <= 599 else None


def _over_quota(exception: BaseException, status: int, text: str) -> bool:
    """True if the text, or the body of the response, reports an exhausted quota: some services report that in the body
    only. requests stores a body that was read in `_content`."""
    if over_quota(text):
        return True
    body = get(get(exception, "response"), "_content") if status in (403, 429) else None
    return isinstance(body, bytes) and over_quota(body[:BODY_MAX].decode("latin-1"))


def _asked_s(exception: BaseException, headers: object, now: datetime | None) -> float | None:
    value = _header(headers, "Retry-After")
    if value is None:
        return _wait_s(get(exception, "retry_after"))
    asked_s = whole_seconds(value)
    if asked_s is not None:
        return asked_s
    date = _header(headers, "Date") if now is None else None
    return parse_retry_after(value, now or (date and http_date(date, None)) or datetime.now(UTC))


def _header(headers: object, name: str) -> str | None:
    """Return one header as text; None without it. The mappings of clients ignore case, a plain dict may not."""
    reader = get(headers, "get")
    for spelling in (name, name.lower()) if callable(reader) else ():
        value = call(reader, spelling)
        if isinstance(value, bytes):
            return value[:HEADER_MAX].decode("latin-1")
        if isinstance(value, str | int):
            return string(value if isinstance(value, str) else call(str, value))[:HEADER_MAX]
    return None


def _wait_s(value: object) -> float | None:
    if isinstance(value, timedelta):
        value = call(value.total_seconds)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    seconds = call(float, value)
    return min(seconds, RETRY_AFTER_MAX_S) if isinstance(seconds, float) and seconds >= 0 else None


# Descriptors of `type` itself: a class or its metaclass may define properties with these names.
_class_dict: Mapping[str, Any] = type.__dict__
bases_of: Callable[[type], tuple[type, ...]] = _class_dict["__mro__"].__get__
namespace_of: Callable[[type], Mapping[str, object]] = _class_dict["__dict__"].__get__
_flags_of: Callable[[type], int] = _class_dict["__flags__"].__get__
_qualname: Callable[[type], str] = _class_dict["__qualname__"].__get__
_module: Callable[[type], object] = _class_dict["__module__"].__get__
traceback_of: Callable[[BaseException], TracebackType | None] = BaseException.__dict__["__traceback__"].__get__
cause_of: Callable[[BaseException], BaseException | None] = BaseException.__dict__["__cause__"].__get__
context_of: Callable[[BaseException], BaseException | None] = BaseException.__dict__["__context__"].__get__
suppressed: Callable[[BaseException], bool] = BaseException.__dict__["__suppress_context__"].__get__
attributes_of: Callable[[BaseException], Mapping[str, Any]] = BaseException.__dict__["__dict__"].__get__
members_of: Callable[[BaseException], tuple[BaseException, ...]] = BaseExceptionGroup.__dict__["exceptions"].__get__
message_of: Callable[[BaseException], str] = BaseExceptionGroup.__dict__["message"].__get__


def text_of(exception: BaseException, name: str) -> str:
    """Return the exception's `str`, bounded; if `str` raises, a placeholder with the class name."""
    try:
        return storable(str(exception), TEXT_MAX)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"<unprintable {name} object>"


def storable(text: str, limit: int) -> str:
    """Return the text cut to `limit` characters, without the NULs and lone surrogates that stores refuse.

    The cut is between words if possible: half of a secret would not be recognized and redacted.
    """
    text = str.__str__(text)  # a subclass of str may override methods
    if len(text) > limit:
        mark = f"… ({len(text):,} characters)"
        head = text[: limit - len(mark)]
        if not text[len(head)].isspace():
            cut = max(head.rfind(space, -WORD_MAX) for space in " \n\t")
            head = head if cut < 0 else head[: cut + 1]
        text = head + mark
    if "\0" in text:
        text = text.replace("\0", "\\x00")[:limit]
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()[:limit]


def get(thing: object, name: str) -> Any:
    """Return the attribute of this name; None if there is none or if reading it raises."""
    try:
        return getattr(thing, name, None)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def call(function: Any, *arguments: object) -> Any:
    """Return the result of the function; None if the function raises."""
    try:
        return function(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def string(value: object) -> str:
    """Return the value if it is a text, otherwise an empty text."""
    return str.__str__(value) if isinstance(value, str) else ""


def printable(value: object) -> str:
    """Return the value's `repr` for an error message, at most SHOWN_MAX characters."""
    text = call(repr, value)
    return storable(text, SHOWN_MAX) if isinstance(text, str) else f"<unprintable {_name_of(type(value))} object>"


def _integer(value: object) -> int | None:
    return int.__index__(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _item(mapping: object, key: str) -> object:
    return mapping.get(key) if isinstance(mapping, dict) else None


def _is_exception(value: object) -> bool:
    return issubclass(type(value), BaseException)  # isinstance would trust the value's own __class__


def _name_of(cls: type) -> str:
    """Return the qualified name of a class, at most NAME_MAX characters; the names of builtins without the module."""
    module, name = call(_module, cls), storable(_qualname(cls), NAME_MAX)
    if not isinstance(module, str) or module == "builtins":
        return name
    return storable(f"{str.__str__(module)}.{name}", NAME_MAX)
