"""Encrypt the payloads of messages before a store gets them: `App(url, encrypt=Keys.from_env())`.

Begin with `store`, which wraps a store and encrypts what it gets; `blobs` does the same for blobs. `keys` holds the
keys, `box` encrypts and decrypts bytes, `fields` lists the encrypted fields, and `status` finds the keys still needed.
"""

from __future__ import annotations

from .blobs import SealedBlobs
from .box import Box, key_of
from .fields import key_of_text, keys_in, shown_text
from .keys import Encrypt, Key, KeyFunction, Keys
from .status import Use, key_uses
from .store import Sealed, sealed_by, why_closed

__all__ = [
    "Box",
    "Encrypt",
    "Key",
    "KeyFunction",
    "Keys",
    "Sealed",
    "SealedBlobs",
    "Use",
    "key_of",
    "key_of_text",
    "key_uses",
    "keys_in",
    "sealed_by",
    "shown_text",
    "why_closed",
]
