"""The encryption keys of payloads: one for writing, any number for reading."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigError

VARIABLE = "REDRIVE_KEYS"
SECRET_BYTES = 32
ID_MAX = 1024  # long enough for an id that is a data key, encrypted by a key service
_ID = re.compile(rf"[!-~]{{1,{ID_MAX}}}")  # printable ASCII without spaces
_EXPECTED = f"expected {VARIABLE}=ID:KEY[,ID:KEY…], each KEY 32 bytes in base64; the first one writes"


class Key:
    """A key of 256 bits, and the id by which envelopes name the key. The secret is never printed.

    Raises ConfigError unless the id is 1 to 1,024 printable ASCII characters and the secret exactly 32 bytes.
    """

    id: str
    secret: bytes

    __slots__ = ("id", "secret")

    def __init__(self, id: str, secret: bytes) -> None:
        given: Any = secret
        if not _ID.fullmatch(id):
            raise ConfigError(f"key id {id!a}: expected 1 to {ID_MAX} printable ASCII characters without spaces")
        if not isinstance(given, bytes) or len(given) != SECRET_BYTES:
            has = f"{len(given)} bytes" if isinstance(given, bytes) else f"a {type(given).__name__}"
            raise ConfigError(
                f"key {id!r} is {has}; expected exactly {SECRET_BYTES} random bytes, as of os.urandom(32)"
            )
        self.id, self.secret = id, secret

    def __repr__(self) -> str:
        return f"Key({self.id!r}, …)"


KeyFunction = Callable[[str | None], "Key | None"]


class Keys:
    """The keys of a process. All of them decrypt; `write` is the id of the one that encrypts (default: the first).

    >>> keys = Keys({"2026-11": bytes(32), "2026-05": bytes(range(32))})
    >>> keys
    Keys('2026-11' writes, '2026-05')
    """

    def __init__(self, secrets: Mapping[str, bytes], *, write: str | None = None) -> None:
        self._keys = {id: Key(id, secret) for id, secret in secrets.items()}
        if not self._keys:
            raise ConfigError("no key is given; expected at least one")
        self.write: str = next(iter(self._keys)) if write is None else write
        if self.write not in self._keys:
            raise ConfigError(f"write={self.write!r}: no such key; known: {', '.join(self._keys)}")

    @classmethod
    def from_env(cls, variable: str = VARIABLE) -> Keys:
        """Return the keys in a variable: `ID:KEY,ID:KEY`; the first one encrypts. `redrive keys new` makes one.

        Raises ConfigError if the variable is unset or invalid, without showing any part of a key.
        """
        text = os.environ.get(variable, "")
        if not text.strip():
            raise ConfigError(f"{variable} is not set; {_EXPECTED}")
        secrets: dict[str, bytes] = {}
        for number, part in enumerate(filter(None, map(str.strip, re.split(r"[,\s]", text))), 1):
            id, _, written = part.rpartition(":")
            try:
                secret = (
                    base64.b64decode(written + "=" * (-len(written) % 4), altchars=b"-_", validate=True) if id else b""
                )
            except (binascii.Error, ValueError):
                secret = b""
            if len(secret) != SECRET_BYTES:
                raise ConfigError(f"{variable}: entry {number} cannot be read; {_EXPECTED}")
            if id in secrets:
                raise ConfigError(f"{variable}: key id {id!r} is there twice; give each key an id of its own")
            secrets[id] = secret
        return cls(secrets)

    def __call__(self, id: str | None) -> Key | None:
        """Return the key with that id, or None for an unknown id. If `id` is None, return the key that encrypts."""
        return self._keys.get(self.write if id is None else id)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def __repr__(self) -> str:
        return f"Keys({', '.join(f'{id!r} writes' if id == self.write else repr(id) for id in self._keys)})"


Encrypt = Keys | KeyFunction


def new_secret() -> str:
    """Return a new random key, in the form that `from_env` reads."""
    return base64.urlsafe_b64encode(os.urandom(SECRET_BYTES)).decode().rstrip("=")
