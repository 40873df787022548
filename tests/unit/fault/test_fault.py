from __future__ import annotations

import asyncio
import email.message
import errno
import re
import socket
import sqlite3
import ssl
import subprocess
import time
import urllib.error
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redrive
from redrive.errors import Quarantine, Reject, RetryAfter, Snooze
from redrive.fault import (
    RETRY_AFTER_MAX_S,
    TEXT_MAX,
    TRACEBACK_MAX,
    Fault,
    Kind,
    classify,
    fingerprint,
    parse_retry_after,
)

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def raised(exception: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise exception from cause
    except BaseException as caught:
        return caught


def foreign(name: str, *bases: type[BaseException], **attributes: object) -> type[BaseException]:
    """A class as a library that is not installed here would define it."""
    module, _, qualname = name.rpartition(".")
    made = type(qualname, bases or (Exception,), {"__module__": module, **attributes})
    assert issubclass(made, BaseException)
    return made


class HttpFailure(Exception):
    def __init__(self, status: object, headers: object = None, text: str = "failed") -> None:
        super().__init__(text)
        self.response = SimpleNamespace(status_code=status, headers=headers)


# Steering and rules


@pytest.mark.parametrize(
    ("exception", "steer", "kind", "asked_s"),
    [
        (RetryAfter("30s"), "retry_after", Kind.THROTTLED, 30.0),
        (Snooze("5m"), "snooze", Kind.TRANSIENT, 300.0),
        (Reject("no such customer"), "reject", Kind.PERMANENT, None),
        (Quarantine("kills the parser"), "quarantine", Kind.PERMANENT, None),
    ],
)
def test_what_the_handler_raised_to_steer_comes_before_its_rules(
    exception: Exception, steer: str, kind: Kind, asked_s: float | None
) -> None:
    fault = classify(exception, [(Exception, Kind.QUOTA)])
    assert (fault.steer, fault.kind, fault.retry_after_s) == (steer, kind, asked_s)


def test_a_word_to_steer_that_is_only_a_cause_does_not_steer() -> None:
    assert classify(raised(ValueError("x"), Reject("no"))).steer == ""


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ((ConnectionError, "permanent"), Kind.PERMANENT),
        ((OSError, Kind.QUOTA), Kind.QUOTA),
        ((lambda e: "card" in str(e), "permanent"), Kind.PERMANENT),
        (("CARD declined", "permanent"), Kind.PERMANENT),
        ((re.compile(r"card \w+"), "permanent"), Kind.PERMANENT),
        ((ValueError, "permanent"), Kind.TRANSIENT),
        ((lambda e: False, "permanent"), Kind.TRANSIENT),
        ((lambda e: 1 / 0, "permanent"), Kind.TRANSIENT),
        (("c.rd", "permanent"), Kind.TRANSIENT),
        ((re.compile("CARD"), "permanent"), Kind.TRANSIENT),
        ((Exception, "no such kind"), Kind.TRANSIENT),
        ((), Kind.TRANSIENT),
    ],
)
def test_a_task_s_own_rule_comes_before_what_is_well_known(rule: Any, kind: Kind) -> None:
    assert classify(ConnectionResetError("card declined"), [rule]).kind is kind


def test_the_first_rule_that_matches_wins() -> None:
    assert classify(KeyError("x"), [(LookupError, "quota"), (KeyError, "permanent")]).kind is Kind.QUOTA


def test_a_rule_for_the_cause_applies_to_a_generic_exception_raised_from_it() -> None:
    assert (
        classify(raised(RuntimeError("sync failed"), KeyError("x")), [(KeyError, "permanent")]).kind is Kind.PERMANENT
    )


def test_a_rule_may_set_the_kind_without_losing_the_retry_after() -> None:
    fault = classify(HttpFailure(400, {"Retry-After": "7"}), [(HttpFailure, "throttled")])
    assert (fault.kind, fault.retry_after_s) == (Kind.THROTTLED, 7.0)


# Well-known exceptions

OperationalError = foreign("psycopg.OperationalError")
WELL_KNOWN: list[tuple[BaseException, Kind]] = [
    (TimeoutError(), Kind.TIMEOUT),
    (TimeoutError("timed out"), Kind.TIMEOUT),
    (subprocess.TimeoutExpired("cmd", 3), Kind.TIMEOUT),
    (ConnectionRefusedError(errno.ECONNREFUSED, "x"), Kind.TRANSIENT),
    (BrokenPipeError(), Kind.TRANSIENT),
    (socket.gaierror(-2, "Name or service not known"), Kind.TRANSIENT),
    (OSError(errno.EHOSTUNREACH, "x"), Kind.TRANSIENT),
    (OSError(errno.ENOSPC, "x"), Kind.TRANSIENT),
    (OSError(errno.ETIMEDOUT, "x"), Kind.TIMEOUT),
    (OSError(errno.EDQUOT, "x"), Kind.QUOTA),
    (FileNotFoundError(errno.ENOENT, "x"), Kind.DEFAULT),
    (PermissionError(errno.EACCES, "x"), Kind.DEFAULT),
    (ssl.SSLCertVerificationError("x"), Kind.PERMANENT),
    (ssl.SSLEOFError("x"), Kind.TRANSIENT),
    (urllib.error.URLError(socket.gaierror(-2, "x")), Kind.TRANSIENT),
    (urllib.error.URLError(TimeoutError("x")), Kind.TIMEOUT),
    (urllib.error.URLError(ssl.SSLCertVerificationError("x")), Kind.PERMANENT),
    (httpx.ConnectError("x"), Kind.TRANSIENT),
    (httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"), Kind.PERMANENT),
    (httpx.ReadTimeout("x"), Kind.TIMEOUT),
    (httpx.PoolTimeout("x"), Kind.TIMEOUT),
    (httpx.RemoteProtocolError("x"), Kind.TRANSIENT),
    (httpx.UnsupportedProtocol("x"), Kind.PERMANENT),
    (httpx.InvalidURL("x"), Kind.PERMANENT),
    (foreign("requests.exceptions.ConnectionError", OSError)("x"), Kind.TRANSIENT),
    (foreign("requests.exceptions.Timeout", OSError)("x"), Kind.TIMEOUT),
    (foreign("requests.exceptions.MissingSchema", OSError, ValueError)("x"), Kind.PERMANENT),
    (foreign("aiohttp.client_exceptions.ClientConnectionError")("x"), Kind.TRANSIENT),
    (foreign("aiohttp.client_exceptions.ServerTimeoutError", TimeoutError)("x"), Kind.TIMEOUT),
    (foreign("botocore.exceptions.ParamValidationError")("x"), Kind.PERMANENT),
    (OperationalError("connection refused"), Kind.TRANSIENT),
    (foreign("psycopg_pool.PoolTimeout", OperationalError)("x"), Kind.TIMEOUT),
    (foreign("sqlalchemy.exc.OperationalError")("x"), Kind.TRANSIENT),
    (foreign("sqlalchemy.exc.InterfaceError", connection_invalidated=True)("x"), Kind.TRANSIENT),
    (foreign("redis.exceptions.ConnectionError")("x"), Kind.TRANSIENT),
    (foreign("redis.exceptions.TimeoutError")("x"), Kind.TIMEOUT),
    (foreign("redis.exceptions.BusyLoadingError", foreign("redis.exceptions.ConnectionError"))("x"), Kind.TRANSIENT),
    (foreign("redis.exceptions.AuthenticationError", foreign("redis.exceptions.ConnectionError"))("x"), Kind.PERMANENT),
    (sqlite3.IntegrityError("UNIQUE constraint failed"), Kind.PERMANENT),
    (ValueError("x"), Kind.DEFAULT),
    (KeyError("x"), Kind.DEFAULT),
    (asyncio.CancelledError(), Kind.DEFAULT),
    (KeyboardInterrupt(), Kind.DEFAULT),
    (SystemExit(429), Kind.DEFAULT),
]


@pytest.mark.parametrize(("exception", "kind"), WELL_KNOWN, ids=lambda each: type(each).__name__)
def test_a_well_known_exception_has_its_kind(exception: BaseException, kind: Kind) -> None:
    assert classify(exception).kind is kind


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("08006", Kind.TRANSIENT),
        ("40001", Kind.TRANSIENT),
        ("40P01", Kind.TRANSIENT),
        ("53300", Kind.TRANSIENT),
        ("57P01", Kind.TRANSIENT),
        ("57P03", Kind.TRANSIENT),
        ("55P03", Kind.TRANSIENT),
        ("57014", Kind.TIMEOUT),
        ("22P02", Kind.PERMANENT),
        ("23505", Kind.PERMANENT),
        ("42P01", Kind.PERMANENT),
        ("XX000", Kind.DEFAULT),
    ],
)
@pytest.mark.parametrize("attribute", ["sqlstate", "pgcode"])
def test_a_sqlstate_has_its_kind_directly_and_inside_sqlalchemy(state: str, kind: Kind, attribute: str) -> None:
    direct = foreign("driver.Error", **{attribute: state})("x")
    assert classify(direct).kind is kind
    assert classify(foreign("sqlalchemy.exc.DBAPIError", orig=direct)("x")).kind is kind


