"""Seal bytes with a key, bound to the field and message they belong to, and open them.

An envelope is `D7 72 64 31`, one byte for the algorithm, the length of the key's id (2 bytes) and the id, 4 bytes that
check the key, a salt (16), a nonce (12), then the ciphertext with its tag (16). Authenticated are everything before the
nonce, the purpose of the bytes (body, result, …), their content type, and the id and task of the message.

Random 96-bit nonces allow 2**32 encryptions with one key (NIST SP 800-38D, 8.3). So each process encrypts with a key
that it derives by HKDF-SHA256 (RFC 5869) with a random salt, and derives another after 2**31 encryptions or a fork.
"""

from __future__ import annotations

import os
import time
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from ..errors import ConfigError, KeyMissing, StoreUnavailable, Tampered
from ..message import ENVELOPE as MAGIC
from .keys import Encrypt, Key

AES_256_GCM, CHACHA20_POLY1305 = 1, 2
ALGORITHMS = {"aes-256-gcm": AES_256_GCM, "chacha20-poly1305": CHACHA20_POLY1305}
OVERHEAD = 1280  # most bytes that an envelope adds to the data, with the longest id of a key
WRITE_AGAIN_S = 60.0  # seconds after which a key function is asked again for the writing key
MISSING_FOR_S = 10.0  # seconds for which a key that could not be had is not asked for again
SEALS_MAX = 2**31  # most encryptions with one derived key
CIPHERS_MAX = 4096  # most ciphers cached for reading
_CHECK, _SALT, _NONCE, _TAG = 4, 16, 12, 16
_names = msgspec.json.Encoder().encode


class Envelope(NamedTuple):
    """The parts of an envelope, in their order."""

    algorithm: int
    key: str
    check: bytes
    salt: bytes
    header: bytes
    nonce: bytes
    ciphertext: bytes


class _Writer(NamedTuple):
    pid: int
    until_s: float
    header: bytes
    encrypt: Any
    digest_key: bytes
    check: bytes


