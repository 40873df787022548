"""Sign requests by Standard Webhooks (https://www.standardwebhooks.com), which proves sender, time and content."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from ..errors import ConfigError

PREFIX = "whsec_"


def read_secret(text: str) -> bytes:
    """Return the key of a secret: base64, with or without `whsec_` before it. Raises ConfigError without quoting it."""
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise ConfigError(
            f"the signing secret of {len(text)} characters is not base64; expected {PREFIX} and the key in base64"
        )
    return key


def sign(id: str, timestamp_s: int, body: bytes, key: bytes) -> str:
    """Return `v1,` and the base64 of HMAC-SHA256(key, "{id}.{timestamp_s}.{body}")."""
    content = f"{id}.{timestamp_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()


def webhook_headers(id: str, timestamp_s: int, body: bytes, keys: Sequence[bytes] = ()) -> dict[str, str]:
    """Return `webhook-id` and `webhook-timestamp`; with keys also `webhook-signature`, one signature for each."""
    headers = {"webhook-id": id, "webhook-timestamp": str(timestamp_s)}
    if keys:
        headers["webhook-signature"] = " ".join(sign(id, timestamp_s, body, key) for key in keys)
    return headers