def test_sqlite_says_locked_and_no_such_table_apart(tmp_path: Path) -> None:
    one, other = (sqlite3.connect(tmp_path / "x.db", timeout=0, isolation_level=None) for _ in range(2))
    one.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError) as locked:
        other.execute("BEGIN EXCLUSIVE")
    one.execute("ROLLBACK")
    with pytest.raises(sqlite3.OperationalError) as missing:
        one.execute("SELECT * FROM nowhere")
    one.close()
    other.close()
    assert (classify(locked.value).kind, classify(missing.value).kind) == (Kind.TRANSIENT, Kind.PERMANENT)


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("ThrottlingException", 400, Kind.THROTTLED),
        ("ProvisionedThroughputExceededException", 400, Kind.THROTTLED),
        ("SlowDown", 503, Kind.THROTTLED),
        ("ServiceQuotaExceededException", 402, Kind.QUOTA),
        ("RequestTimeout", 400, Kind.TIMEOUT),
        ("InternalError", 500, Kind.TRANSIENT),
        ("ExpiredTokenException", 403, Kind.TRANSIENT),
        ("AccessDenied", 403, Kind.PERMANENT),
        ("ValidationException", 400, Kind.PERMANENT),
        ("SomethingNew", 500, Kind.TRANSIENT),
    ],
)
def test_a_botocore_code_comes_before_its_http_status(code: str, status: int, kind: Kind) -> None:
    error = foreign("botocore.exceptions.ClientError")("An error occurred")
    headers = {"retry-after": "4"}
    meta = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    error.response = {"Error": {"Code": code}, "ResponseMetadata": meta}  # type: ignore[attr-defined]
    fault = classify(error)
    assert (fault.kind, fault.retry_after_s) == (kind, 4.0)


def test_a_generic_exception_takes_the_kind_and_wish_of_what_it_was_raised_from() -> None:
    cause = raised(RuntimeError("inner"), HttpFailure(429, {"Retry-After": "7"}))
    fault = classify(raised(RuntimeError("sync failed"), cause))
    assert (fault.kind, fault.retry_after_s, fault.error) == (Kind.THROTTLED, 7.0, "RuntimeError")


def test_an_exception_that_says_something_does_not_ask_its_cause() -> None:
    assert classify(raised(TimeoutError("x"), HttpFailure(404))).kind is Kind.TIMEOUT


def test_a_context_that_is_no_cause_does_not_decide() -> None:
    error = ValueError("a bug in the handler's except branch")
    error.__context__ = HttpFailure(404)
    assert classify(raised(error)).kind is Kind.DEFAULT


@pytest.mark.parametrize(
    ("members", "kind", "asked_s"),
    [
        ([ValueError("x"), ConnectionError("x")], Kind.TRANSIENT, None),
        ([ConnectionError("x"), HttpFailure(404)], Kind.PERMANENT, None),
        ([HttpFailure(429, {"Retry-After": "3"}), HttpFailure(503, {"Retry-After": "8"})], Kind.THROTTLED, 8.0),
        ([ValueError("x"), ExceptionGroup("in", [TimeoutError()])], Kind.TIMEOUT, None),
        ([ValueError("x")], Kind.DEFAULT, None),
    ],
)
def test_the_gravest_member_of_a_group_decides(members: list[Exception], kind: Kind, asked_s: float | None) -> None:
    fault = classify(ExceptionGroup("g", members))
    assert (fault.kind, fault.retry_after_s, fault.steer) == (kind, asked_s, "")


def test_a_group_steers_only_if_all_its_members_do() -> None:
    assert classify(ExceptionGroup("g", [Snooze("1s"), Snooze("9s")])).steer == "snooze"
    assert classify(ExceptionGroup("g", [Snooze("1s"), Reject("no")])).steer == "reject"
    mixed = classify(ExceptionGroup("g", [Snooze("1s"), ValueError("x")]))
    assert (mixed.steer, mixed.kind) == ("", Kind.TRANSIENT)


# HTTP

PERMANENT = {501, 505, 511}
TRANSIENT = {408, 421, 423, 425}
THROTTLED = {429, 529}


def expected(status: int, *, retry_after: bool) -> Kind:
    if status in THROTTLED or (status == 503 and retry_after):
        return Kind.THROTTLED
    if status in PERMANENT:
        return Kind.PERMANENT
    if status in TRANSIENT or 500 <= status < 600:
        return Kind.TRANSIENT
    return Kind.PERMANENT if 400 <= status < 500 else Kind.DEFAULT


