"""Call DynamoDB: count calls, retry temporary errors, and translate errors.

boto3 does not retry here. A repeated conditional write must know if an earlier attempt may have succeeded: the
condition then fails because of that attempt's own write.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from ...awsapi import client as aws
from ...chance import uniform
from ...errors import ConfigError, RedriveError, StoreUnavailable

TRIES = 8
BASE_S, CAP_S = 0.025, 1.0  # before retry n: a random pause up to min(CAP_S, BASE_S * 2**n); in all 1.2 s on average
TIMEOUT_S = 10.0
# Error codes of calls that DynamoDB refused without any effect.
_REFUSED = ("ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded",
            "TransactionConflictException", "TransactionInProgressException", "LimitExceededException")  # fmt: skip
_PASSING_REASONS = ("TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded")
_NEVER_SENT = ("EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError")


class Unmet(Exception):
    """The conditions of some writes of a call failed. `met` maps the index of each such write to the stored item that
    failed its condition, or to an empty dict if there is no item. `unsure`: an earlier attempt of the call may have
    succeeded, and may have written that item."""

    met: dict[int, dict[str, Any]]
    unsure: bool

    def __init__(self, met: dict[int, dict[str, Any]], unsure: bool) -> None:
        super().__init__()
        self.met, self.unsure = met, unsure


class DynamoCalls:
    """A thread-safe client of DynamoDB; `where` names the table in errors."""

    def __init__(
        self, region: str | None, endpoint: str | None, where: str, *, pool: int, sleep: Callable[[float], object]
    ) -> None:
        self._client = aws.client(
            "dynamodb", region=region, endpoint=endpoint, pool=pool, read_timeout_s=TIMEOUT_S, tries=1
        )
        self._where, self._sleep = where, sleep
        self._errors = aws.errors()
        self._opened = False
        self.requests: Counter[str] = Counter()

    def call(self, action: str, **parameters: Any) -> dict[str, Any]:
        """Call DynamoDB with the action; returns the response. Raises Unmet, StoreError, StoreUnavailable after all
        attempts, ConfigError for wrong settings if no call has succeeded yet."""
        unsure = False
        for n in range(TRIES):
            try:
                answer = self._once(action, parameters)
            except self._errors as error:
                unmet = _unmet(error, unsure)
                if unmet is not None:
                    raise unmet from error
                failure = self._failure(error, action)
                if n == TRIES - 1 or not isinstance(failure, StoreUnavailable):
                    raise failure from error
                unsure = unsure or _may_be_done(error)
                self.pause(n)
            else:
                self._opened = True
                return answer
        raise AssertionError("the last try returns or raises")

    def call_unless(self, code: str, action: str, **parameters: Any) -> None:
        """Like `call`, but ignore an error with this code, and return nothing."""
        try:
            self.call(action, **parameters)
        except RedriveError as error:
            if aws.code_of(error.__cause__ or error) != code:  # type: ignore[arg-type]
                raise

    def pause(self, n: int) -> None:
        """Sleep for a random time before retry number `n`."""
        self._sleep(uniform(0, min(CAP_S, BASE_S * 2**n)))

    def close(self) -> None:
        self._client.close()

    def _once(self, action: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self.requests[action] += 1  # without a lock, so simultaneous calls may be counted once
        answer: dict[str, Any] = getattr(self._client, aws.method_of(action))(**parameters)
        return answer

    def _failure(self, error: Exception, action: str) -> RedriveError:
        what = f"{self._where}, {action}"
        if aws.is_absent(error) and not self._opened:
            return ConfigError(
                f"{self._where}: there is no such table in this region; deploy the one of `redrive aws template`, or "
                "let it be made for development with ?create=true"
            )
        if aws.code_of(error) in _REFUSED or _passing_reasons(error):
            return StoreUnavailable(f"{what}: throttled, {TRIES} times in a row: {_words(error)}")
        failure = aws.failure(error, what)
        if isinstance(failure, ConfigError) and self._opened:  # a temporary change of rights must not end a worker
            return StoreUnavailable(str(failure))
        return failure


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _reasons(error: Exception) -> list[dict[str, Any]]:
    if aws.code_of(error) != "TransactionCanceledException":
        return []
    return list(getattr(error, "response", {}).get("CancellationReasons", ()))


def _passing_reasons(error: Exception) -> bool:
    return any(reason.get("Code") in _PASSING_REASONS for reason in _reasons(error))


def _unmet(error: Exception, unsure: bool) -> Unmet | None:
    if aws.code_of(error) == "ConditionalCheckFailedException":
        return Unmet({0: getattr(error, "response", {}).get("Item") or {}}, unsure)
    failed = {
        n: r.get("Item") or {} for n, r in enumerate(_reasons(error)) if r.get("Code") == "ConditionalCheckFailed"
    }
    return Unmet(failed, unsure) if failed else None


def _may_be_done(error: Exception) -> bool:
    """True if a call that raised this error may still have succeeded."""
    code = aws.code_of(error)
    return code not in _REFUSED and not _reasons(error) and type(error).__name__ not in _NEVER_SENT


def wall_us() -> int:
    return time.time_ns() // 1000
