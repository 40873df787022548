"""What an exception's attributes say, by duck typing: of databases, HTTP clients and the operating system.

A code says more than the class that carries it, a class more than a status.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from .classes import HTTP, SQL, Known
from .foreign import NAME_MAX, call, get, integer, is_exception, item, string
from .known_errors import BY_AWS_CODE, BY_ERRNO, BY_SQLITE, BY_SQLSTATE, kind_of_status
from .model import Kind
from .retry_after import RETRY_AFTER_MAX_S, http_date, parse_retry_after, whole_seconds
from .text_patterns import over_quota

HEADER_MAX = 256
BODY_MAX = 4_096  # bytes of a response looked at

Reading: TypeAlias = tuple[Kind | None, str, float | None]


def read(exception: BaseException, known: Known, text: str, telling: frozenset[str], now: datetime | None) -> Reading:
    """Kind, code and seconds asked for. `telling` names the attributes that it may have."""
    kind, code = (None, "") if telling.isdisjoint(SQL) else _read_sql(exception)
    status, service_code, asked_s = (None, "", None) if telling.isdisjoint(HTTP) else _read_http(exception, now)
    kind = kind or BY_AWS_CODE.get(service_code) or kind_of_class(known, text)
    code = code or service_code or str(status or "")
    if known.os_error and not code:
        number = integer(get(exception, "errno"))
        kind, code = kind or BY_ERRNO.get(number or 0), str(number or "")
    if kind is None and status is not None:
        kind = Kind.QUOTA if _over_quota(exception, status, text) else kind_of_status(status, asked_s)
    if kind is None and asked_s is not None and status is None:
        kind = Kind.THROTTLED  # nothing but a wish to wait, e.g. the `retry_after` of a chat service's client
    return kind, code, asked_s


def kind_of_class(known: Known, text: str) -> Kind | None:
    """Clients wrap a refused certificate in their connection error; only its text still says so."""
    refused = known.kind is Kind.TRANSIENT and "certificate verify failed" in text.lower().replace("_", " ")
    return Kind.PERMANENT if refused else known.kind


def _read_sql(exception: BaseException) -> tuple[Kind | None, str]:
    """psycopg and asyncpg (`sqlstate`), psycopg2 (`pgcode`), sqlite3; SQLAlchemy wraps any of them as `orig`."""
    if get(exception, "connection_invalidated") is True:
        return Kind.TRANSIENT, "connection_invalidated"
    original = get(exception, "orig")
    source = original if is_exception(original) else exception
    for name in ("sqlstate", "pgcode"):
        state = string(get(source, name))
        if len(state) == 5:
            return next((BY_SQLSTATE[state[:n]] for n in (5, 3, 2) if state[:n] in BY_SQLSTATE), None), state
    name = string(get(source, "sqlite_errorname"))[:NAME_MAX]
    return (_sqlite_kind(name, source), name) if name else (None, "")


def _sqlite_kind(name: str, exception: BaseException) -> Kind | None:
    primary = name.split("_")[1] if "_" in name else name  # SQLITE_BUSY_SNAPSHOT is a BUSY
    if primary == "ERROR" and string(call(str, exception)).startswith(("no such table", "no such column", "near ")):
        return Kind.PERMANENT  # a mistake in the statement; other ERRORs may be anything
    return BY_SQLITE.get(primary)


def _read_http(exception: BaseException, now: datetime | None) -> tuple[int | None, str, float | None]:
    """HTTP status, service code and seconds asked for, of a response or of the exception itself.

    Never `response.text` and the like, which may read from the network.
    """
    response = get(exception, "response")
    if isinstance(response, dict):  # botocore
        meta, error = response.get("ResponseMetadata"), response.get("Error")
        code = string(item(error, "Code"))[:NAME_MAX]
        return _status(item(meta, "HTTPStatusCode")), code, _asked_s(exception, item(meta, "HTTPHeaders"), now)
    found = [_status(get(response, name)) for name in ("status_code", "status")] if response is not None else []
    found += [_status(get(exception, name)) for name in ("status_code", "status", "http_status", "code")]
    headers = get(response, "headers")
    headers = get(exception, "headers") if headers is None else headers
    return next((each for each in found if each is not None), None), "", _asked_s(exception, headers, now)


def _status(value: object) -> int | None:
    number = integer(value)
    return number if number is not None and 400 <= number <= 599 else None


def _over_quota(exception: BaseException, status: int, text: str) -> bool:
    """Some say it in the body only; one that was read already lies in `_content`."""
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
    """One header as text; clients' mappings ignore case, a plain dict may not."""
    reader = get(headers, "get")
    for spelling in (name, name.lower()) if callable(reader) else ():
        value = call(reader, spelling)
        if isinstance(value, bytes):
            return value[:HEADER_MAX].decode("latin-1")
        if isinstance(value, str | int):
            return string(value if isinstance(value, str) else call(str, value))[:HEADER_MAX]
    return None


def _wait_s(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = call(value.total_seconds)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    seconds = call(float, value)
    return min(seconds, RETRY_AFTER_MAX_S) if isinstance(seconds, float) and seconds >= 0 else None
