"""Make the few calls needed for every ten messages without the overhead of boto3.

boto3 determines endpoint and credentials; `sigv4` signs, http.client sends. Left out are botocore's events, endpoint
rules, serializers and parsers, and urllib3: most of the processor time of a call (docs/benchmarks.md). Only for
services that speak AWS's JSON protocol: https://smithy.io/2.0/aws/protocols/aws-json-1_0-protocol.html
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from .._version import __version__
from ..chance import uniform
from .client import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, TRIES
from .sigv4 import Signer

# As botocore's standard mode: after these codes, try again after a random part of 1 s, 2 s, 4 s and so on.
PAUSE_MAX_S = 20.0
_AGAIN = ("RequestTimeout", "RequestTimeoutException", "PriorRequestNotComplete", "SlowDown", "RequestLimitExceeded",
          "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException",
          "TooManyRequestsException", "BandwidthLimitExceeded", "LimitExceededException")  # fmt: skip
_CONTENT = "application/x-amz-json-"
_QUERY_ERROR = "x-amzn-query-error"  # the header with the error code of the service's older query protocol
_encode = msgspec.json.Encoder().encode  # encodes bytes as base64, as the protocol requires
_decode = msgspec.json.Decoder().decode


class QuickCalls:
    """Calls one service by the names of its actions. Thread-safe: each call uses its own connection. `counted` is
    called with the action before each attempt."""

    def __init__(self, client: Any, credentials: Any, *, counted: Callable[[str], None], ca: str | None) -> None:
        from botocore.exceptions import ClientError, NoCredentialsError
        from botocore.httpsession import get_cert_path

        model = client.meta.service_model
        self._target, self._content = model.metadata["targetPrefix"], f"{_CONTENT}{model.metadata['jsonVersion']}"
        self._credentials, self._counted = credentials, counted
        self._refused, self._no_credentials = ClientError, NoCredentialsError
        url = urlsplit(client.meta.endpoint_url)
        self._host, self._port, self._path = url.hostname or "", url.port, url.path or "/"
        self._tls = ssl.create_default_context(cafile=ca or get_cert_path(True)) if url.scheme == "https" else None
        self._signer = Signer(model.signing_name, client.meta.region_name, host_of(url), self._path)
        self._idle: deque[HTTPConnection] = deque()
        self._closed = False

    def call(self, action: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Call the action; returns its response. Raises ClientError, OSError or HTTPException after TRIES failures."""
        body = _encode(parameters)
        for turn in range(TRIES - 1):
            try:
                return self._once(action, body)
            except (OSError, HTTPException):
                pass
            except self._refused as error:
                if not _may_pass(error):
                    raise
            time.sleep(min(uniform(0, 2**turn), PAUSE_MAX_S))
        return self._once(action, body)

    def _once(self, action: str, body: bytes) -> dict[str, Any]:
        self._counted(action)
        if self._credentials is None:
            raise self._no_credentials()
        headers = {"X-Amz-Target": f"{self._target}.{action}", "Content-Type": self._content}
        self._signer.sign(headers, body, self._credentials.get_frozen_credentials(), time.time())
        headers["User-Agent"] = f"redrive/{__version__}"
        status, head, data = self._carried(body, headers)
        if status != 200:
            raise self._refused(_error_of(status, head, data), action)
        try:
            answer: dict[str, Any] = _decode(data) if data else {}
        except msgspec.DecodeError as error:  # the response does not come from the service itself
            raise HTTPException(f"the answer is no JSON: {error}") from error
        if b'"BinaryValue"' in data:
            _read_binary(answer.get("Messages") or [])
        return answer

    def _carried(self, body: bytes, headers: dict[str, str]) -> tuple[int, HTTPMessage, bytes]:
        """Send the request; returns status, headers and body of the response. Closes the connection if it fails."""
        connection = self._connected()
        try:
            connection.request("POST", self._path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:  # None if the response made http.client close the connection
            self._idle.append(connection)
        if self._closed:
            self.close()
        return answer.status, answer.headers, data

    def _connected(self) -> HTTPConnection:
        """Return the idle connection that was used last and is still open, or a new one. Closes those found dead."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._new_connection()
            if _is_open(connection.sock):
                return connection
            connection.close()

    def _new_connection(self) -> HTTPConnection:
        if self._tls is None:
            connection = HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
        else:
            connection = HTTPSConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S, context=self._tls)
        connection.connect()
        connection.sock.settimeout(READ_TIMEOUT_S)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connection

    def close(self) -> None:
        """Close idle connections now; a connection in use is closed when its call ends."""
        self._closed = True
        with suppress(IndexError):  # no idle connection is left
            while True:
                self._idle.pop().close()


def host_of(url: SplitResult) -> str:
    """Return the value of the Host header for a URL: the host, with the port unless it is the scheme's default."""
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname or ""
    return host if url.port in (None, {"http": 80, "https": 443}[url.scheme]) else f"{host}:{url.port}"


def _is_open(sock: socket.socket) -> bool:
    """True if an idle connection is still open. Readable data means that the server has closed it."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return not poll.poll(0)


def _read_binary(messages: list[dict[str, Any]]) -> None:
    """Decode the binary attributes of received messages from base64 to bytes in place, as boto3 does."""
    for message in messages:
        for value in (message.get("MessageAttributes") or {}).values():
            if "BinaryValue" in value:
                value["BinaryValue"] = b64decode(value["BinaryValue"])


def _error_of(status: int, headers: HTTPMessage, data: bytes) -> dict[str, Any]:
    """Return an HTTP error response as the dict that botocore's ClientError takes."""
    try:
        answer = _decode(data)
    except msgspec.DecodeError:
        answer = {}
    answer = answer if isinstance(answer, dict) else {}
    code = headers.get(_QUERY_ERROR, "").partition(";")[0] or str(answer.get("__type", status)).rpartition("#")[2]
    text = str(answer.get("message") or answer.get("Message") or "")
    return {"Error": {"Code": code, "Message": text}, "ResponseMetadata": {"HTTPStatusCode": status}}


def _may_pass(error: Any) -> bool:
    status = error.response["ResponseMetadata"]["HTTPStatusCode"]
    return status == 429 or status >= 500 or error.response["Error"]["Code"] in _AGAIN