@pytest.mark.parametrize("status", [100, 200, 302, 399, *range(400, 600), 600, 999, 0, -1])
def test_http_status_has_the_kind_of_the_table(status: int) -> None:
    assert classify(HttpFailure(status)).kind is expected(status, retry_after=False)


@pytest.mark.parametrize("status", range(400, 600))
def test_retry_after_makes_a_503_throttled_and_no_other_status(status: int) -> None:
    assert classify(HttpFailure(status, {"Retry-After": "2"})).kind is expected(status, retry_after=True)


@pytest.mark.parametrize(
    ("statuses", "kind"),
    [
        ((400, 401, 403, 404, 405, 406, 409, 410, 411, 413, 414, 415, 422, 501, 505, 511, 402, 418, 451), "permanent"),
        ((408, 421, 423, 425, 500, 502, 503, 504, 507, 520, 522, 524, 506, 599), "transient"),
        ((429, 529), "throttled"),
    ],
)
def test_http_statuses_named_in_the_specification(statuses: tuple[int, ...], kind: str) -> None:
    assert {status: classify(HttpFailure(status)).kind.value for status in statuses} == dict.fromkeys(statuses, kind)


@pytest.mark.parametrize("value", ["-1", "1.0", "", "soon"])
def test_a_503_whose_retry_after_is_no_time_is_transient(value: str) -> None:
    fault = classify(HttpFailure(503, {"Retry-After": value}))
    assert (fault.kind, fault.retry_after_s) == (Kind.TRANSIENT, None)


@pytest.mark.parametrize("status", [403, 429, 400, 503])
@pytest.mark.parametrize("text", ["Quota exceeded", "quotaExceeded", "You exceeded your current quota, please check"])
def test_quota_exceeded_is_quota_whatever_the_status(status: int, text: str) -> None:
    assert classify(HttpFailure(status, text=text)).kind is Kind.QUOTA


def test_quota_exceeded_in_a_body_already_read_is_quota() -> None:
    request = httpx.Request("POST", "https://api.example.com/v1")
    response = httpx.Response(429, content=b'{"error": {"code": "insufficient_quota"}}', request=request)
    with pytest.raises(httpx.HTTPStatusError) as caught:
        response.raise_for_status()
    assert classify(caught.value).kind is Kind.QUOTA


def test_status_and_headers_are_found_where_each_client_keeps_them() -> None:
    headers = email.message.Message()
    headers["Retry-After"] = "11"
    request = httpx.Request("GET", "https://api.example.com")
    response = httpx.Response(429, headers={"retry-after": "11"}, request=request)
    clients = [
        httpx.HTTPStatusError("x", request=request, response=response),
        urllib.error.HTTPError("https://api.example.com", 429, "Too Many Requests", headers, None),
        foreign("aiohttp.client_exceptions.ClientResponseError", status=429, headers={"Retry-After": "11"})("x"),
        foreign("openai.RateLimitError", status_code=429, response=response)("x"),
        foreign("stripe.error.StripeError", http_status=429, headers={"retry-after": b"11"})("x"),
        foreign("chat.Flood", retry_after=11)("x"),
        foreign("chat.Flood", retry_after=timedelta(seconds=11))("x"),
    ]
    faults = [classify(each) for each in clients]
    assert [(each.kind, each.retry_after_s) for each in faults] == [(Kind.THROTTLED, 11.0)] * len(clients)


@pytest.mark.parametrize("status", ["429", True, 429.0, None, pytest.param(object(), id="object"), 10**30])
def test_what_is_no_whole_number_is_no_status(status: object) -> None:
    assert classify(HttpFailure(status)).kind is Kind.DEFAULT


