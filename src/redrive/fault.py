"""What went wrong, as a value: `classify(exception) -> Fault` with a kind, a bounded traceback and a fingerprint.

Order: what the handler raised to steer; the task's own rules; well-known exceptions, by the names of their classes and
by their attributes, so that no library is imported; the HTTP status; patterns in the text. Unknown is `default`.

Every attribute of a foreign exception may lie, raise or be endless. So classes are read past their metaclass,
attributes through `_get`, texts through `_text`, and each loop has a named bound.
"""

from __future__ import annotations

import errno
import linecache
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache, lru_cache
from hashlib import blake2b
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from .errors import Quarantine, Reject, RetryAfter, Snooze, Steer

TEXT_MAX = 2_000  # characters of Fault.text
TRACEBACK_MAX = 8_000  # characters of Fault.traceback
HEADER_MAX = 256
BODY_MAX = 4_096  # bytes of a response looked at
NAME_MAX = 200  # characters of a class's qualified name
CLASSES_MAX = 64  # names in Fault.errors
CAUSES_MAX = 8  # exceptions looked through from the outer one inwards
MEMBERS_MAX = 16  # of one exception group
DEPTH_MAX = 4  # groups within groups
SHOWN_MAX = 16  # exceptions in one traceback
NOTES_MAX = 5
FRAMES_WALKED_MAX = 100_000
FRAMES_HEAD, FRAMES_TAIL = 8, 24  # frames shown of one exception: its outermost and its innermost
LINE_MAX = 200  # characters of a source line
PLACES_MAX = 5  # functions in a fingerprint
NORMALIZED_FROM_MAX = 1_000  # characters of a text that are normalized
NORMALIZED_MAX = 400  # characters of the result that count: the end moves with the length of what was replaced
RETRY_AFTER_MAX_S = 365 * 86_400.0
_CACHE_MAX = 4_096  # classes, lines of code
_TEXTS_CACHED_MAX = 1_024  # fingerprints; their texts are kept as long

T = TypeVar("T")


class Kind(StrEnum):
    """What sort of failure it is; policies choose by it. `permanent`, `unreadable` and `unroutable` are not retried."""

    TRANSIENT = "transient"
    THROTTLED = "throttled"
    QUOTA = "quota"
    TIMEOUT = "timeout"
    PERMANENT = "permanent"
    CRASHED = "crashed"
    INTERRUPTED = "interrupted"
    UNREADABLE = "unreadable"
    UNROUTABLE = "unroutable"
    DEFAULT = "default"


class Fault(Struct, frozen=True, gc=False, omit_defaults=True):
    """A classified failure. Texts are bounded and can be encoded as UTF-8; the worker fills in `at_ms` and the rest."""

    kind: Kind
    error: str = ""  # the class's qualified name; builtins without a module
    text: str = ""
    fingerprint: str = ""  # 16 hex digits
    errors: tuple[str, ...] = ()  # all its classes, most special first, without object
    traceback: str = ""
    retry_after_s: float | None = None  # what the failing side, or the handler, asked for
    steer: str = ""  # retry_after, snooze, reject or quarantine: the handler said so
    at_ms: int = 0
    attempt: int = 0
    worker: str = ""
    delay_ms: int | None = None


Matcher: TypeAlias = type[BaseException] | Callable[[BaseException], object] | re.Pattern[str] | str
Rule: TypeAlias = tuple[Matcher, Kind | str]


def classify(exception: BaseException, rules: Sequence[Rule] = (), *, now: datetime | None = None) -> Fault:
    """Return the Fault an exception amounts to. Never raises, whatever the exception does, but a KeyboardInterrupt.

    `rules` are tried in order on the exception and then on its causes, the first match wins: an exception class, a
    predicate (one that raises does not match), a compiled pattern, or a plain text, found in upper or lower case.
    A generic exception takes the kind of its nearest known `__cause__`, an exception group that of its gravest member.
    Kinds `crashed`, `interrupted`, `unreadable` and `unroutable` are the worker's to give: no exception alone proves
    them. A `CancelledError` is `default`, since only the worker knows whether it was it that cancelled.

    `now` is needed for a Retry-After that is a date: without it the response's own Date header is taken, and only where
    that is missing too the local clock is read, the one place here that does.
    """
    try:
        return _fault(exception, rules, now)
    except KeyboardInterrupt:
        raise
    except BaseException:  # what _get and _text let through, e.g. the end of memory or of the stack
        return Fault(Kind.DEFAULT, text="an exception that cannot be classified", fingerprint="0" * 16)


def _fault(exception: BaseException, rules: Sequence[Rule], now: datetime | None) -> Fault:
    seen = _look(exception, now)
    chain = _chain(seen, now)
    verdict = _judge(chain, rules, now)
    frames = _frames(exception)
    return Fault(
        verdict.kind or Kind.DEFAULT,
        seen.known.name,
        seen.text,
        _fingerprint(chain, frames, now),
        seen.known.errors,
        _traceback(exception, seen.known, seen.text, frames),
        verdict.retry_after_s,
        verdict.steer,
    )


