"""The calls that are made beside boto3's client: the same answers and errors, signed as AWS checks it, tried again."""

from __future__ import annotations

import json
import random
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth, _host_from_url
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from tests.support.aws.places import REGION

from redrive.awsapi import http
from redrive.awsapi.http import host_of
from redrive.awsapi.sigv4 import Signer
from redrive.errors import ConfigError, StoreError, StoreUnavailable
from redrive.stores.sqs.client import Sqs
from redrive.testing.sqs import SqsServer

QUEUE = "https://sqs.eu-central-1.amazonaws.com/1/q"
Answer = tuple[int, dict[str, str], bytes]


class Service:
    """Answers as it is told, and keeps what it was asked. `ends`: it ends the connection after each answer, and does
    not say so."""

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        service = self
        self.asked: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[Answer] = []
        self.connections, self.ends = 0, False

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                service.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                service.asked.append(({k.lower(): v for k, v in self.headers.items()}, body))
                status, headers, data = service.answers.pop(0) if service.answers else (200, {}, b"{}")
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
                self.close_connection = service.ends

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket, scheme = context.wrap_socket(self._server.socket, server_side=True), "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    monkeypatch.setattr(http, "PAUSE_MAX_S", 0.0)


@pytest.fixture
def opened() -> Iterator[Callable[..., Sqs]]:
    all: list[Sqs] = []

    def open(url: str, **words: Any) -> Sqs:
        all.append(Sqs(REGION, url, **words))
        return all[-1]

    yield open
    for sqs in all:
        sqs.close()


Open = Callable[..., Sqs]


@pytest.mark.parametrize("token", [None, "FwoGZXIvYXdzEBY/+=="])
def test_aws_finds_the_signature_right(
    service: Service, opened: Open, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    if token is not None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    entries = [{"Id": "0", "MessageBody": 'é "quoted" \n😀'}]
    opened(service.url).call("SendMessageBatch", QueueUrl=QUEUE, Entries=entries)
    [(headers, body)] = service.asked
    assert json.loads(body) == {"QueueUrl": QUEUE, "Entries": entries}
    assert headers["x-amz-target"] == "AmazonSQS.SendMessageBatch" and headers.get("x-amz-security-token") == token
    given = headers["authorization"]
    signed = given.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert {"host", "x-amz-date", "x-amz-target", "content-type"} <= set(signed)
    # What AWS does: sign what arrived, with the secret that it knows, and compare.
    arrived = AWSRequest("POST", f"http://{headers['host']}/", headers={k: headers[k] for k in signed}, data=body)
    arrived.context["timestamp"] = headers["x-amz-date"]
    signer = SigV4Auth(Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token), "sqs", REGION)
    to_sign = signer.string_to_sign(arrived, signer.canonical_request(arrived))
    assert given.endswith(f"Signature={signer.signature(to_sign, arrived)}")
    assert f"/{REGION}/sqs/aws4_request" in given


URLS = [
    "https://sqs.eu-central-1.amazonaws.com", "https://sqs.eu-central-1.amazonaws.com:443/", "http://127.0.0.1:4566",
    "http://127.0.0.1:80/a path/é~", "http://[::1]:9000/x", "https://localhost:8443/sqs/",
]  # fmt: skip


@pytest.mark.parametrize("url", URLS)
def test_the_signature_is_that_of_botocore(url: str, seed: int) -> None:
    rng, parts = random.Random(f"{seed} {url}"), urlsplit(url)
    signer = Signer("sqs", REGION, host_of(parts), parts.path or "/")
    days = [1_794_000_000.0, 1_794_000_000.0 + 86_400, 1_794_000_001.5, 1_767_225_599.9]
    for n in range(20):
        token = None if n % 3 == 0 else "".join(rng.choices("ABC+/=", k=rng.randrange(1, 400)))
        keys = Credentials(f"AKID{n % 2}", f"secret/{n % 4}+é", token).get_frozen_credentials()
        given = {"X-Amz-Target": f"AmazonSQS.Action{n}", "Content-Type": "application/x-amz-json-1.0"}
        body, now_s = rng.randbytes(rng.randrange(300)), rng.choice(days)
        ours = dict(given)
        signer.sign(ours, body, keys, now_s)
        theirs = AWSRequest("POST", url, headers=given, data=body)
        theirs.context["timestamp"] = ours["X-Amz-Date"]
        told = SigV4Auth(keys, "sqs", REGION)
        theirs.headers["X-Amz-Date"] = ours["X-Amz-Date"]
        if token:
            theirs.headers["X-Amz-Security-Token"] = token
        to_sign = told.string_to_sign(theirs, told.canonical_request(theirs))
        told._inject_signature_to_request(theirs, told.signature(to_sign, theirs))
        assert {**ours, "Host": ""} == {**theirs.headers, "Host": ""} and ours["Host"] == _host_from_url(url)