class Box:
    """Seals bytes with the writing key, and opens envelopes with the key that they name. Thread-safe.

    `keys` is called with None for the writing key, and with an id for that key. If it raises when a key is needed for
    reading, the key counts as unavailable for now.
    """

    keys: Encrypt

    def __init__(self, keys: Encrypt, algorithm: str = "aes-256-gcm") -> None:
        if not callable(keys):
            raise ConfigError(f"encrypt={keys!r}: expected Keys, such as Keys.from_env(), or a function of a key's id")
        if algorithm not in ALGORITHMS:
            raise ConfigError(f"algorithm={algorithm!r}: expected one of {', '.join(ALGORITHMS)}")
        self._algorithm, self.keys = ALGORITHMS[algorithm], keys
        _cipher(self._algorithm, bytes(32))  # raise now if the library is not installed
        self._writing: _Writer | None = None
        self._sealed = 0
        self._ciphers: dict[tuple[str, int, bytes, bytes], Any] = {}
        self._missing: dict[str, tuple[float, str]] = {}

    def digest(self, data: bytes, length: int) -> bytes:
        """Return a keyed hash, which does not reveal the data without the key, then four bytes that identify the key.
        Raises StoreUnavailable if no writing key is available."""
        writing = self._writer()
        return blake2b(data, digest_size=length, key=writing.digest_key).digest() + writing.check

    def seal(self, data: bytes, purpose: str, content: str, id: str, task: str) -> bytes:
        """Return the envelope of these bytes. Raises StoreUnavailable if no writing key is available."""
        self._sealed += 1
        writing = self._writer()
        header, nonce = writing.header, os.urandom(_NONCE)
        return header + nonce + writing.encrypt(nonce, data, header + _names((purpose, content, id, task)))  # type: ignore[no-any-return]

    def open(self, sealed: bytes, purpose: str, content: str, id: str, task: str) -> bytes:
        """Return the bytes in an envelope. Raises KeyMissing; Tampered if changed or sealed for other arguments."""
        from cryptography.exceptions import InvalidTag

        envelope = parse_envelope(sealed)
        cipher = self._reader(envelope)
        try:
            opened: bytes = cipher.decrypt(
                envelope.nonce, envelope.ciphertext, envelope.header + _names((purpose, content, id, task))
            )
        except InvalidTag:
            raise Tampered(
                f"its {purpose} does not open with key {envelope.key!r}: it was changed in the store, or is another "
                "message's"
            ) from None
        return opened

    def _writer(self) -> _Writer:
        writing = self._writing
        if writing is None or writing.pid != os.getpid() or self._sealed >= SEALS_MAX:
            return self._renew(writing)
        return writing if time.monotonic() < writing.until_s else self._renew(writing)

    def _renew(self, old: _Writer | None) -> _Writer:
        try:
            key = self.keys(None)
        except Exception as error:
            raise StoreUnavailable(f"nothing can be written, as the key function failed: {error!r}") from error
        if not isinstance(key, Key):
            raise StoreUnavailable(
                f"nothing can be written: the key function gave {key!r} to write with, expected a Key"
            )
        id = key.id.encode()
        begin = MAGIC + bytes((self._algorithm,)) + len(id).to_bytes(2, "big") + id + _check(key)
        until_s = time.monotonic() + WRITE_AGAIN_S
        if old is not None and old.header.startswith(begin) and old.pid == os.getpid() and self._sealed < SEALS_MAX:
            writing = old._replace(until_s=until_s)
        else:
            salt, self._sealed = os.urandom(_SALT), 0
            cipher = _cipher(self._algorithm, _derive(key, salt, b"seal" + begin))
            digest_key = _derive(key, b"", b"digest" + id)
            writing = _Writer(os.getpid(), until_s, begin + salt, cipher.encrypt, digest_key, _check(key))
        self._writing = writing
        return writing

    def _reader(self, envelope: Envelope) -> Any:
        place = envelope.key, envelope.algorithm, envelope.check, envelope.salt
        cipher = self._ciphers.get(place)
        if cipher is not None:
            return cipher
        key = self._key(envelope.key)
        if _check(key) != envelope.check:
            raise KeyMissing(f"key {envelope.key!r} is another one here than the key of that id which encrypted it")
        if len(self._ciphers) >= CIPHERS_MAX:
            self._ciphers.clear()
        cipher = _cipher(envelope.algorithm, _derive(key, envelope.salt, b"seal" + envelope.header[:-_SALT]))
        self._ciphers[place] = cipher
        return cipher

    def _key(self, id: str) -> Key:
        until_s, why = self._missing.get(id, (0.0, ""))
        if time.monotonic() >= until_s:
            try:
                key, why = self.keys(id), f"it is encrypted with key {id!r}, which is not here"
            except Exception as error:
                key, why = None, f"key {id!r}, with which it is encrypted, cannot be had just now: {error!r}"
            if isinstance(key, Key):
                self._missing.pop(id, None)
                return key
            if len(self._missing) >= CIPHERS_MAX:
                self._missing.clear()
            self._missing[id] = time.monotonic() + MISSING_FOR_S, why
        raise KeyMissing(why)

    def writes(self) -> str | None:
        """Return the id of the current writing key; None if no writing key is available."""
        try:
            key = self.keys(None)
        except Exception:
            return None
        return None if key is None else key.id

    def has(self, id: str) -> bool:
        """True if the key with this id is available now."""
        try:
            return self.keys(id) is not None
        except Exception:
            return False


def parse_envelope(sealed: bytes) -> Envelope:
    """Parse an envelope. Raises Tampered for any other bytes."""
    at = 7 + int.from_bytes(sealed[5:7], "big")
    end = at + _CHECK + _SALT
    algorithm = sealed[4] if len(sealed) > 4 else 0
    if not sealed.startswith(MAGIC) or len(sealed) < end + _NONCE + _TAG or algorithm not in ALGORITHMS.values():
        raise Tampered("it is not what encryption writes: it was cut or changed in the store")
    id = sealed[7:at].decode("ascii", errors="replace")
    nonce = sealed[end : end + _NONCE]
    return Envelope(
        algorithm, id, sealed[at : at + _CHECK], sealed[at + _CHECK : end], sealed[:end], nonce, sealed[end + _NONCE :]
    )


def key_of(sealed: bytes) -> str | None:
    """Return the id of the key that encrypted these bytes (the first ones suffice); None if they are not encrypted."""
    if not sealed.startswith(MAGIC) or len(sealed) < 7:
        return None
    return sealed[7 : 7 + int.from_bytes(sealed[5:7], "big")].decode("ascii", errors="replace")


def _cipher(algorithm: int, key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers import aead
    except ImportError as error:
        raise ConfigError("encrypt= needs the package cryptography: pip install 'redrive[crypto]'") from error
    return aead.AESGCM(key) if algorithm == AES_256_GCM else aead.ChaCha20Poly1305(key)


def _derive(key: Key, salt: bytes, info: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=32, salt=salt, info=b"redrive " + info).derive(key.secret)


def _check(key: Key) -> bytes:
    """Return the value that identifies a key in its envelopes: if it fits, bytes that do not open were changed."""
    return _derive(key, b"", b"check" + key.id.encode())[:_CHECK]