# Kind, module, classes. The most special class of an exception that stands here decides.
_CLASSES = """
timeout   builtins                      TimeoutError
timeout   subprocess                    TimeoutExpired
timeout   httpx                         TimeoutException
timeout   httpcore                      TimeoutException
timeout   requests.exceptions           Timeout ConnectTimeout
timeout   urllib3.exceptions            TimeoutError
timeout   aiohttp.client_exceptions     ServerTimeoutError
timeout   botocore.exceptions           ConnectTimeoutError ReadTimeoutError
timeout   psycopg.errors                ConnectionTimeout
timeout   psycopg_pool                  PoolTimeout
timeout   sqlalchemy.exc                TimeoutError
timeout   redis.exceptions              TimeoutError
transient builtins                      ConnectionError
transient socket                        gaierror herror
transient ssl                           SSLError
transient asyncio.exceptions            IncompleteReadError
transient http.client                   BadStatusLine IncompleteRead
transient httpx                         NetworkError RemoteProtocolError ProxyError
transient httpcore                      NetworkError RemoteProtocolError ProxyError
transient requests.exceptions           ConnectionError ChunkedEncodingError RetryError
transient urllib3.exceptions            NewConnectionError ProtocolError ProxyError SSLError IncompleteRead
transient urllib3.exceptions            EmptyPoolError
transient aiohttp.client_exceptions     ClientConnectionError ClientPayloadError
transient botocore.exceptions           ConnectionError HTTPClientError IncompleteReadError CredentialRetrievalError
transient psycopg                       OperationalError
transient psycopg2                      OperationalError
transient sqlalchemy.exc                OperationalError DisconnectionError
transient sqlalchemy.orm.exc            StaleDataError
transient redis.exceptions              ConnectionError TryAgainError ClusterDownError ClusterError AskError
transient redis.exceptions              ReadOnlyError OutOfMemoryError LockError WatchError
transient redrive.errors                StoreUnavailable
permanent ssl                           SSLCertVerificationError
permanent http.client                   InvalidURL
permanent httpx                         InvalidURL UnsupportedProtocol LocalProtocolError TooManyRedirects
permanent requests.exceptions           InvalidURL InvalidSchema MissingSchema InvalidHeader TooManyRedirects
permanent urllib3.exceptions            LocationValueError
permanent aiohttp.client_exceptions     InvalidURL NonHttpUrlClientError TooManyRedirects ServerFingerprintMismatch
permanent aiohttp.client_exceptions     ClientConnectorCertificateError
permanent botocore.exceptions           ParamValidationError
permanent sqlite3                       IntegrityError DataError
permanent psycopg                       IntegrityError DataError
permanent psycopg2                      IntegrityError DataError
permanent sqlalchemy.exc                IntegrityError DataError
permanent redis.exceptions              AuthenticationError AuthorizationError NoPermissionError DataError
permanent redis.exceptions              ClusterCrossSlotError
"""


def _by_class(table: str) -> Mapping[str, Kind]:
    rows = [line.split() for line in table.strip().splitlines()]
    return {f"{module}.{name}".removeprefix("builtins."): Kind(kind) for kind, module, *names in rows for name in names}


_BY_CLASS = _by_class(_CLASSES)
# These say where the code is wrong. Their texts quote names out of it, which no pattern shall take for a condition.
_PROGRAM_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, SyntaxError, TypeError
)  # fmt: skip

_ERRNO_NAMES = {
    Kind.TIMEOUT: "ETIMEDOUT",
    Kind.QUOTA: "EDQUOT",
    Kind.TRANSIENT: """EAGAIN EWOULDBLOCK EINTR EBUSY EIO ENOMEM ENFILE EMFILE ENOSPC EDEADLK ENOLCK ENOBUFS EPIPE
        ETXTBSY ESTALE ENETDOWN ENETUNREACH ENETRESET EHOSTDOWN EHOSTUNREACH ECONNABORTED ECONNREFUSED ECONNRESET
        ENOTCONN EADDRNOTAVAIL""",
}
_BY_ERRNO = {
    getattr(errno, name): kind
    for kind, names in _ERRNO_NAMES.items()
    for name in names.split()
    if hasattr(errno, name)  # EDQUOT and others are not known on every system
}

_BY_SQLSTATE = {  # by the longest prefix (PostgreSQL, appendix A)
    **dict.fromkeys(("08", "40", "53", "57P", "58", "25006", "55006", "55P03"), Kind.TRANSIENT),
    **dict.fromkeys(("0A", "22", "23", "28", "3D", "3F", "40002", "42", "44"), Kind.PERMANENT),
    **dict.fromkeys(("57014", "25P03"), Kind.TIMEOUT),
}
_BY_SQLITE = {
    **dict.fromkeys(("BUSY", "LOCKED", "IOERR", "FULL", "CANTOPEN", "PROTOCOL", "NOMEM", "INTERRUPT"), Kind.TRANSIENT),
    **dict.fromkeys(("CONSTRAINT", "MISMATCH", "TOOBIG", "RANGE", "AUTH"), Kind.PERMANENT),
}
_BY_AWS_CODE = {
    name: kind
    for kind, names in {
        Kind.THROTTLED: """Throttling ThrottlingException ThrottledException RequestThrottledException RequestThrottled
            TooManyRequestsException ProvisionedThroughputExceededException RequestLimitExceeded BandwidthLimitExceeded
            LimitExceededException SlowDown EC2ThrottledException KmsThrottled OverLimit""",
        Kind.QUOTA: "ServiceQuotaExceededException QuotaExceededException AccountLimitExceededException",
        Kind.TIMEOUT: "RequestTimeout RequestTimeoutException",
        Kind.TRANSIENT: """InternalError InternalFailure InternalServerError InternalServerException ServiceUnavailable
            ServiceUnavailableException TransactionInProgressException TransactionConflictException OperationAborted
            PriorRequestNotComplete ExpiredToken ExpiredTokenException IDPCommunicationError""",
    }.items()
    for name in names.split()
}

