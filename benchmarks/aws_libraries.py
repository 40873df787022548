"""Other signers and HTTP clients for the four SQS calls that a worker makes all the time, in place of our own
signer and http.client.

`VARIANTS` names them; each replaces `QuickCalls` in a worker process. What a library lets us keep between calls is
kept, and its own retries are off. They are for plain HTTP on loopback only: they handle no broken connections and no
certificates of the user's.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from email.message import Message
from functools import partial
from hashlib import sha256
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

from redrive.awsapi.client import CONNECT_TIMEOUT_S, READ_TIMEOUT_S
from redrive.awsapi.http import QuickCalls, host_of
from redrive.stores.sqs import client as sqs_client

from . import sqs_roles

CONNECTIONS = 16  # a pool's most, more than a worker's threads
Headers = dict[str, str]


class Swapped(QuickCalls):
    """Our calls with another signer, another HTTP client, or both."""

    def __init__(self, signer: Any, http: Any, client: Any, credentials: Any, **options: Any) -> None:
        super().__init__(client, credentials, **options)
        self._url = client.meta.endpoint_url
        if signer is not None:
            names = client.meta.service_model.signing_name, client.meta.region_name
            self._signer = signer(*names, self._url)
        self._http = None if http is None else http(self._url)

    def _carried(self, body: bytes, headers: Headers) -> tuple[int, Any, bytes]:
        return super()._carried(body, headers) if self._http is None else self._http(body, headers)


class BotocoreSigner:
    """botocore's `SigV4Auth`, or its `CrtSigV4Auth`, over a bare `AWSRequest`."""

    def __init__(self, service: str, region: str, url: str, *, crt: bool = False) -> None:
        if crt:
            from botocore.crt.auth import CrtSigV4Auth as Auth
        else:
            from botocore.auth import SigV4Auth as Auth
        from botocore.awsrequest import AWSRequest

        self._make, self._request, self._url = partial(Auth, service_name=service, region_name=region), AWSRequest, url

    def sign(self, headers: Headers, body: bytes, keys: Any, now_s: float) -> None:
        request = self._request("POST", self._url, headers=headers, data=body)
        self._make(keys).add_auth(request)
        headers.update(request.headers.items())


class CrtSigner:
    """`awscrt.auth`, the signer of the AWS Common Runtime, with the credentials kept."""

    def __init__(self, service: str, region: str, url: str) -> None:
        from awscrt import auth, http

        self._auth, self._http = auth, http
        self._service, self._region, self._host = service, region, host_of(urlsplit(url))
        self._last: tuple[Any, Any] = None, None  # the keys signed with last, and their provider

    def sign(self, headers: Headers, body: bytes, keys: Any, now_s: float) -> None:
        headers["Host"] = self._host
        request = self._http.HttpRequest("POST", "/", self._http.HttpHeaders(list(headers.items())))
        config = self._auth.AwsSigningConfig(
            credentials_provider=self._provider(keys),
            service=self._service,
            region=self._region,
            date=datetime.fromtimestamp(now_s, UTC),
            signed_body_value=sha256(body).hexdigest(),
        )
        self._auth.aws_sign_request(request, config).result()
        headers.update(request.headers)

    def _provider(self, keys: Any) -> Any:
        last, provider = self._last
        if last != keys:
            provider = self._auth.AwsCredentialsProvider.new_static(keys.access_key, keys.secret_key, keys.token)
            self._last = keys, provider
        return provider


def urllib3_http(url: str) -> Callable[[bytes, Headers], tuple[int, Any, bytes]]:
    """urllib3's pool, without what botocore puts around it."""
    import urllib3

    timeout = urllib3.Timeout(CONNECT_TIMEOUT_S, READ_TIMEOUT_S)
    pool = urllib3.connectionpool.connection_from_url(url, maxsize=CONNECTIONS, timeout=timeout, retries=False)
    path = urlsplit(url).path or "/"

    def carried(body: bytes, headers: Headers) -> tuple[int, Any, bytes]:
        answer = pool.urlopen("POST", path, body, headers, redirect=False, decode_content=False)
        return answer.status, answer.headers, answer.data

    return carried


def botocore_http(url: str) -> Callable[[bytes, Headers], tuple[int, Any, bytes]]:
    """botocore's `URLLib3Session`, handed a request that is prepared."""
    from botocore.awsrequest import AWSPreparedRequest, HeadersDict
    from botocore.httpsession import URLLib3Session

    session = URLLib3Session(
        timeout=(CONNECT_TIMEOUT_S, READ_TIMEOUT_S),
        max_pool_connections=CONNECTIONS,
        socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
    )

    def carried(body: bytes, headers: Headers) -> tuple[int, Any, bytes]:
        headers["Content-Length"] = str(len(body))
        answer = session.send(AWSPreparedRequest("POST", url, HeadersDict(headers), body, stream_output=False))
        return answer.status_code, answer.headers, answer.content

    return carried


class CrtHttp:
    """`awscrt.http`: a connection for each thread, all on one native event loop."""

    def __init__(self, url: str) -> None:
        from awscrt import http, io

        parts = urlsplit(url)
        self._http, self._host, self._path, self._kept = http, host_of(parts), parts.path or "/", threading.local()
        self._port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        self._bootstrap = io.ClientBootstrap.get_or_create_static_default()
        self._tls = None
        if parts.scheme == "https":
            self._tls = io.ClientTlsContext(io.TlsContextOptions()).new_connection_options()
            self._tls.set_server_name(parts.hostname)
        self._name = parts.hostname

    def __call__(self, body: bytes, headers: Headers) -> tuple[int, Any, bytes]:
        pairs = [*headers.items(), ("Content-Length", str(len(body)))]
        request = self._http.HttpRequest("POST", self._path, self._http.HttpHeaders(pairs), BytesIO(body))
        connection = getattr(self._kept, "connection", None)
        if connection is None or not connection.is_open():
            opening = self._http.HttpClientConnection.new(
                self._name, self._port, bootstrap=self._bootstrap, tls_connection_options=self._tls
            )
            connection = self._kept.connection = opening.result(CONNECT_TIMEOUT_S)
        told, data = Message(), bytearray()

        def heard(headers: list[tuple[str, str]], **_: Any) -> None:
            for name, value in headers:
                told[name] = value

        stream = connection.request(request, heard, lambda chunk, **_: data.extend(chunk))
        stream.activate()
        return stream.completion_future.result(READ_TIMEOUT_S), told, bytes(data)


VARIANTS: dict[str, Callable[..., QuickCalls] | None] = {
    "ours": QuickCalls,
    "awscrt.auth": partial(Swapped, CrtSigner, None),
    "SigV4Auth": partial(Swapped, BotocoreSigner, None),
    "CrtSigV4Auth": partial(Swapped, partial(BotocoreSigner, crt=True), None),
    "urllib3": partial(Swapped, None, urllib3_http),
    "URLLib3Session": partial(Swapped, None, botocore_http),
    "awscrt.http": partial(Swapped, None, CrtHttp),
    "SigV4Auth, URLLib3Session": partial(Swapped, BotocoreSigner, botocore_http),
    "boto3's client": None,
}


def library(url: str, concurrency: str, records: str, variant: str) -> None:
    """A worker of ours whose quick calls are another library's, until SIGTERM."""
    calls = VARIANTS[variant]
    if calls is not None:
        sqs_client.QuickCalls = calls  # type: ignore[assignment,attr-defined]
    sqs_roles.ours(url if calls is not None else f"{url}&boto3=true", concurrency, records)
