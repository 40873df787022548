"""Encrypt what messages carry before a store gets it: `App(url, encrypt=Keys.from_env())`.

`keys` says which keys there are, `box` seals and opens bytes, `fields` knows what of a message is sealed, `store` and
`blobs` stand before a store and its blobs and do it, `status` finds which keys are still needed.
"""

from __future__ import annotations

from .blobs import SealedBlobs
from .box import Box, key_of
from .fields import key_of_text, keys_in, shown_text
from .keys import Encrypt, Key, KeyFunction, Keys
from .status import Use, used
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
    "keys_in",
    "sealed_by",
    "shown_text",
    "used",
    "why_closed",
]