_HTTP_TRANSIENT = frozenset({408, 421, 423, 425})
_HTTP_THROTTLED = frozenset({429, 529})
_HTTP_PERMANENT = frozenset({501, 505, 511})


def _by_status(status: int, retry_after_s: float | None) -> Kind | None:
    """A 503 that names a time is a polite refusal. A status below 400 or above 599 says nothing."""
    if status in _HTTP_THROTTLED or (status == 503 and retry_after_s is not None):
        return Kind.THROTTLED
    if status in _HTTP_TRANSIENT or (500 <= status <= 599 and status not in _HTTP_PERMANENT):
        return Kind.TRANSIENT
    return Kind.PERMANENT if 400 <= status <= 599 else None


# Patterns are kept as texts and compiled at first use by `re`, which remembers them: imports stay cheap.
_QUOTA = r"(?i)quota[ _-]?(?:\w+ ){0,3}exceeded|exceeded [^.\n]{0,40}quota|(?:insufficient|over)[ _-]?quota"
_STATUS = r"(?i)\b(?:http|status)(?:/\d(?:\.\d)?)?(?:[ _-]?(?:code|error|status))?\W{1,3}([45]\d\d)\b"
_TOO_MUCH = r"(?i)too many requests|\brate[ _-]?limit(?:ed|ing|er| exceeded| reached)?\b|\bthrottl(?:ed|ing)\b"
_TOO_LATE = r"(?i)\btimed?[ -]?out\b|\bdeadline exceeded\b"
_PASSING = (
    r"(?i)\bconnection (?:\w+ ){0,2}(?:reset|refused|aborted|closed|lost|dropped)\b|\bbroken pipe\b|\bgone away\b"
    r"|\b(?:temporary|transient) (?:failure|error)\b|\btemporarily unavailable\b|\btry again later\b|\bbad gateway\b"
    r"|\b(?:service|server) (?:\w+ )?unavailable\b|\b(?:database|table)(?: \w+)? is locked\b"
    r"|\bdeadlock (?:found|detected)\b|\b(?:host|network) (?:is )?unreachable\b|\bno route to host\b"
)
# A pattern runs only where its stem occurs: most texts have none, and a substring is found 50 times faster.
_BY_TEXT: tuple[tuple[str, str, Kind], ...] = (
    ("quota", _QUOTA, Kind.QUOTA),
    ("too many", _TOO_MUCH, Kind.THROTTLED),
    ("rate", _TOO_MUCH, Kind.THROTTLED),
    ("throttl", _TOO_MUCH, Kind.THROTTLED),
    ("out", _TOO_LATE, Kind.TIMEOUT),
    ("deadline", _TOO_LATE, Kind.TIMEOUT),
    ("connection", _PASSING, Kind.TRANSIENT),
    ("tempor", _PASSING, Kind.TRANSIENT),
    ("transient", _PASSING, Kind.TRANSIENT),
    ("unavailable", _PASSING, Kind.TRANSIENT),
    ("unreachable", _PASSING, Kind.TRANSIENT),
    ("gateway", _PASSING, Kind.TRANSIENT),
    ("away", _PASSING, Kind.TRANSIENT),
    ("again", _PASSING, Kind.TRANSIENT),
    ("locked", _PASSING, Kind.TRANSIENT),
    ("deadlock", _PASSING, Kind.TRANSIENT),
    ("pipe", _PASSING, Kind.TRANSIENT),
    ("route", _PASSING, Kind.TRANSIENT),
)


def _by_text(text: str) -> Kind | None:
    low = text.lower()
    if ("http" in low or "status" in low) and (match := re.search(_STATUS, text)):
        return Kind.QUOTA if "quota" in low and re.search(_QUOTA, text) else _by_status(int(match[1]), None)
    for stem, pattern, kind in _BY_TEXT:
        if stem in low and re.search(pattern, text):
            return kind
    return None


# The real slots: a subclass may define properties of the same names, a metaclass may answer for its classes.
_class_dict: Mapping[str, Any] = type.__dict__
_mro: Callable[[type], tuple[type, ...]] = _class_dict["__mro__"].__get__
_qualname: Callable[[type], str] = _class_dict["__qualname__"].__get__
_module: Callable[[type], object] = _class_dict["__module__"].__get__
_tb_of: Callable[[BaseException], TracebackType | None] = BaseException.__dict__["__traceback__"].__get__
_cause_of: Callable[[BaseException], BaseException | None] = BaseException.__dict__["__cause__"].__get__
_context_of: Callable[[BaseException], BaseException | None] = BaseException.__dict__["__context__"].__get__
_suppressed: Callable[[BaseException], bool] = BaseException.__dict__["__suppress_context__"].__get__
_attributes: Callable[[BaseException], Mapping[str, Any]] = BaseException.__dict__["__dict__"].__get__
_members: Callable[[BaseException], tuple[BaseException, ...]] = BaseExceptionGroup.__dict__["exceptions"].__get__
_message_of: Callable[[BaseException], str] = BaseExceptionGroup.__dict__["message"].__get__


class _Known(NamedTuple):
    """What a class alone says."""

    name: str
    errors: tuple[str, ...]
    kind: Kind | None
    plain: bool  # builtin: has no attributes to look at but those of OSError
    os_error: bool
    program_error: bool
    group: bool
    steer: bool