def test_a_retry_after_date_is_measured_from_now_or_else_from_the_response_s_own_date() -> None:
    later = "Sat, 21 Nov 2026 12:00:30 GMT"
    assert classify(HttpFailure(503, {"Retry-After": later}), now=NOW).retry_after_s == 30.0
    dated = {"Retry-After": later, "Date": "Sat, 21 Nov 2026 12:00:10 GMT"}
    assert classify(HttpFailure(503, dated)).retry_after_s == 20.0
    past = {"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}
    assert classify(HttpFailure(503, past)).retry_after_s == 0.0


# Text

THROTTLED_TEXTS = [
    "429", "(429)", "429 Too Many Requests", "429: slow down", "Error 429", "error: 429", "error code 429",
    "Error code: 429 - {'error': {}}", "got 429", "got a 429 from the API", "API returned 429.", "failed with 429",
    "request failed (429)", "received 429 on POST /orders", "HTTPError: 429",
    "429 RESOURCE_EXHAUSTED. {}", "429, Slow Down", "response 429", "429 Client Error", "429 error",
    "rate limit exceeded", "Rate limit exceeded for user 7", "rate_limit_exceeded", "RateLimitExceeded",
]  # fmt: skip
PERMANENT_TEXTS = [
    "Validation error", "validation error: name is missing", "Error: Validation error", "Validation failed: no name",
    "{'message': 'Validation error'}", "not found", "Not Found", "404 Not Found", "Error: not found", "User not found",
    "The requested resource was not found", "resource not found: /x", "page not found (404)", '{"error": "not found"}',
    "GET /x - not found", "unauthorized", "Unauthorized", "401 Unauthorized", "unauthorised: no key",
    "the request is unauthorized",
    "forbidden", "Forbidden", "FORBIDDEN: no rights", "access forbidden", "the request is forbidden.",
    "Forbidden by policy", "403 Forbidden", "Forbidden for url: https://x", "{'error': 'forbidden'}",
    "POST /orders - Forbidden",
    *(template.format(status) for status in (400, 401, 403, 404) for template in (
        "{}", "({})", "{}: no such thing", "Error {}", "error: {}", "error code {}", "Error code: {} - {{'error': 1}}",
        "got {}", "got a {} from the API", "API returned {}.", "failed with {}", "request failed ({})",
        "received {} on POST /orders", "HTTPError: {}", "response {}", "{} Client Error", "{} error", "rejected by {}",
    )),
    "400 Bad Request", "401 unauthorised", "404 Not Found for order 17", "404 (Not Found)",
]  # fmt: skip
PASSING_TEXTS = [
    "503", "(503)", "503: come back", "Error 503", "got a 503 from the API", "API returned 503.", "failed with 503",
    "503 Service Unavailable", "503 Server Error", "request failed (503)",
    "temporary", "Temporary", "temporary: try later", "this is temporary.", "(temporary)", "temporary failure",
    "temporary problem with the printer", "a temporary network issue", "temporary outage", "temporary database error",
]  # fmt: skip
DEFAULT_TEXTS = [
    # 429 as a count, an amount, or a part of a name
    "processed 429 rows", "order 429 failed", "id 429", "user-429", "429a", "x429", "4290", "error 4291", "1,429 items",
    "0.429", "error 429.5", "429 rows failed", "got 429 rows", "returned 429 items", "line 429", "took 429 ms",
    "took 429ms", "port 429 is closed", "429,430", "got 429, 430 and 431", "received 429 and 430", "failed 429 of 500",
    "failed after 429 attempts", "invoice 2024-429 rejected",
    # the same of the other statuses
    *(template.format(status) for status in (400, 401, 403, 404, 503) for template in (
        "order {0}0", "order {0}", "{0} rows", "{0} rows failed", "user-{0}", "{0}a", "x{0}", "{0}0", "1,{0} items",
        "0.{0}", "error {0}.5", "got {0} rows", "returned {0} items", "line {0}", "took {0} ms", "took {0}ms",
        "{0},{0}", "got {0}, {0} and {0}", "failed {0} of 500", "failed: {0}", "failed {0}", "errors: {0}", "-{0}",
        "{0} (of 500) were left", "port {0} is closed", "invoice 2024-{0} rejected", "€{0}", "{0} %", "#{0}",
        "failed after {0} attempts", "the room {0} is booked", "{0} orders found", "sku {0} unknown",
    )),
    # "forbidden" as an adjective or denied, "temporary" of a thing
    "the list of forbidden words is empty", "forbidden-words.txt is missing", "it is not forbidden", "unforbidden",
    "that is no longer forbidden", "temporary table dropped", "temporary file is missing", "temporary password",
    "temporary directory /tmp/x is full", "the temporary credentials have expired", "contemporary", "not temporary",
    "temporaryfile", "non-temporary",
    # it says which one: it may have been looked for too early, as before its transaction was committed
    "user 42 not found", "order 'a1' not found", "key not found in cache",
    # a part of the network, which comes back
    "host not found", "Name or service not found", "the broker for this topic was not found", "host-not-found",
    # what only sounds alike
    "1 validation error for Order", "validation errors were ignored", "revalidation error", "not foundry",
    "rate limits apply", "the rated limit exceeded",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("upstream said HTTP 503", Kind.TRANSIENT),
        ("HTTP/1.1 429 Too Many Requests", Kind.THROTTLED),
        ("HTTP Error 410: Gone", Kind.PERMANENT),
        ("failed with status code: 404", Kind.PERMANENT),
        ("status=200 but no body", Kind.DEFAULT),
        ("Rate limit reached for model", Kind.THROTTLED),
        ("Too many requests, slow down", Kind.THROTTLED),
        ("Daily quota has been exceeded", Kind.QUOTA),
        ("operation timed out", Kind.TIMEOUT),
        ("context deadline exceeded", Kind.TIMEOUT),
        ("Connection was reset by peer", Kind.TRANSIENT),
        ("MySQL server has gone away", Kind.TRANSIENT),
        ("Deadlock found when trying to get lock", Kind.TRANSIENT),
        ("Service Temporarily Unavailable", Kind.TRANSIENT),
        ("the moderate limits of a connection", Kind.DEFAULT),
        ("order 503 not found", Kind.DEFAULT),
        ("", Kind.DEFAULT),
        *[(text, Kind.THROTTLED) for text in THROTTLED_TEXTS],
        *[(text, Kind.PERMANENT) for text in PERMANENT_TEXTS],
        *[(text, Kind.TRANSIENT) for text in PASSING_TEXTS],
        *[(text, Kind.DEFAULT) for text in DEFAULT_TEXTS],
    ],
)
def test_text_decides_last(text: str, kind: Kind) -> None:
    assert classify(RuntimeError(text)).kind is kind


@pytest.mark.parametrize("error", [KeyError("rate limit"), NameError("timed out"), TypeError("HTTP 404")])
def test_the_text_of_an_error_in_the_program_is_no_condition(error: Exception) -> None:
    assert classify(error).kind is Kind.DEFAULT


@pytest.mark.parametrize("error", [PermissionError("403"), OSError("forbidden"), FileNotFoundError("404")], ids=repr)
def test_a_bare_status_of_an_error_of_the_system_is_none(error: Exception) -> None:
    assert classify(error).kind is Kind.DEFAULT


class NotReady(Exception):
    """A record is not ready yet."""


@pytest.mark.parametrize("status", [400, 404, 429, 503])
def test_a_number_that_an_error_was_raised_with_is_an_id_and_no_status(status: int) -> None:
    assert classify(NotReady(status)).kind is Kind.DEFAULT
    assert classify(NotReady(str(status))).kind is not Kind.DEFAULT


# What a fault keeps


class Shop:
    class Declined(ValueError):
        pass


def test_classes_are_named_as_policies_name_them() -> None:
    fault = classify(Shop.Declined("x"))
    assert fault.errors == (f"{__name__}.Shop.Declined", "ValueError", "Exception", "BaseException")
    assert fault.error == fault.errors[0]
    assert classify(ValueError("x")).error == "ValueError"
    assert classify(httpx.ReadTimeout("x")).errors[:2] == ("httpx.ReadTimeout", "httpx.TimeoutException")


def test_traceback_reads_as_python_s_own_with_its_causes() -> None:
    fault = classify(raised(RuntimeError("outer"), raised(KeyError("inner"))))
    lines = fault.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert re.fullmatch(rf'  File "{re.escape(__file__)}", line \d+, in raised', lines[1])
    assert lines[2] == "    raise exception from cause"
    assert lines[3] == "KeyError: 'inner'"
    assert "The above exception was the direct cause of the following exception:" in lines
    assert lines[-1] == "RuntimeError: outer"


def test_traceback_has_the_notes_and_the_members_of_a_group() -> None:
    group = BaseExceptionGroup("both", [raised(ValueError("first")), raised(KeyError("second"))])
    group.add_note("while syncing shop 7")
    text = classify(raised(group)).traceback
    assert text.index("while syncing shop 7") < text.index("ValueError: first") < text.index("KeyError: 'second'")


def test_an_exception_that_was_never_raised_has_no_frames() -> None:
    assert classify(ValueError("x")).traceback == "ValueError: x"
    assert classify(ValueError()).traceback == "ValueError"


def run_as(filename: str, exception: Exception) -> Exception:
    """Raise through a frame that says it lies in `filename`."""
    scope: dict[str, Any] = {}
    exec(compile("def run(call):\n    call()\n", filename, "exec"), scope)

    def handler() -> None:
        raise exception

    try:
        scope["run"](handler)
    except Exception as caught:
        return caught.with_traceback(caught.__traceback__.tb_next if caught.__traceback__ else None)
    raise AssertionError


def test_frames_of_the_worker_are_left_out_and_no_others() -> None:
    package = Path(redrive.__file__).parent
    own = classify(run_as(str(package / "worker" / "worker/store_loop.py"), ValueError("x")))
    assert "in run" not in own.traceback
    assert "in handler" in own.traceback
    assert "in run" in classify(run_as(str(package / "context.py"), ValueError("x"))).traceback
    assert own.fingerprint != classify(run_as("/srv/shop/sync.py", ValueError("x"))).fingerprint


