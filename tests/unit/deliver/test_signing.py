"""Signatures of Standard Webhooks."""

import base64

import pytest

from redrive.deliver.signing import read_secret, sign, webhook_headers
from redrive.errors import ConfigError

# Published by the libraries of Standard Webhooks and by Svix: secret, id, time, body, signature.
VECTORS = [
    (
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    ),
    (
        "whsec_plJ3nmyCDGBKInavdOK15jsl",
        "msg_loFOjxBNrRLzqYUf",
        1731705121,
        b'{"event_type":"ping","data":{"success":true}}',
        "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0=",
    ),
]


@pytest.mark.parametrize("secret, id, at_s, body, signature", VECTORS)
def test_published_vectors_are_met(secret: str, id: str, at_s: int, body: bytes, signature: str) -> None:
    assert sign(id, at_s, body, read_secret(secret)) == signature


def test_a_secret_is_read_with_and_without_its_prefix() -> None:
    assert read_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw") == read_secret("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")


@pytest.mark.parametrize("secret", ["whsec_", "", "whsec_hunter2!", "whsec_abc", "whsec_ä"])
def test_a_secret_that_is_no_base64_is_refused_and_not_quoted(secret: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_secret(secret)
    assert len(secret) < 7 or secret.removeprefix("whsec_") not in str(refused.value)


def test_headers_without_a_secret_name_the_message_and_the_time_only() -> None:
    assert webhook_headers("id", 7, b"{}") == {"webhook-id": "id", "webhook-timestamp": "7"}


def test_while_keys_are_rotated_there_is_a_signature_by_each() -> None:
    keys = [b"old", b"new"]
    headers = webhook_headers("id", 7, b"{}", keys)
    assert headers["webhook-signature"].split(" ") == [sign("id", 7, b"{}", key) for key in keys]


def test_any_byte_of_the_body_may_occur_and_counts() -> None:
    body = bytes(range(256))
    signatures = {sign("id", 7, body[:i] + bytes([body[i] ^ 1]) + body[i + 1 :], b"key") for i in range(256)}
    assert len(signatures) == 256
    assert len(base64.b64decode(sign("id", 7, body, b"key").removeprefix("v1,"))) == 32