class _Seen(NamedTuple):
    """What one exception says, without its causes."""

    exception: BaseException
    known: _Known
    text: str
    kind: Kind | None
    code: str  # HTTP status, SQLSTATE, errno or service code; part of the fingerprint, since texts quote or drop it
    retry_after_s: float | None


class _Verdict(NamedTuple):
    kind: Kind | None
    retry_after_s: float | None = None
    steer: str = ""


_SILENT = _Verdict(None)


def _storable(text: str, limit: int) -> str:
    """Cut to `limit` characters; lone surrogates and NULs, which stores refuse, become escapes."""
    text = str.__str__(text)  # a subclass's own methods would be called below
    if len(text) > limit:
        mark = f"… ({len(text):,} characters)"
        text = text[: limit - len(mark)] + mark
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text[:limit]


def _text(exception: BaseException, known: _Known) -> str:
    try:
        return _storable(str(exception), TEXT_MAX)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"<unprintable {known.name} object>"


def _get(thing: object, name: str) -> Any:
    """The attribute, or None if there is none or reading it raises."""
    try:
        return getattr(thing, name, None)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def _call(function: Any, *arguments: object) -> Any:
    """What the function returns, or None if it raises."""
    try:
        return function(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def _str(value: object) -> str:
    return str.__str__(value) if isinstance(value, str) else ""


def _int(value: object) -> int | None:
    return int.__index__(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _item(mapping: object, key: str) -> object:
    return mapping.get(key) if isinstance(mapping, dict) else None


def _first(values: Iterable[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)


def _is_exception(value: object) -> bool:
    return issubclass(type(value), BaseException)  # not isinstance, which asks the value's own __class__


def _name(cls: type) -> str:
    module, name = _call(_module, cls), _storable(_qualname(cls), NAME_MAX)
    if not isinstance(module, str) or module == "builtins":
        return name
    return _storable(f"{str.__str__(module)}.{name}", NAME_MAX)


def _know(cls: type) -> _Known:
    mro = _mro(cls)
    names = tuple(_name(each) for each in mro[:CLASSES_MAX] if each is not object)
    plain = all(_call(_module, each) == "builtins" for each in mro)
    return _Known(
        name=names[0],
        errors=names,
        kind=next((_BY_CLASS[name] for name in names if name in _BY_CLASS), None),
        plain=plain,
        os_error=OSError in mro,
        program_error=plain and any(each in mro for each in _PROGRAM_ERRORS),
        group=BaseExceptionGroup in mro,
        steer=Steer in mro,
    )


_know_cached = lru_cache(maxsize=_CACHE_MAX)(_know)


def _known_of(exception: BaseException) -> _Known:
    known: _Known | None = _call(_know_cached, type(exception))
    return known or _know(type(exception))  # a metaclass whose __hash__ raises


def _look(exception: BaseException, now: datetime | None) -> _Seen:
    known = _known_of(exception)
    text = _text(exception, known)
    if known.plain and not known.os_error and not _attributes(exception):
        return _Seen(exception, known, text, known.kind, "", None)
    reading = _call(_read, exception, known, text, now) or (known.kind, "", None)
    return _Seen(exception, known, text, *reading)


_Reading: TypeAlias = tuple[Kind | None, str, float | None]


def _read(exception: BaseException, known: _Known, text: str, now: datetime | None) -> _Reading:
    """Kind, code and seconds asked for. A code says more than the class that carries it, a class more than a status."""
    kind, code = _read_sql(exception)
    status, service_code, headers = _read_response(exception)
    asked_s = _asked_s(exception, headers, now)
    kind = kind or _BY_AWS_CODE.get(service_code) or _class_kind(known, text)
    code = code or service_code or str(status or "")
    if known.os_error and not code:
        number = _int(_get(exception, "errno"))
        kind, code = kind or _BY_ERRNO.get(number or 0), str(number or "")
    if kind is None and status is not None:
        kind = Kind.QUOTA if _over_quota(exception, status, text) else _by_status(status, asked_s)
    if kind is None and asked_s is not None and status is None:
        kind = Kind.THROTTLED  # nothing but a wish to wait, e.g. the `retry_after` of a chat service's client
    return kind, code, asked_s


def _class_kind(known: _Known, text: str) -> Kind | None:
    """Clients wrap a refused certificate in their connection error; only its text still says so."""
    refused = known.kind is Kind.TRANSIENT and "certificate verify failed" in text.lower().replace("_", " ")
    return Kind.PERMANENT if refused else known.kind


def _read_sql(exception: BaseException) -> tuple[Kind | None, str]:
    """psycopg and asyncpg (`sqlstate`), psycopg2 (`pgcode`), sqlite3; SQLAlchemy wraps any of them as `orig`."""
    if _get(exception, "connection_invalidated") is True:
        return Kind.TRANSIENT, "connection_invalidated"
    original = _get(exception, "orig")
    source = original if _is_exception(original) else exception
    for name in ("sqlstate", "pgcode"):
        state = _str(_get(source, name))
        if len(state) == 5:
            return next((_BY_SQLSTATE[state[:n]] for n in (5, 3, 2) if state[:n] in _BY_SQLSTATE), None), state
    name = _str(_get(source, "sqlite_errorname"))[:NAME_MAX]
    return (_sqlite_kind(name, source), name) if name else (None, "")


def _sqlite_kind(name: str, exception: BaseException) -> Kind | None:
    primary = name.split("_")[1] if "_" in name else name  # SQLITE_BUSY_SNAPSHOT is a BUSY
    if primary == "ERROR" and _str(_call(str, exception)).startswith(("no such table", "no such column", "near ")):
        return Kind.PERMANENT  # a mistake in the statement; other ERRORs may be anything
    return _BY_SQLITE.get(primary)


def _read_response(exception: BaseException) -> tuple[int | None, str, object]:
    """HTTP status, service code and headers, of a response or of the exception itself.

    Never `response.text` and the like, which may read from the network.
    """
    response = _get(exception, "response")
    if isinstance(response, dict):  # botocore
        meta, error = response.get("ResponseMetadata"), response.get("Error")
        status = _status(_item(meta, "HTTPStatusCode"))
        return status, _str(_item(error, "Code"))[:NAME_MAX], _item(meta, "HTTPHeaders")
    found = [_status(_get(response, name)) for name in ("status_code", "status")] if response is not None else []
    found += [_status(_get(exception, name)) for name in ("status_code", "status", "http_status", "code")]
    headers = _get(response, "headers")
    return _first(found), "", _get(exception, "headers") if headers is None else headers


def _status(value: object) -> int | None:
    number = _int(value)
    return number if number is not None and 400 <= number <= 599 else None


def _over_quota(exception: BaseException, status: int, text: str) -> bool:
    """Some say it in the body only; one that was read already lies in `_content`."""
    if "quota" in text.lower() and re.search(_QUOTA, text):
        return True
    body = _get(_get(exception, "response"), "_content") if status in (403, 429) else None
    return isinstance(body, bytes) and re.search(_QUOTA, body[:BODY_MAX].decode("latin-1")) is not None


def _asked_s(exception: BaseException, headers: object, now: datetime | None) -> float | None:
    value = _header(headers, "Retry-After")
    if value is None:
        return _wait_s(_get(exception, "retry_after"))
    asked_s = _whole_seconds(value)
    if asked_s is not None:
        return asked_s
    date = _header(headers, "Date") if now is None else None
    return parse_retry_after(value, now or (date and _http_date(date, None)) or datetime.now(UTC))


def _header(headers: object, name: str) -> str | None:
    """One header as text; clients' mappings ignore case, a plain dict may not."""
    get = _get(headers, "get")
    for spelling in (name, name.lower()) if callable(get) else ():
        value = _call(get, spelling)
        if isinstance(value, bytes):
            return value[:HEADER_MAX].decode("latin-1")
        if isinstance(value, str | int):
            return _str(value if isinstance(value, str) else _call(str, value))[:HEADER_MAX]
    return None


def _wait_s(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = _call(value.total_seconds)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    seconds = _call(float, value)
    return min(seconds, RETRY_AFTER_MAX_S) if isinstance(seconds, float) and seconds >= 0 else None


_GRAVITY = (
    Kind.PERMANENT, Kind.UNREADABLE, Kind.UNROUTABLE, Kind.CRASHED, Kind.QUOTA, Kind.THROTTLED, Kind.TIMEOUT,
    Kind.TRANSIENT, Kind.INTERRUPTED, Kind.DEFAULT,
)  # fmt: skip
_STEERS = ("quarantine", "reject", "retry_after", "snooze")  # gravest first


def _judge(chain: list[_Seen], rules: Sequence[Rule], now: datetime | None, depth: int = 0) -> _Verdict:
    seen = chain[0]
    if seen.known.steer and (steered := _steered(seen.exception)):
        return steered
    within = _judge_members(seen, rules, now, depth) if seen.known.group else _SILENT
    if within.steer:
        return within
    kind, asked_s = None, None
    for each in chain:
        kind = kind or _ruled(each, rules) or each.kind or (within.kind if each is seen else None)
        asked_s = each.retry_after_s if asked_s is None else asked_s
    for each in chain:
        kind = kind or (None if each.known.program_error else _by_text(each.text))
    return _Verdict(kind, within.retry_after_s if asked_s is None else asked_s)


def _steered(exception: BaseException) -> _Verdict | None:
    match exception:
        case RetryAfter():
            return _Verdict(Kind.THROTTLED, exception.delay_s, "retry_after")
        case Snooze():
            return _Verdict(Kind.TRANSIENT, exception.delay_s, "snooze")
        case Reject():
            return _Verdict(Kind.PERMANENT, steer="reject")
        case Quarantine():
            return _Verdict(Kind.PERMANENT, steer="quarantine")
        case _:
            return None


def _judge_members(seen: _Seen, rules: Sequence[Rule], now: datetime | None, depth: int) -> _Verdict:
    """The gravest member decides: it fails again whatever becomes of the others. A group steers if all members do."""
    if depth >= DEPTH_MAX:
        return _SILENT
    members = _members(seen.exception)[:MEMBERS_MAX]
    verdicts = [_judge(_chain(_look(member, now), now), rules, now, depth + 1) for member in members]
    asked_s = max((each.retry_after_s for each in verdicts if each.retry_after_s is not None), default=None)
    if all(each.steer for each in verdicts):
        return min(verdicts, key=lambda each: _STEERS.index(each.steer))._replace(retry_after_s=asked_s)
    kinds = [each.kind for each in verdicts if each.kind is not None]
    return _Verdict(min(kinds, key=_GRAVITY.index, default=None), asked_s)


def _chain(seen: _Seen, now: datetime | None) -> list[_Seen]:
    """The exception and what it was raised from, outermost first; a mere `__context__` need not be the reason."""
    chain = [seen]
    inner = _inner(seen)
    while inner is not None and len(chain) < CAUSES_MAX and all(inner is not each.exception for each in chain):
        chain.append(_look(inner, now))
        inner = _inner(chain[-1])
    return chain


def _inner(seen: _Seen) -> BaseException | None:
    cause = _cause_of(seen.exception)
    if cause is not None or seen.known.plain:
        return cause
    reason = _get(seen.exception, "reason")  # urllib's URLError, urllib3's MaxRetryError
    return reason if _is_exception(reason) else None


def _ruled(seen: _Seen, rules: Sequence[Rule]) -> Kind | None:
    for rule in rules:
        kind: Kind | None = _call(_apply, rule, seen)
        if kind is not None:
            return kind
    return None


def _apply(rule: Rule, seen: _Seen) -> Kind | None:
    matcher, kind = rule
    if isinstance(matcher, type):
        matches: object = issubclass(type(seen.exception), matcher)
    elif isinstance(matcher, str):
        matches = matcher.lower() in seen.text.lower()
    elif isinstance(matcher, re.Pattern):
        matches = matcher.search(seen.text) is not None
    else:
        matches = matcher(seen.exception)
    return Kind(kind) if matches else None


_OWN = f"{__file__.rpartition(os.sep)[0]}{os.sep}worker{os.sep}"  # frames of ours that tell the user nothing
_STDLIB = os.__file__.rpartition(os.sep)[0] + os.sep
_LIBRARY = r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|^<frozen "
_INLINED = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})  # frames before Python 3.12 only

_HEADER = "Traceback (most recent call last):\n"
_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


class _Frame(NamedTuple):
    shown: str
    place: str  # file and function, without the line
    library: bool
    own: bool


@lru_cache(maxsize=_CACHE_MAX)
def _frame(filename: str, line: int | None, name: str, qualname: str) -> _Frame:
    source = _str(_call(linecache.getline, filename, line)).strip()[:LINE_MAX] if line else ""
    shown = f'  File "{filename}", line {line}, in {name}\n' + (f"    {source}\n" if source else "")
    basename = filename.replace("\\", "/").rpartition("/")[2]
    place = "" if name in _INLINED else f"{basename}:{qualname}"
    library = filename.startswith(_STDLIB) or re.search(_LIBRARY, filename) is not None
    return _Frame(shown, place, library, filename.startswith(_OWN))


def _frames(exception: BaseException) -> list[_Frame]:
    """The frames from the outermost inwards, the middle of a deep stack left out, without the worker's own."""
    walked: list[TracebackType] = []
    step = _tb_of(exception)
    while step is not None and len(walked) < FRAMES_WALKED_MAX:
        walked.append(step)
        step = step.tb_next
    left_out = len(walked) - FRAMES_HEAD - FRAMES_TAIL
    if left_out <= 0:
        frames = [_frame_of(each) for each in walked]
    else:
        frames = [_frame_of(each) for each in walked[:FRAMES_HEAD]]
        frames.append(_Frame(f"  [{left_out:,} frames left out]\n", "", False, False))
        frames += [_frame_of(each) for each in walked[-FRAMES_TAIL:]]
    return [each for each in frames if not each.own] or frames  # a fault of the worker itself keeps its frames


def _frame_of(step: TracebackType) -> _Frame:
    code = step.tb_frame.f_code
    return _frame(code.co_filename, step.tb_lineno, code.co_name, code.co_qualname)


def _traceback(exception: BaseException, known: _Known, text: str, frames: list[_Frame]) -> str:
    if known.plain and not known.group and _cause_of(exception) is None and _context_of(exception) is None:
        whole = _section(known, text, frames) + _notes(exception)
    else:
        whole = _story(exception, set(), 0)
    if len(whole) > TRACEBACK_MAX:
        mark = f"\n[{len(whole):,} characters; the middle is left out]\n"
        head = TRACEBACK_MAX // 4
        whole = whole[:head] + mark + whole[len(whole) - (TRACEBACK_MAX - head - len(mark)) :]
    return _storable(whole, TRACEBACK_MAX).rstrip("\n")


def _section(known: _Known, text: str, frames: list[_Frame]) -> str:
    last = f"{known.name}: {text}\n" if text else f"{known.name}\n"
    return _HEADER + "".join([each.shown for each in frames]) + last if frames else last


def _story(exception: BaseException, told: set[int], depth: int) -> str:
    """The exception with its causes before it and its members after it."""
    parts: list[str] = []
    current: BaseException | None = exception
    while current is not None:
        if id(current) in told or len(told) >= SHOWN_MAX:
            parts[-1:] = ["\n[from here on the causes are left out: too many, or in a circle]\n\n"] if parts else []
            break
        told.add(id(current))
        parts.append(_told(current, told, depth))
        cause = _cause_of(current)
        context = None if cause is not None or _suppressed(current) else _context_of(current)
        if cause is not None or context is not None:
            parts.append(_CAUSED if cause is not None else _DURING)
        current = cause if cause is not None else context
    return "".join(reversed(parts))


def _told(exception: BaseException, told: set[int], depth: int) -> str:
    known = _known_of(exception)
    own = _section(known, _text(exception, known), _frames(exception)) + _notes(exception)
    if not known.group or depth >= DEPTH_MAX:
        return own
    members = _members(exception)
    stories = [(n, _story(each, told, depth + 1)) for n, each in enumerate(members[:MEMBERS_MAX], 1)]
    inner = [f"+---------------- {n} of {len(members)} ----------------\n{story}" for n, story in stories if story]
    return own + "".join(f"  {line}\n" for each in inner for line in each.splitlines())


def _notes(exception: BaseException) -> str:
    notes = _attributes(exception).get("__notes__")
    if notes is None or not isinstance(notes, list | tuple):
        return ""
    return "".join(f"{_storable(note, LINE_MAX)}\n" for note in notes[:NOTES_MAX] if isinstance(note, str))


# Names out of a program or a schema stay, and what an error body says: another one is another failure. Other quoted
# things are data.
_NAMERS = " named name attribute argument parameter field column constraint relation table module function class type "
_TELLERS = " error message msg code reason detail title error_description "
_CODERS = " http http/1.0 http/1.1 http/2 status code status_code statuscode errno signal error "
_HEX = frozenset("0123456789abcdefABCDEF")


def _unquote(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - 32) : match.start()]
    word = re.search(r"(\w+)(\W{0,4})\Z", before)
    if word is None:
        return "<q>"
    if f" {word[1]} " in _NAMERS and match[1].replace(".", "_").isidentifier():
        return match[0]
    in_a_body = f" {word[1]} " in _TELLERS and ":" in word[2]
    beside_a_code = before == f"({word[1]}, "  # `(1213, 'Deadlock found …')`
    return match[1] if in_a_body or beside_a_code else "<q>"


def _unvalue(match: re.Match[str]) -> str:
    """A word with a digit: `404` of a status stays, `user42` keeps its word and `30s` its unit; what else is an id."""
    word = match[0]
    if word.isdigit():
        if len(word) > 3:
            return "<v>"
        before = match.string[max(0, match.start() - 16) : match.start()].rstrip(" :=(#-").rpartition(" ")[2]
        return word if f" {before.lstrip('[(').lower()} " in _CODERS else "<v>"
    head, tail = word.rstrip("0123456789"), word.lstrip("0123456789")
    if head.isalpha() and (len(word) < 4 or not _HEX.issuperset(head)):
        return f"{head}<v>"
    return f"<v>{tail}" if tail.isalpha() and len(tail) <= 2 and len(word) < 10 else "<v>"


# What varies between two runs of one failure, in the order it is replaced. A pattern runs only where its sign occurs;
# "9" stands for any digit. Numbers, ids, hex and times all become <v>: an id may be all digits today and hex tomorrow.
# Patterns start with a literal or a set where they can, which is what makes a search fast.
_Replacement: TypeAlias = str | Callable[[re.Match[str]], str]
_NORMAL: tuple[tuple[str, str, _Replacement], ...] = (
    ("://", r"""[A-Za-z][\w+.-]*+://[^\s'"<>)\]}]+""", "<url>"),
    ("@", r"[\w.+-]++@[\w-]+(?:\.[\w-]+)*", "<email>"),
    ("-", r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?!\w)", "<v>"),
    (":", r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? +(?=\d|[JFMASOND][a-z]{2} )", ""),
    (":", r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*(?=[ -]+\d)", "0"),
    ("0x", r"0x[0-9a-fA-F]+", "<v>"),
    (":", r"(?<![\w:])\[?(?:[0-9a-fA-F]{0,4}+:){2,7}+[0-9a-fA-F]{0,4}+(?![\w:])(?:\](?::\d+)?)?", "<v>"),
    (
        ".",
        r"(?<![\w.-])(?:[\w-]++\.)+(?:(?:com|net|org|io|dev|app|ai|co|cloud|internal|local|lan|corp|prod|staging|test"
        r"|example|invalid|eu|uk|de|us|cn)\b(?::\d+)?|[\w-]+:\d+)(?![\w(])",
        "<host>",
    ),
    ("localhost", r"localhost(?::\d+)?\b", "<host>"),
    (":", r"(to|at|from|host) [A-Za-z][\w-]*+:\d{2,5}\b", r"\1 <host>"),
    ("/", r"(?<![\w<>/])(?:~|\.{1,2}|[A-Za-z]:)?(?:/[\w.@+~%-]+)+/?", "<path>"),
    ("/", r"(?<![\w<>/.-])(?!HTTP/)[\w.-]++(?:(?:/[\w.@+~%-]+){2,}|/[\w@+~%-]+\.\w{1,5}\b)", "<path>"),
    ("\\", r"(?<![\w<>])(?:[A-Za-z]:|\\)?(?:\\{1,2}[\w.@+~%-]+){2,}", "<path>"),
    ("'", r"'(?<![^\Wbruf]')(?<!\w[bruf]')((?:[^'\\\n]|\\.)*+)'(?!\w)", _unquote),
    ('"', r'"(?<![^\Wbruf]")(?<!\w[bruf]")((?:[^"\\\n]|\\.)*+)"(?!\w)', _unquote),
    ("`", r"`([^`\n]*+)`", _unquote),
    (")=(", r"\)=\([^()]*\)", ")=<q>"),
    ("9", r"(?<![A-Za-z0-9])[A-Za-z]*+\d[A-Za-z0-9]*+", _unvalue),
    ("<v>", r"(?:(?<![\w>])[-+])?<v>(?:(?:[-+.,:_/ ]|e[-+])<v>)*+", "<v>"),
    (">, <", r"(<\w+>(?:: <\w+>)?)(?:, <\w+>(?:: <\w+>)?)+", r"\1"),
)


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str], _Replacement], ...]:
    """Compiled at the first fault, not at import, where they would cost more than all else here."""
    return tuple((sign, re.compile(pattern), replacement) for sign, pattern, replacement in _NORMAL)