def test_a_fault_of_the_worker_itself_keeps_its_frames() -> None:
    error = run_as(str(Path(redrive.__file__).parent / "worker" / "worker/store_loop.py"), ValueError("x"))
    assert error.__traceback__ is not None
    error.__traceback__.tb_next = None
    assert "in run" in classify(error).traceback


def test_a_deep_stack_keeps_both_ends() -> None:
    def deep(n: int) -> None:
        if n == 0:
            raise ValueError("bottom")
        deep(n - 1)

    try:
        deep(300)
    except ValueError as error:
        text = classify(error).traceback
    assert "frames left out]" in text
    assert text.endswith("ValueError: bottom")
    assert "in test_a_deep_stack_keeps_both_ends" in text
    assert len(text) <= TRACEBACK_MAX


def test_a_fault_round_trips_through_json() -> None:
    fault = classify(raised(ValueError("\ud800 lone"), HttpFailure(429, {"Retry-After": "7"})))
    assert msgspec.json.decode(msgspec.json.encode(fault), type=Fault) == fault


# Hostile exceptions


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class ExitsInStr(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class CancelsInStr(Exception):
    def __str__(self) -> str:
        raise asyncio.CancelledError


class StrIsNoText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class RecursesInStr(Exception):
    def __str__(self) -> str:
        return str(self)


class LyingText(str):
    def __len__(self) -> int:
        raise RuntimeError("no")

    def lower(self) -> str:
        raise RuntimeError("no")

    def isascii(self) -> bool:
        return True


class SaysLyingText(Exception):
    def __str__(self) -> str:
        return LyingText("\ud800" * 9)


class RaisesOnEveryAttribute(Exception):
    def __getattribute__(self, name: str) -> object:
        raise ZeroDivisionError(name)


class RaisesOnResponse(Exception):
    @property
    def response(self) -> object:
        raise SystemExit

    @property
    def __cause__(self) -> object:  # type: ignore[override]
        raise RuntimeError

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError


class EndlessResponse(Exception):
    def __getattr__(self, name: str) -> EndlessResponse:
        return self

    def __bool__(self) -> bool:
        raise RuntimeError("no")

    def __call__(self, *arguments: object) -> EndlessResponse:
        return self


class HeadersRaise:
    def get(self, name: str) -> str:
        raise KeyError(name)


def hostile_class() -> BaseException:
    class Meta(type):
        def __hash__(cls) -> int:
            raise RuntimeError("no")

        def __getattribute__(cls, name: str) -> object:
            raise RuntimeError(name)

    class Hostile(Exception, metaclass=Meta):
        pass

    return Hostile("x")


class HugeNumber(Exception):
    def __str__(self) -> str:
        return str(10**5000)


def circular(attribute: str) -> Exception:
    one, other = ValueError("one"), KeyError("other")
    setattr(one, attribute, other)
    setattr(other, attribute, one)
    return one


def long_chain() -> Exception:
    error = ValueError("0")
    for n in range(5_000):
        outer = ValueError(str(n))
        outer.__cause__ = error
        error = outer
    return error


def nested_groups() -> Exception:
    error: Exception = ValueError("leaf")
    for n in range(500):
        error = ExceptionGroup(str(n), [error, error])
    return error


def recursion() -> BaseException:
    def forever() -> None:
        forever()

    try:
        forever()
    except RecursionError as error:
        return error
    raise AssertionError


def noted(notes: object) -> Exception:
    error = ValueError("x")
    error.__notes__ = notes  # type: ignore[assignment]
    return error


HOSTILE: dict[str, Callable[[], BaseException]] = {
    "str raises": Unprintable,
    "str exits": ExitsInStr,
    "str cancels": CancelsInStr,
    "str is no text": StrIsNoText,
    "str recurses": RecursesInStr,
    "str is a lying subclass": SaysLyingText,
    "every attribute raises": RaisesOnEveryAttribute,
    "response, cause and class raise": RaisesOnResponse,
    "every attribute is itself": EndlessResponse,
    "headers raise": lambda: HttpFailure(503, HeadersRaise()),
    "headers are a number": lambda: HttpFailure(503, 7),
    "retry-after is huge": lambda: HttpFailure(503, {"Retry-After": "9" * 10_000}),
    "retry-after is an int too long to print": lambda: HttpFailure(503, {"Retry-After": 10**5000}),
    "response is an odd dict": lambda: foreign("x.E", response={"Error": [], "ResponseMetadata": "x"})("x"),
    "metaclass raises": hostile_class,
    "module is a list": lambda: type("Odd", (Exception,), {"__module__": ["x"]})("x"),
    "qualname has a lone surrogate": lambda: type("Odd", (Exception,), {"__qualname__": "O\ud800dd"})("x"),
    "name of a million letters": lambda: type("O" * 1_000_000, (Exception,), {})("x"),
    "ten megabytes": lambda: ValueError("x" * 10_000_000),
    "ten megabytes of quotes": lambda: ValueError("'\"" * 5_000_000),
    "ten megabytes of slashes": lambda: ValueError("a/\\" * 3_300_000),
    "ten megabytes of digits": lambda: ValueError("1" * 10_000_000),
    "ten megabytes of surrogates": lambda: ValueError("\udcff" * 10_000_000),
    "NUL": lambda: ValueError("a\0b"),
    "an int too long to print": HugeNumber,
    "circular causes": lambda: circular("__cause__"),
    "circular contexts": lambda: circular("__context__"),
    "its own reason": EndlessResponse,
    "5,000 causes": long_chain,
    "500 groups deep": nested_groups,
    "wide group": lambda: ExceptionGroup("g", [ValueError(str(n)) for n in range(10_000)]),
    "recursion": recursion,
    "notes are a number": lambda: noted(7),
    "notes are odd": lambda: noted([object(), "\ud800", None]),
    "sqlstate is odd": lambda: foreign("x.E", sqlstate=b"40001", orig=7)("x"),
    "odd errno": lambda: OSError("x", "y"),
    "generator exit": GeneratorExit,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_classifying_never_raises_and_what_it_keeps_is_bounded_and_storable(name: str) -> None:
    fault = classify(raised(HOSTILE[name]()))
    assert fault.error
    assert fault.kind in Kind
    assert re.fullmatch("[0-9a-f]{16}", fault.fingerprint)
    assert len(fault.text) <= TEXT_MAX
    assert len(fault.traceback) <= TRACEBACK_MAX
    for kept in (fault.error, fault.text, fault.traceback, *fault.errors):
        assert "\0" not in kept
        kept.encode("utf-8")
    assert msgspec.json.decode(msgspec.json.encode(fault), type=Fault) == fault


def test_a_text_that_was_cut_says_how_long_it_was() -> None:
    assert classify(ValueError("x" * 10_000_000)).text.endswith("x… (10,000,000 characters)")


def test_an_unprintable_exception_is_still_named() -> None:
    assert classify(Unprintable()).text == f"<unprintable {__name__}.Unprintable object>"


def test_a_keyboard_interrupt_is_not_swallowed() -> None:
    class Interrupted(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        classify(Interrupted())


@given(st.text(st.characters(exclude_categories=()), max_size=300))
def test_any_text_is_kept_storable(text: str) -> None:
    fault = classify(RuntimeError(text))
    fault.text.encode("utf-8")
    assert len(fault.text) <= TEXT_MAX
    assert classify(RuntimeError(text)) == fault


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(SCALARS, inner)))
def test_any_value_may_stand_in_any_attribute(value: object) -> None:
    names = (
        "response",
        "headers",
        "status",
        "status_code",
        "code",
        "orig",
        "sqlstate",
        "reason",
        "retry_after",
        "errno",
    )
    error = foreign("x.Odd", **dict.fromkeys(names, value))("x")
    assert classify(error).error == "x.Odd"


# Fingerprints

SAME: list[tuple[str, str]] = [
    ("order 42 failed", "order 12345678 failed"),
    ("order 42 failed", "order a8f3c9 failed"),
    ("balance -5 is too low", "balance 1.25e-7 is too low"),
    ("request 3fa85f64-5717-4562-b3fc-2c963f66afa6 failed", "request 00000000-abcd-efab-cdef-aabbccddeeff failed"),
    ("<Foo object at 0x7f3b2c1d0a30> is closed", "<Foo object at 0x55d1> is closed"),
    ("commit 9fceb02d0ae598e95dc970b74767f19372d61af8 is gone", "commit 3fa9c21 is gone"),
    ("no customer cus_NffrFeUfNV2Hib", "no customer cus_9s6XKzkNRiz8i3"),
    ("late since 2026-11-21T10:11:12.5+00:00", "late since 2025-01-02T03:04:05+00:00"),
    ("late since 2026-11-21 10:11:12", "late since 2025-01-02 03:04:05.123456"),
    ("late since Fri, 21 Nov 2025 10:11:12 GMT", "late since Sun, 06 May 1994 08:49:37 GMT"),
    ("could not parse 'abc'", "could not parse 'something else'"),
    ('could not parse "abc"', 'could not parse "it\'s \\"quoted\\""'),
    ("Error 111 connecting to redis:6379.", "Error 111 connecting to cache-01.prod.internal:6380."),
    ("Error 111 connecting to 10.0.0.1:6379.", "Error 111 connecting to localhost:6379."),
    ("no route to [fe80::1]:80", "no route to [2001:db8::8a2e:370:7334]:443"),
    ("404 for url https://api.example.com/v1/users/42", "404 for url https://api.example.org/v1/orders?id=7"),
    ("could not open /var/data/2024/11/a.csv", "could not open /tmp/x.csv"),
    ("could not open C:\\Users\\bob\\a.csv", "could not open D:\\data\\b.csv"),
    ("could not open uploads/1/a.csv", "could not open archive/2/b.json"),
    ("mail to bob.smith+x@example.co.uk bounced", "mail to eve@example.com bounced"),
    ("line 12 column 5 (char 42)", "line 1 column 17 (char 1042)"),
    ("ids [1, 2, 3] are gone", "ids [4] are gone"),
    ("names ['a', 'b'] are gone", "names ['c'] are gone"),
    ("timed out after 30s", "timed out after 5s"),
    ("job user42 failed", "job user1234567 failed"),
    ("Key (email)=(bob@x.com) already exists", "Key (email)=(eve) already exists"),
    ("SKU-42 is out of stock", "ART-9 is out of stock"),
    ("no customer cus_NffrFeUfNVHibxx", "no customer cus_sXJKzkNRizipQrs"),
    ("No such option: --colour", "no such option '--size'."),
    ("total [type=x, input_value={'a': 1, 'b...}, input_type=dict]", "total [type=x, input_value=7, input_type=dict]"),
    ("failed [parameters: (1, 'a')]", "failed [parameters: {'b': 2}]"),
    ("Command '['convert', '-x', '/a b']' returned", "Command '['sh']' returned"),
    ("with url: /orders/7?page=2 (x)", "with url: /users/alice?since=2026-01-01 (x)"),
    ("body was '" + "a" * 3_000, "body was '" + "b " * 2_000),
]
DIFFERENT: list[tuple[str, str]] = [
    ("'NoneType' object has no attribute 'x'", "'str' object has no attribute 'x'"),
    ("Expected `int`, got `str` - at `$.id`", "Expected `int`, got `str` - at `$.total`"),
    ("{'email': ['Missing data for required field.']}", "{'number': ['Missing data for required field.']}"),
    ("{'email': ['Missing data for required field.']}", "{'email': ['Not a valid email address.']}"),
    ("ProtocolError('reset by peer')", "ProtocolError('aborted by us')"),
    ("order 42 failed", "order 42 refused"),
    ("HTTP Error 404: x", "HTTP Error 500: x"),
    ("HTTP/1.1 502 from upstream", "HTTP/1.1 504 from upstream"),
    ("status_code=404 body=''", "status_code=409 body=''"),
    ("Command 'x' returned non-zero exit status 1.", "Command 'x' returned non-zero exit status 137."),
    ("died of signal 9", "died of signal 11"),
    ("[Errno 111] connect failed", "[Errno 113] connect failed"),
    ("name 'foo' is not defined", "name 'bar' is not defined"),
    ("'NoneType' object has no attribute 'foo'", "'NoneType' object has no attribute 'bar'"),
    ("No module named 'foo'", "No module named 'foo.bar'"),
    ("f() missing 1 required positional argument: 'x'", "f() missing 1 required positional argument: 'y'"),
    ('violates unique constraint "users_email_key"', 'violates unique constraint "users_name_key"'),
    ('relation "users" does not exist', 'relation "orders" does not exist'),
    ("(1213, 'Deadlock found when trying to get lock')", "(1205, 'Lock wait timeout exceeded')"),
    ('402: {"error": {"code": "card_declined"}}', '402: {"error": {"code": "expired_card"}}'),
    ('{"message": "Your card was declined."}', '{"message": "No such customer"}'),
    ("can't find the user's record", "can't find the user's order"),
    ("expected text/html", "expected application/json"),
    ("timed out after 30s", "gave up after 30s"),
    ("", "x"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_fingerprint_is_stable_across_what_varies(one: str, other: str) -> None:
    assert classify(RuntimeError(one)).fingerprint == classify(RuntimeError(other)).fingerprint


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_fingerprint_differs_for_another_failure(one: str, other: str) -> None:
    assert classify(RuntimeError(one)).fingerprint != classify(RuntimeError(other)).fingerprint


SOURCE = """
def load(n):
    return parse(n)

def parse(n):
    if n:
        return parse(n - 1)
    raise error
"""


def fingerprint_of(source: str, error: Exception, filename: str = "/srv/shop/sync.py", depth: int = 1) -> str:
    scope: dict[str, Any] = {"error": error}
    exec(compile(source, filename, "exec"), scope)
    try:
        scope["load"](depth)
    except Exception as caught:
        tail = caught.__traceback__.tb_next if caught.__traceback__ else None
        return classify(caught.with_traceback(tail)).fingerprint
    raise AssertionError


def test_fingerprint_survives_line_drift_another_folder_and_another_depth_of_recursion() -> None:
    base = fingerprint_of(SOURCE, ValueError("x"))
    assert fingerprint_of("\n\n# moved down\n" + SOURCE, ValueError("x")) == base
    assert fingerprint_of(SOURCE, ValueError("x"), "/home/ci/shop/sync.py") == base
    assert fingerprint_of(SOURCE, ValueError("x"), depth=7) == base
    assert fingerprint_of(SOURCE, ValueError("x"), depth=200) == base


def test_fingerprint_differs_by_function_file_class_code_and_cause() -> None:
    prints = [
        fingerprint_of(SOURCE, ValueError("x")),
        fingerprint_of(SOURCE.replace("parse", "decode"), ValueError("x")),
        fingerprint_of(
            SOURCE.replace("load(n)", "load(n, *a)").replace("return parse", "return [parse][0]"), KeyError("x")
        ),
        fingerprint_of(SOURCE, ValueError("x"), "/srv/shop/billing.py"),
        fingerprint_of(SOURCE, HttpFailure(404, text="x")),
        fingerprint_of(SOURCE, HttpFailure(500, text="x")),
    ]
    wrapped, other = ValueError("x"), ValueError("x")
    wrapped.__cause__, other.__cause__ = TimeoutError("t"), KeyError("k")
    prints += [fingerprint_of(SOURCE, wrapped), fingerprint_of(SOURCE, other)]
    assert len(set(prints)) == len(prints)


def test_a_quoted_word_that_is_a_literal_of_the_handler_is_told_from_data() -> None:
    def missing(key: str) -> str:
        row: dict[str, int] = {}
        source = (
            "def load(n):\n"
            "    if key == 'price':\n        return row['price']\n"
            "    return row['currency'] if key == 'currency' else row[key]\n"
        )
        scope: dict[str, Any] = {"row": row, "key": key}
        exec(compile(source, "/srv/shop/sync.py", "exec"), scope)
        with pytest.raises(KeyError) as caught:
            scope["load"](1)
        return classify(caught.value.with_traceback(caught.tb.tb_next)).fingerprint

    assert missing("alice") == missing("bob")
    assert len({missing("alice"), missing("price"), missing("currency")}) == 3


def test_a_library_s_inner_calls_do_not_change_the_fingerprint_but_the_place_that_raised_does() -> None:
    def through(*functions: str) -> str:
        source = "".join(f"def {a}(n):\n    return {b}(n)\n" for a, b in pairwise(functions))
        source += f"def {functions[-1]}(n):\n    raise error\n"
        return fingerprint_of(source, ValueError("x"), "/venv/lib/python3.11/site-packages/lib/core.py")

    assert through("load", "send", "write") == through("load", "retry", "send", "write")
    assert through("load", "send", "write") != through("load", "send", "read")


def test_fingerprint_of_a_recursion_error_does_not_depend_on_where_the_stack_ended() -> None:
    source = "def load(n):\n    return other(n)\ndef other(n):\n    return load(n)\n"

    def one_frame_deeper() -> str:
        return fingerprint_of(source, ValueError())

    assert one_frame_deeper() == fingerprint_of(source, ValueError())
    shifted = (
        "def load(n):\n    return third(n)\ndef third(n):\n    return other(n)\ndef other(n):\n    return third(n)\n"
    )
    assert fingerprint_of(shifted, ValueError()) != fingerprint_of(source, ValueError())


def test_fingerprint_of_a_group_depends_on_what_failed_not_on_how_often() -> None:
    def of(*members: Exception) -> str:
        return classify(ExceptionGroup("unhandled errors in a TaskGroup", list(members))).fingerprint

    assert of(ValueError("a 1"), KeyError("k")) == of(KeyError("k"), ValueError("a 2"), ValueError("a 3"))
    assert of(ValueError("a 1")) != of(KeyError("k"))


def test_rules_do_not_change_the_fingerprint() -> None:
    assert classify(ValueError("x"), [(ValueError, "quota")]).fingerprint == classify(ValueError("x")).fingerprint


@given(st.integers(), st.integers(), st.uuids(), st.uuids(), st.ip_addresses(), st.ip_addresses())
def test_fingerprint_ignores_any_number_uuid_and_address(a: int, b: int, c: Any, d: Any, e: Any, f: Any) -> None:
    one = f"order {a} of {c} ({c.hex}) failed at {e} near 0x{abs(a):x}"
    other = f"order {b} of {d} ({d.hex}) failed at {f} near 0x{abs(b):x}"
    assert fingerprint("ValueError", one) == fingerprint("ValueError", other)


@given(
    st.datetimes(),
    st.datetimes(),
    st.from_regex(r"[a-z ]{0,30}", fullmatch=True),
    st.from_regex(r"\w*", fullmatch=True),
)
def test_fingerprint_ignores_any_time_and_quoted_value(a: datetime, b: datetime, c: str, d: str) -> None:
    assert fingerprint("E", f"bad value '{c}' at {a.isoformat()}") == fingerprint(
        "E", f"bad value '{d}' at {b.isoformat()}"
    )


# Retry-After


@pytest.fixture(params=["UTC0", "EST5EDT,M3.2.0,M11.1.0", "<+0545>-5:45", "<+14>-14"])  # need no zone files
def local_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    assert (time.timezone == 0) is (request.param == "UTC0")
    yield request.param
    monkeypatch.undo()
    time.tzset()


DATES = [
    ("Sat, 21 Nov 2026 12:01:30 GMT", 90.0),
    ("Saturday, 21-Nov-26 12:01:30 GMT", 90.0),
    ("Sat Nov 21 12:01:30 2026", 90.0),
    ("Sun Nov 22 12:00:00 2026", 86_400.0),
    ("Tue Dec  1 12:00:00 2026", 864_000.0),
    (" Sat, 21 Nov 2026 12:01:30 GMT ", 90.0),
    ("sat, 21 nov 2026 12:01:30 gmt", 90.0),
    ("Sat, 21 Nov 2026 12:00:60 GMT", 59.0),
    ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
    ("Sunday, 06-Nov-94 08:49:37 GMT", 0.0),
    ("Sun Nov  6 08:49:37 1994", 0.0),
    ("Fri, 31 Dec 9999 23:59:59 GMT", RETRY_AFTER_MAX_S),
    ("Sat, 01 Jan 0001 00:00:00 GMT", 0.0),
    # as servers send them too
    ("Tue, 1 Dec 2026 12:00:00 GMT", 864_000.0),
    ("Tue,  1 Dec 2026 12:00:00 GMT", 864_000.0),
    ("Tuesday, 1-Dec-26 12:00:00 GMT", 864_000.0),
    ("Tue Dec 1 12:00:00 2026", 864_000.0),
    ("Sat, 21 Nov 2026 12:01:30 UTC", 90.0),
    ("Sat, 21 Nov 2026 12:01:30 +0000", 90.0),
    ("Sat, 21 Nov 2026 12:01:30 -0000", 90.0),  # what Python's email.utils.formatdate gives
    ("Saturday, 21-Nov-26 12:01:30 UTC", 90.0),
    ("Sat, 21-Nov-2026 12:01:30 GMT", 90.0),
    ("21 Nov 2026 12:01:30 GMT", 90.0),
    ("21-Nov-26 12:01:30 GMT", 90.0),
    ("1 Dec 2026 12:00:00 +0000", 864_000.0),
    ("Sat 21 Nov 2026 12:01:30 GMT", 90.0),
    ("Sun, 06 Nov 1994 8:49:37 GMT", 0.0),  # an hour of one digit
    ("Sun, 22 Nov 2026 9:00:00 GMT", 75_600.0),
    ("Sunday, 22-Nov-26 9:00:00 GMT", 75_600.0),
    ("Sun Nov 22 9:00:00 2026", 75_600.0),
]


@pytest.mark.parametrize(("text", "asked_s"), DATES)
@pytest.mark.usefixtures("local_zone")
def test_http_dates_are_read_right_in_any_local_zone(text: str, asked_s: float) -> None:
    assert parse_retry_after(text, NOW) == asked_s
    assert parse_retry_after(text, NOW.astimezone(timezone(timedelta(hours=-9)))) == asked_s
    assert parse_retry_after(text, NOW.replace(tzinfo=None)) == asked_s


@pytest.mark.parametrize(
    ("text", "asked_s"),
    [
        ("0", 0.0),
        ("120", 120.0),
        ("  120\t", 120.0),
        ("007", 7.0),
        ("31536000", RETRY_AFTER_MAX_S),
        ("31536001", RETRY_AFTER_MAX_S),
        ("9" * 10_000, RETRY_AFTER_MAX_S),
        ("0" * 10_000 + "5", 5.0),
    ],
)
def test_whole_seconds_are_read_and_clamped(text: str, asked_s: float) -> None:
    assert parse_retry_after(text, NOW) == asked_s


@pytest.mark.parametrize(
    ("text", "asked_s"),
    [
        ("1.5", 2.0),
        (" 0.25 ", 1.0),
        ("29.999", 30.0),
        ("00012.0001", 13.0),
        ("31535999.5", RETRY_AFTER_MAX_S),
        ("31536000.5", RETRY_AFTER_MAX_S),
        (f"{'9' * 10_000}.5", RETRY_AFTER_MAX_S),
    ],
)
def test_a_fraction_of_a_second_is_rounded_up(text: str, asked_s: float) -> None:
    assert parse_retry_after(text, NOW) == asked_s
    fault = classify(HttpFailure(429, {"Retry-After": text}), now=NOW)
    assert fault.retry_after_s == asked_s


IGNORED: list[object] = [
    "", " ", "-1", "+1", "1.0", "0.0", "1.", ".5", "1.5.0", "1.5s", "-1.5", "+1.5", "1,5", "1.5e3", "1.٣",
    "1e3", "0x10", "²", "٣", "１", "1,2", "1, 2", "1 2", "1_000", "soon", "null",
    "Sat, 31 Feb 2026 12:00:00 GMT", "Sat, 21 Nov 2026 25:00:00 GMT", "Sat, 21 Nov 2026 12:00:00 PST",
    "Sat, 21 Nov 2026 12:00:00 EST", "Sat, 21 Nov 2026 12:00:00 +0100", "Sat, 21 Nov 2026 12:00:00 +00:00",
    "Sat, 21 Nov 2026 12:00:00 Z", "21 Nov 2026 12:00:00", "Nov 21 12:00:00 2026", "21 Nov 26 12:00:00 GMT",
    "Sat, 0 Nov 2026 12:00:00 GMT", "Sat, 021 Nov 2026 12:00:00 GMT", "Sat, 21 Nov 2026 9:0:00 GMT",
    "Sat, 21 Nov 2026 :00:00 GMT", "Sat, 21 Nov 2026 009:00:00 GMT",
    "11/12/2026 12:00:00 GMT", "2026-11-21 12:00:00 GMT", "Sat, 21 Nov 2026", "12:00:00 GMT", "1 Dec 2026 UTC",
    "Sat, 21 Nov 2026 12:00:00", "Sat, 21 Xyz 2026 12:00:00 GMT", "Sat, 00 Nov 2026 12:00:00 GMT",
    "Sat, 01 Jan 0000 00:00:00 GMT", "2026-11-21T12:00:00Z", "5, Sat, 21 Nov 2026 12:00:00 GMT",
    "Sat, 21 Nov 2026 12:00:00 GMT, Sat, 21 Nov 2026 12:00:00 GMT",
    None, 5, 5.0, True, b"5", [], ["5"], pytest.param(object(), id="object"), "\ud800", "5\x00",
]  # fmt: skip


@pytest.mark.parametrize("text", IGNORED, ids=repr)
def test_what_is_neither_seconds_nor_a_date_is_ignored(text: Any) -> None:
    assert parse_retry_after(text, NOW) is None


@pytest.mark.parametrize("now", [None, "now", 5])
def test_an_odd_now_is_no_exception(now: Any) -> None:
    assert parse_retry_after(DATES[0][0], now) is None


@pytest.mark.parametrize(("year", "past"), [("76", False), ("77", True), ("99", True), ("26", False)])
def test_a_year_of_two_digits_is_at_most_fifty_years_ahead(year: str, past: bool) -> None:
    assert parse_retry_after(f"Friday, 25-Dec-{year} 00:00:00 GMT", NOW) == (
        0.0 if past else min(RETRY_AFTER_MAX_S, 33.5 * 86_400 if year == "26" else RETRY_AFTER_MAX_S)
    )


@given(st.integers(0, 130 * 365 * 86_400), st.integers(0, 364 * 86_400))
def test_a_date_ahead_is_read_back_to_the_second(now_s: int, ahead_s: int) -> None:
    now = datetime.fromtimestamp(now_s, UTC)
    then = now + timedelta(seconds=ahead_s)
    for form in ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y", "%e %b %Y %T UTC"):
        assert parse_retry_after(then.strftime(form), now) == float(ahead_s)


@given(st.text(max_size=60), st.datetimes(timezones=st.none() | st.just(UTC)))
def test_no_text_makes_parsing_raise(text: str, now: datetime) -> None:
    asked_s = parse_retry_after(text, now)
    assert asked_s is None or 0.0 <= asked_s <= RETRY_AFTER_MAX_S
