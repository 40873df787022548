"""Tables of well-known errors: the kinds of exception classes, HTTP statuses, errnos, SQLSTATEs and services' codes."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from .model import Kind

# A row has a kind, a module, and classes. The most derived class of an exception that is listed decides the kind.
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
transient redrive.errors                StoreUnavailable InProgress
permanent redrive.errors                KeyReused
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
    kinds: dict[str, Kind] = {}
    for line in table.strip().splitlines():
        kind, module, *names = line.split()
        kinds |= dict.fromkeys([f"{module}.{name}".removeprefix("builtins.") for name in names], Kind(kind))
    return kinds


BY_CLASS = _by_class(_CLASSES)
# Errors of the program itself, or the exit of it. Their texts quote names and numbers from the code, so no text pattern
# is applied to them.
PROGRAM_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, SyntaxError, SystemExit,
    TypeError,
)  # fmt: skip

_ERRNO_NAMES = {
    Kind.TIMEOUT: "ETIMEDOUT",
    Kind.QUOTA: "EDQUOT",
    Kind.TRANSIENT: """EAGAIN EWOULDBLOCK EINTR EBUSY EIO ENOMEM ENFILE EMFILE ENOSPC EDEADLK ENOLCK ENOBUFS EPIPE
        ETXTBSY ESTALE ENETDOWN ENETUNREACH ENETRESET EHOSTDOWN EHOSTUNREACH ECONNABORTED ECONNREFUSED ECONNRESET
        ENOTCONN EADDRNOTAVAIL""",
}
BY_ERRNO = {
    getattr(errno, name): kind
    for kind, names in _ERRNO_NAMES.items()
    for name in names.split()
    if hasattr(errno, name)  # some systems lack EDQUOT and others
}

BY_SQLSTATE = {  # longest prefix wins (PostgreSQL, appendix A)
    **dict.fromkeys(("08", "40", "53", "57P", "58", "25006", "55006", "55P03"), Kind.TRANSIENT),
    **dict.fromkeys(("0A", "22", "23", "28", "3D", "3F", "40002", "42", "44"), Kind.PERMANENT),
    **dict.fromkeys(("57014", "25P03"), Kind.TIMEOUT),
}
BY_SQLITE = {
    **dict.fromkeys(("BUSY", "LOCKED", "IOERR", "FULL", "CANTOPEN", "PROTOCOL", "NOMEM", "INTERRUPT"), Kind.TRANSIENT),
    **dict.fromkeys(("CONSTRAINT", "MISMATCH", "TOOBIG", "RANGE", "AUTH"), Kind.PERMANENT),
}
BY_AWS_CODE = {
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


def kind_of_status(status: int, retry_after_s: float | None) -> Kind | None:
    """Return the kind of an HTTP status from 400 to 599, or None. A 503 with a Retry-After counts as throttled."""
    if status in _HTTP_THROTTLED or (status == 503 and retry_after_s is not None):
        return Kind.THROTTLED
    if status in _HTTP_TRANSIENT or (500 <= status <= 599 and status not in _HTTP_PERMANENT):
        return Kind.TRANSIENT
    return Kind.PERMANENT if 400 <= status <= 599 else None