def _normalized(text: str) -> str:
    text = text[:NORMALIZED_FROM_MAX]
    for sign, pattern, replacement in _patterns():
        if sign in text or sign == "9":
            text = pattern.sub(replacement, text)
    if len(text) >= NORMALIZED_MAX:  # a long quoted value was cut before its end
        text = re.sub(r"""(?s)(?<!\w)['"].*\Z""", "<q>", text)
    return " ".join(text.split())[:NORMALIZED_MAX]


@lru_cache(maxsize=_TEXTS_CACHED_MAX)
def fingerprint(error: str, text: str, places: tuple[str, ...] = (), related: tuple[str, ...] = ()) -> str:
    """Return 16 hex digits, the same for two runs of one failure.

    They depend on the class's name, the text without what varies (numbers, ids, hex, UUIDs, times, addresses, quoted
    values, hosts, paths, e-mail addresses), the `places` (file and function, no lines) and what is `related`: codes,
    causes, members.
    """
    parts = (error, _normalized(text), *places, *related)
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _fingerprint(chain: list[_Seen], frames: list[_Frame], now: datetime | None, depth: int = 0) -> str:
    seen, *causes = chain
    related = (seen.code, *[f"{each.known.name} {each.code}" for each in causes])
    if not seen.known.group or depth >= DEPTH_MAX:
        return fingerprint(seen.known.name, seen.text, _places(frames, seen.known), related)
    members = [_look(each, now) for each in _members(seen.exception)[:MEMBERS_MAX]]
    prints = {_fingerprint(_chain(each, now), _frames(each.exception), now, depth + 1) for each in members}
    text = _storable(_message_of(seen.exception), TEXT_MAX)  # without the number of members
    return fingerprint(seen.known.name, text, _places(frames, seen.known), (*related, *sorted(prints)))


