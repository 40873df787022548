"""Create boto3 clients tuned for many small calls, and translate their errors. No other module imports boto3."""

from __future__ import annotations

import functools
import ipaddress
import os
import re
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from .._version import __version__
from ..errors import ConfigError, StoreError, StoreUnavailable

READ_TIMEOUT_S = 35.0  # a read waits longer than a long poll, which takes 20 s
CONNECT_TIMEOUT_S = 5.0
TRIES = 3  # attempts of one call, on network errors, throttling and 5xx
REFUSED = "AWS refuses it"
_DENIED = ("AccessDenied", "AccessDeniedException", "UnrecognizedClientException", "InvalidClientTokenId",
           "SignatureDoesNotMatch", "ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId",
           "MissingAuthenticationToken")  # fmt: skip
_ABSENT = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "ResourceNotFoundException", "NoSuchBucket",
           "NotFound")  # fmt: skip


def client(service: str, *, region: str | None, **options: Any) -> Any:
    """Return a boto3 client that threads may share; the options are those of `opened`."""
    return opened(service, region=region, **options).client


class Opened(NamedTuple):
    """A boto3 client and the settings with which other code calls the same service without boto3. `ca`: the path of a
    custom CA certificate file; `direct`: true if no proxy is configured."""

    client: Any
    credentials: Any
    ca: str | None
    direct: bool


def opened(
    service: str,
    *,
    region: str | None,
    endpoint: str | None = None,
    pool: int = 10,
    read_timeout_s: float = READ_TIMEOUT_S,
    tries: int = TRIES,
) -> Opened:
    """Return a boto3 client with `pool` connections, which any number of threads may share.

    Parameters are not validated and the User-Agent is fixed: together a quarter of the processor time of a call
    (docs/benchmarks.md). With `tries` 1 the caller retries. `endpoint` None: the one of AWS_ENDPOINT_URL or the
    profile. An endpoint on this machine needs no credentials. Raises ConfigError if boto3 is not installed or has no
    region, and for an endpoint that is not a URL.
    """
    try:
        import boto3
        import botocore.session
        from botocore.config import Config
        from botocore.credentials import Credentials
        from botocore.exceptions import BotoCoreError, NoRegionError
        from botocore.utils import get_environ_proxies
    except ImportError as error:
        raise ConfigError(f"AWS needs its driver ({error}); pip install 'redrive[aws]'") from error
    core = botocore.session.get_session()
    core.register_component("data_loader", _loader())
    config = Config(
        parameter_validation=False,
        user_agent=f"redrive/{__version__}",
        retries={"mode": "standard", "total_max_attempts": tries},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=read_timeout_s,
        max_pool_connections=pool,
        tcp_keepalive=True,
    )
    session = boto3.session.Session(botocore_session=core)

    def connect(**keys: str) -> Opened:
        client = session.client(service, region_name=region, endpoint_url=endpoint, config=config, **keys)
        credentials = Credentials(*keys.values()) if keys else session.get_credentials()
        direct = not get_environ_proxies(client.meta.endpoint_url)
        ca = core.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
        return Opened(client, credentials, ca, direct)

    local = {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
    try:
        if endpoint is not None and _is_here(endpoint):
            # Do not ask the cloud's metadata service: outside a cloud the request times out after seconds.
            core.get_component("credential_provider").remove("iam-role")
            return connect(**({} if session.get_credentials() is not None else local))
        first = connect()
        if not _is_here(first.client.meta.endpoint_url) or first.credentials is not None:
            return first
        first.client.close()
        return connect(**local)
    except NoRegionError as error:
        raise ConfigError(
            f"AWS {service}: no region is named; expected region=eu-central-1 in the URL, or AWS_DEFAULT_REGION"
        ) from error
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(
            f"AWS {service}: {error}; expected an endpoint such as http://127.0.0.1:8000, and whole credentials"
        ) from error


@functools.cache
def _loader() -> Any:
    """The loader of botocore's service descriptions for all clients: each takes a tenth of a second to read."""
    from botocore.loaders import create_loader

    return create_loader()


def _is_here(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@functools.cache
def method_of(action: str) -> str:
    """Return the name of the boto3 method for an API action.

    >>> method_of("SendMessageBatch")
    'send_message_batch'
    """
    return re.sub("(?<!^)(?=[A-Z])", "_", action).lower()


def code_of(error: Exception) -> str:
    """Return the error code in an error response from AWS; empty for any other error, such as a network error."""
    answer = getattr(error, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""


def is_absent(error: Exception) -> bool:
    """True if AWS reports that the requested resource does not exist."""
    return code_of(error) in _ABSENT


def failure(error: Exception, what: str) -> StoreError | ConfigError:
    """Return the exception to raise for a boto3 error that occurred while doing `what`: ConfigError for missing rights,
    credentials or resources, where a retry does not help; StoreError for an invalid call; StoreUnavailable for errors
    that may pass."""
    code, said = code_of(error), " ".join(str(error).split())[:300]
    if type(error).__name__ == "NoCredentialsError":
        return ConfigError(
            f"{what}: {REFUSED}, as there are no credentials; boto3 looks in AWS_ACCESS_KEY_ID, in ~/.aws and at the "
            "machine's role. A server on this machine needs none: endpoint=http://127.0.0.1:8000 in the URL"
        )
    if code in _DENIED or type(error).__name__ == "PartialCredentialsError":
        return ConfigError(f"{what}: {REFUSED}: {said}; allow the action to these credentials, or give others")
    if code in _ABSENT:
        return ConfigError(f"{what}: it does not exist: {said}")
    status = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 0) if code else 0
    if 400 <= status < 500 and status != 429 and "Throttl" not in code and code not in _PASSING:
        return StoreError(f"{what}: {said}")
    return StoreUnavailable(f"{what}: {said}")


_PASSING = ("RequestLimitExceeded", "ProvisionedThroughputExceededException", "OverLimit", "RequestTimeout", "SlowDown",
            "LimitExceededException", "TransactionConflictException", "RequestThrottled", "KmsThrottled")  # fmt: skip


def errors() -> tuple[type[Exception], ...]:
    """Return the exception types that a boto3 call, or a call that bypasses boto3, can raise."""
    from botocore.exceptions import BotoCoreError, ClientError

    return (BotoCoreError, ClientError, OSError, HTTPException)