def test_answers_are_those_that_boto3_gives(opened: Open) -> None:
    given = {"raw": {"DataType": "Binary", "BinaryValue": b"\0\xff"}, "n": {"DataType": "Number", "StringValue": "7"}}
    with SqsServer(region=REGION) as server:
        for sqs in (opened(server.url), opened(server.url, boto3=True)):
            url = sqs.call("CreateQueue", QueueName="q")["QueueUrl"]
            entries = [{"Id": str(n), "MessageBody": f"{n} é", "MessageAttributes": given} for n in range(10)]
            told = sqs.call("SendMessageBatch", QueueUrl=url, Entries=entries)
            assert len(told["Successful"]) == 10 and not told.get("Failed")
            found = sqs.call(
                "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            )["Messages"]  # fmt: skip
            assert [m["Body"] for m in found] == [entry["MessageBody"] for entry in entries]
            assert all(m["MessageAttributes"] == given for m in found)
            assert {type(value) for value in found[0]["Attributes"].values()} == {str}
            handles = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(found)]
            hidden = [{**one, "VisibilityTimeout": 30} for one in handles]
            assert len(sqs.call("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=hidden)["Successful"]) == 10
            told = sqs.call(
                "DeleteMessageBatch", QueueUrl=url, Entries=[*handles[1:], {"Id": "x", "ReceiptHandle": "?"}]
            )
            assert len(told["Successful"]) == 9 and [one["Id"] for one in told["Failed"]] == ["x"]
            assert sqs.call("DeleteMessageBatch", QueueUrl=url, Entries=handles[:1])["Successful"] == [{"Id": "0"}]
            assert "Messages" not in sqs.call("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=0)
            assert sqs.requests["ReceiveMessage"] == 2


def _error(status: int, code: str, query: str = "") -> Answer:
    headers = {"x-amzn-query-error": query} if query else {}
    return status, headers, json.dumps({"__type": f"com.amazonaws.sqs#{code}", "message": "no"}).encode()


ERRORS = [
    _error(400, "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue;Sender"),
    _error(403, "AccessDeniedException"),
    _error(403, "ExpiredTokenException"),
    _error(400, "InvalidParameterValue", "InvalidParameterValue;Sender"),
    _error(400, "BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong;Sender"),
    _error(400, "RequestThrottled", "RequestThrottled;Sender"),
    _error(500, "InternalError"),
    (503, {}, b"<html>not now</html>"),
    (502, {}, b""),
]


@pytest.mark.parametrize("answer", ERRORS, ids=lambda a: f"{a[0]} {a[2][:40]!r}")
def test_errors_are_those_that_boto3_raises(service: Service, opened: Open, answer: Answer) -> None:
    raised = []
    for quick in (True, False):
        sqs = opened(service.url, boto3=not quick)
        service.answers = [answer] * 3
        with pytest.raises((StoreError, ConfigError)) as caught:
            sqs.call("SendMessageBatch", QueueUrl=QUEUE, Entries=[])
        raised.append((type(caught.value), 3 - len(service.answers), sqs.requests["SendMessageBatch"]))
    assert raised[0] == raised[1]


def test_what_passes_is_tried_again_and_counted(service: Service, opened: Open) -> None:
    sqs = opened(service.url)
    service.answers = [_error(500, "InternalError"), _error(400, "RequestThrottled", "RequestThrottled;Sender")]
    assert sqs.call("DeleteMessageBatch", QueueUrl=QUEUE, Entries=[]) == {}
    assert sqs.requests["DeleteMessageBatch"] == len(service.asked) == 3
    assert service.connections == 1  # it is kept


def test_an_answer_that_is_no_json_is_tried_again_and_then_unavailable(service: Service, opened: Open) -> None:
    service.answers = [(200, {}, b"<html>log in first</html>")] * 3
    with pytest.raises(StoreUnavailable, match="the answer is no JSON"):
        opened(service.url).call("DeleteMessageBatch", QueueUrl=QUEUE, Entries=[])
    assert len(service.asked) == 3


def test_a_connection_that_was_ended_meanwhile_is_made_again(service: Service, opened: Open) -> None:
    sqs, service.ends = opened(service.url), True
    for _ in range(3):
        assert sqs.call("DeleteMessageBatch", QueueUrl=QUEUE, Entries=[]) == {}
    assert service.connections >= 3 and sqs.requests["DeleteMessageBatch"] <= 5


def test_who_cannot_be_reached_is_unavailable(opened: Open) -> None:
    sqs = opened("http://127.0.0.1:1")
    with pytest.raises(StoreUnavailable, match=r"SQS ReceiveMessage q: .*refused"):
        sqs.call("ReceiveMessage", QueueUrl=QUEUE)
    assert sqs.requests["ReceiveMessage"] == 3


def test_tls_is_checked_against_the_authority_that_is_named(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["-nodes", "-days", "1", "-newkey", "rsa:2048", "-keyout", key, "-out", cert]
    subprocess.run(["openssl", "req", "-x509", *made, *subject], check=True, capture_output=True)
    service = Service((cert, key))
    try:
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate verify failed"):
            opened(service.url).call("DeleteMessageBatch", QueueUrl=QUEUE, Entries=[])
        for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
            with monkeypatch.context() as named:
                named.setenv(name, str(cert))
                sqs = opened(service.url)
                for _ in range(3):
                    assert sqs.call("DeleteMessageBatch", QueueUrl=QUEUE, Entries=[]) == {}
        assert len(service.asked) == 6 and service.connections == 2  # they are kept
    finally:
        service.close()


def test_behind_a_proxy_boto3_makes_every_call(service: Service, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", service.url)
    monkeypatch.setenv("NO_PROXY", "")
    opened("http://sqs.example.com").call("DeleteMessageBatch", QueueUrl=QUEUE, Entries=[])
    [(headers, _)] = service.asked
    assert headers["host"] == "sqs.example.com" and "amz-sdk-invocation-id" in headers


def test_without_credentials_it_says_where_boto3_looks(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(ConfigError, match="there are no credentials"):
        opened("http://sqs.example.invalid").call("DeleteMessageBatch", QueueUrl=QUEUE, Entries=[])