def _places(frames: list[_Frame], known: _Known) -> tuple[str, ...]:
    """Where it was raised, and the user's functions that led there, each once: recursion may be of any depth.

    A library's own inner calls are left out, since they change with its releases.
    """
    places: list[str] = []  # the raising one first, which may be a library's
    for each in reversed(frames):
        if each.place and (not each.library or not places) and each.place not in places:
            places.append(each.place)
    if "RecursionError" in known.errors:  # the stack ends anywhere in the circle
        return tuple(sorted(places))
    return tuple(places[:PLACES_MAX])


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAY = r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*"
_CLOCK = r"(?P<H>[0-2][0-9]):(?P<M>[0-5][0-9]):(?P<S>[0-6][0-9])"
_HTTP_DATES = (
    rf"(?ai){_DAY}, (?P<d>[0-3][0-9]) (?P<b>[a-z]{{3}}) (?P<y>[0-9]{{4}}) {_CLOCK} GMT",  # IMF-fixdate
    rf"(?ai){_DAY}, (?P<d>[0-3][0-9])-(?P<b>[a-z]{{3}})-(?P<y>[0-9]{{2}}) {_CLOCK} GMT",  # RFC 850
    rf"(?ai){_DAY} (?P<b>[a-z]{{3}}) (?P<d>[ 0-3][0-9]) {_CLOCK} (?P<y>[0-9]{{4}})",  # asctime
)


