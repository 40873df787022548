"""Data keys of AWS KMS: each is stored, encrypted by KMS, with the data it encrypts, and only KMS can decrypt it."""

from __future__ import annotations

import base64
import threading
import time
from typing import Any

from .keys import Key

PREFIX = "kms:"
NEW_EVERY_S = 3600.0
KEPT = 1000  # most data keys cached


class KmsKeys:
    """`App(url, encrypt=KmsKeys("alias/redrive", client=boto3.client("kms")))`.

    `client` has `generate_data_key` and `decrypt` as boto3's has. A process encrypts with one data key for
    `new_every_s`, and asks KMS once per data key that it reads, not per message. A worker needs `kms:Decrypt` on the
    key, a producer `kms:GenerateDataKey`, a worker whose handlers fail or return results both.
    """

    def __init__(self, key_id: str, *, client: Any, new_every_s: float = NEW_EVERY_S) -> None:
        self._key_id, self._client, self._new_every_s = key_id, client, new_every_s
        self._lock = threading.Lock()
        self._writes: tuple[float, Key] | None = None
        self._known: dict[str, Key] = {}

    def __call__(self, id: str | None) -> Key | None:
        return self._write() if id is None else self._read(id)

    def _write(self) -> Key:
        with self._lock:
            if self._writes is None or time.monotonic() >= self._writes[0]:
                made = self._client.generate_data_key(KeyId=self._key_id, KeySpec="AES_256")
                id = PREFIX + base64.urlsafe_b64encode(made["CiphertextBlob"]).decode()
                key = self._known[id] = Key(id, made["Plaintext"])
                self._writes = time.monotonic() + self._new_every_s, key
            return self._writes[1]

    def _read(self, id: str) -> Key | None:
        if not id.startswith(PREFIX):
            return None
        key = self._known.get(id)
        if key is None:
            blob = base64.urlsafe_b64decode(id.removeprefix(PREFIX))
            key = Key(id, self._client.decrypt(KeyId=self._key_id, CiphertextBlob=blob)["Plaintext"])
            if len(self._known) >= KEPT:
                self._known.clear()
            self._known[id] = key
        return key
