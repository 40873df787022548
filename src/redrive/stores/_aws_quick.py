"""The few calls that are made for every ten messages, without what boto3 does around each of its calls.

boto3 finds the endpoint and the credentials, botocore signs, urllib3 carries. Left out are botocore's events, endpoint
rules, serializers and parsers: more than half of the processor time of a call (docs/benchmarks.md). Only for services
that speak AWS's JSON protocol: https://smithy.io/2.0/aws/protocols/aws-json-1_0-protocol.html
"""

from __future__ import annotations

import random
import socket
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from .._version import __version__
from ._aws import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, TRIES

# As botocore's standard mode: a random part of 1 s, 2 s, 4 s and so on between two tries, and these codes.
PAUSE_MAX_S = 20.0
_AGAIN = ("RequestTimeout", "RequestTimeoutException", "PriorRequestNotComplete", "SlowDown", "RequestLimitExceeded",
          "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException",
          "TooManyRequestsException", "BandwidthLimitExceeded", "LimitExceededException")  # fmt: skip
_CONTENT = "application/x-amz-json-"
_QUERY_ERROR = "x-amzn-query-error"  # services that were once called otherwise tell the code of then, and whose fault
_encode = msgspec.json.Encoder().encode  # bytes as base64, as the protocol has them
_decode = msgspec.json.Decoder().decode


class QuickCalls:
    """Calls of one service by the names of its actions, from any number of threads over at most `pool` connections
    that are kept. `counted` is called with the action before each try."""

    def __init__(
        self, client: Any, credentials: Any, *, pool: int, counted: Callable[[str], None], ca: str | None
    ) -> None:
        import urllib3
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import ClientError
        from botocore.httpsession import get_cert_path

        self._url: str = client.meta.endpoint_url
        model = client.meta.service_model
        self._service, self._region = model.signing_name, client.meta.region_name
        self._target, self._content = model.metadata["targetPrefix"], f"{_CONTENT}{model.metadata['jsonVersion']}"
        self._credentials, self._counted = credentials, counted
        self._signer, self._request, self._refused = SigV4Auth, AWSRequest, ClientError
        self._lost, self._garbled = urllib3.exceptions.HTTPError, urllib3.exceptions.ProtocolError
        parts = urlsplit(self._url)
        self._path = parts.path or "/"
        tls = {"cert_reqs": "CERT_REQUIRED", "ca_certs": ca or get_cert_path(True)} if parts.scheme == "https" else {}
        self._carrier = urllib3.connection_from_url(
            self._url,
            maxsize=pool,
            timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S),
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)],
            **tls,
        )

    def call(self, action: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """What the service answers. Raises ClientError, or an error of urllib3, once it was tried often enough."""
        body = _encode(parameters)
        for turn in range(TRIES - 1):
            try:
                return self._once(action, body)
            except self._lost:
                pass
            except self._refused as error:
                if not _may_pass(error):
                    raise
            time.sleep(min(random.random() * 2**turn, PAUSE_MAX_S))
        return self._once(action, body)

    def _once(self, action: str, body: bytes) -> dict[str, Any]:
        self._counted(action)
        headers = {
            "X-Amz-Target": f"{self._target}.{action}",
            "Content-Type": self._content,
            "User-Agent": f"redrive/{__version__}",
        }
        request = self._request("POST", self._url, headers=headers, data=body)
        keys = None if self._credentials is None else self._credentials.get_frozen_credentials()
        self._signer(keys, self._service, self._region).add_auth(request)
        answer = self._carrier.urlopen(
            "POST", self._path, body=body, headers=dict(request.headers.items()), retries=False, redirect=False
        )
        if answer.status != 200:
            raise self._refused(_error_of(answer.status, answer.headers, answer.data), action)
        try:
            found: dict[str, Any] = _decode(answer.data) if answer.data else {}
        except msgspec.DecodeError as error:  # whoever answered, it was not the service
            raise self._garbled(f"the answer is no JSON: {error}") from error
        return found

    def close(self) -> None:
        self._carrier.close()


def read_binary(messages: list[dict[str, Any]]) -> None:
    """Give attributes of received messages that are bytes as bytes, as boto3 does."""
    for message in messages:
        for value in (message.get("MessageAttributes") or {}).values():
            if "BinaryValue" in value:
                value["BinaryValue"] = b64decode(value["BinaryValue"])


def _error_of(status: int, headers: Mapping[str, str], data: bytes) -> dict[str, Any]:
    """As botocore's errors have it."""
    try:
        told = _decode(data)
    except msgspec.DecodeError:
        told = {}
    told = told if isinstance(told, dict) else {}
    code = headers.get(_QUERY_ERROR, "").partition(";")[0] or str(told.get("__type", status)).rpartition("#")[2]
    text = str(told.get("message") or told.get("Message") or "")
    return {"Error": {"Code": code, "Message": text}, "ResponseMetadata": {"HTTPStatusCode": status}}


def _may_pass(error: Any) -> bool:
    status = error.response["ResponseMetadata"]["HTTPStatusCode"]
    return status == 429 or status >= 500 or error.response["Error"]["Code"] in _AGAIN