def parse_retry_after(text: str, now: datetime) -> float | None:
    """Return the seconds from `now` that a Retry-After header asks for (RFC 9110, 10.2.3), or None if it says nothing.

    Whole seconds in ASCII digits, or one of the three HTTP-dates, which are in GMT whatever the local time zone; white
    space around is allowed. A past date is 0.0, anything over RETRY_AFTER_MAX_S (365 days) is that. A `now` without a
    zone is in UTC. Never raises: any other text, and what is no text, is None.
    """
    asked_s: float | None = _call(_parse_retry_after, text, now)
    return asked_s


def _parse_retry_after(text: str, now: datetime) -> float | None:
    asked_s = _whole_seconds(text)
    if asked_s is not None:
        return asked_s
    now = now.replace(tzinfo=UTC) if now.tzinfo is None else now.astimezone(UTC)
    date = _http_date(text, now)
    return None if date is None else min(max((date - now).total_seconds(), 0.0), RETRY_AFTER_MAX_S)


def _whole_seconds(text: str) -> float | None:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()):
        return None
    digits = digits.lstrip("0")
    return min(float(digits or 0), RETRY_AFTER_MAX_S) if len(digits) <= 9 else RETRY_AFTER_MAX_S


def _http_date(text: str, now: datetime | None) -> datetime | None:
    """An HTTP-date as a time in UTC. Years of two digits need `now`: none is more than 50 years ahead of it."""
    text = text.strip()
    match = next((match for pattern in _HTTP_DATES if (match := re.fullmatch(pattern, text))), None)
    if match is None or (len(match["y"]) == 2 and now is None) or match["b"].lower() not in _MONTHS:
        return None
    month, second = _MONTHS.index(match["b"].lower()) + 1, min(int(match["S"]), 59)  # a leap second
    clock = (int(match["H"]), int(match["M"]), second)
    try:
        return datetime(_year(match["y"], now), month, int(match["d"]), *clock, tzinfo=UTC)
    except ValueError:  # 31 February
        return None


def _year(digits: str, now: datetime | None) -> int:
    year = int(digits)
    if len(digits) == 4 or now is None:
        return year
    year += now.year - now.year % 100
    return year - 100 if year > now.year + 50 else year + 100 if year <= now.year - 50 else year
