"""Keys and envelopes: published vectors, what an envelope is bound to, and what is said of a key that is not there."""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.crypto import Box, Key, Keys
from redrive.crypto import box as boxes
from redrive.errors import ConfigError, KeyMissing, StoreUnavailable, Tampered

SECRET = bytes(range(32))
KEYS = Keys({"2026-11": SECRET, "2026-05": bytes(32)})
PLACE = "body", "json", "0192-id", "push"


def unhex(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


# -- published vectors


def test_aes_256_gcm_is_that_of_the_gcm_specification() -> None:
    """Test case 16 of McGrew and Viega, "The Galois/Counter Mode of Operation", as in NIST's."""
    key = unhex("feffe9928665731c6d6a8f9467308308") * 2
    nonce, extra = unhex("cafebabefacedbaddecaf888"), unhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    plain = unhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    sealed = unhex(
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f66276fc6ece0f4e1768cddf8853bb2d551b"
    )
    cipher = boxes._cipher(boxes.AES_256_GCM, key)
    assert cipher.encrypt(nonce, plain, extra) == sealed
    assert cipher.decrypt(nonce, sealed, extra) == plain


def test_chacha20_poly1305_is_that_of_rfc_8439() -> None:
    """Section 2.8.2."""
    key = bytes(range(0x80, 0xA0))
    nonce, extra = unhex("070000004041424344454647"), unhex("50515253c0c1c2c3c4c5c6c7")
    plain = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
        b"sunscreen would be it."
    )
    cipher = boxes._cipher(boxes.CHACHA20_POLY1305, key)
    sealed = cipher.encrypt(nonce, plain, extra)
    assert sealed[:16] == unhex("d31a8d34648e60db7b86afbc53ef7ec2")
    assert sealed[-16:] == unhex("1ae10b594f09e26a7e902ecbd0600691")


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int = 32) -> bytes:
    """RFC 5869, written once more."""
    pseudo = hmac.digest(salt or bytes(32), secret, hashlib.sha256)
    done, block = b"", b""
    for number in range(1, length // 32 + 2):
        block = hmac.digest(pseudo, block + info + bytes((number,)), hashlib.sha256)
        done += block
    return done[:length]


def test_hkdf_is_that_of_rfc_5869() -> None:
    """Test case 1; and what derives our keys is the same."""
    given, salt, info = b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA))
    expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    assert hkdf(given, salt, info, 42) == unhex(expected)
    key = Key("k", SECRET)
    assert boxes._derive(key, salt, b"seal1") == hkdf(SECRET, salt, b"redrive seal1")
    assert boxes._check(key) == hkdf(SECRET, b"", b"redrive checkk")[:4]


def test_an_envelope_of_an_earlier_release_is_still_read() -> None:
    """The format is a promise to what is stored. Made once, by this very code."""
    sealed = unhex(GOLDEN)
    assert Box(KEYS).open(sealed, *PLACE) == b'{"card": 4111}'


def test_an_envelope_is_what_its_description_says() -> None:
    """Opened without our code: by the format that `box` states."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    sealed = Box(KEYS).seal(b"plain", *PLACE)
    assert sealed[:14] == b"\xd7rd1\x01\x00\x072026-11" and len(sealed) == 14 + 4 + 16 + 12 + 5 + 16
    header, nonce, ciphertext = sealed[:34], sealed[34:46], sealed[46:]
    derived = hkdf(SECRET, header[-16:], b"redrive seal" + header[:18])
    extra = header + b'["body","json","0192-id","push"]'
    assert AESGCM(derived).decrypt(nonce, ciphertext, extra) == b"plain"


GOLDEN = (
    "d7726431010007323032362d3131ed0acc64dda8ea2598760be444a945473c8bff3d6131f3522128"
    "98aba2d7e146325bfd50651ca9dad51d37507a25a8506e5928835a10a22858127fc4be39"
)


# -- sealed and opened


@pytest.mark.parametrize("algorithm", boxes.ALGORITHMS)
@given(data=st.binary(max_size=300))
def test_what_is_sealed_opens_in_its_place(algorithm: str, data: bytes) -> None:
    sealed = Box(KEYS, algorithm).seal(data, *PLACE)
    assert Box(KEYS).open(sealed, *PLACE) == data and (len(data) < 8 or data not in sealed)


@pytest.mark.parametrize("at", range(4))
def test_an_envelope_opens_nowhere_else(at: int) -> None:
    box = Box(KEYS)
    elsewhere = [*PLACE]
    elsewhere[at] += "x"
    with pytest.raises(Tampered, match=r"does not open with key '2026-11'"):
        box.open(box.seal(b"secret", *PLACE), *elsewhere)


def test_names_that_run_into_each_other_are_not_the_same_place() -> None:
    box = Box(KEYS)
    with pytest.raises(Tampered):
        box.open(box.seal(b"secret", "body", "json", "a", 'b","c'), "body", "json", 'a","b', "c")


def test_each_changed_bit_and_each_cut_is_found_out() -> None:
    box = Box(KEYS)
    sealed = box.seal(b"secret", *PLACE)
    for at in range(len(sealed) * 8):
        changed = bytearray(sealed)
        changed[at // 8] ^= 1 << at % 8
        with pytest.raises((Tampered, KeyMissing)):  # a changed key id, or check of it, names another key
            box.open(bytes(changed), *PLACE)
    for end in range(len(sealed)):
        with pytest.raises((Tampered, KeyMissing)):
            box.open(sealed[:end], *PLACE)


def test_no_nonce_and_no_derived_key_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes, "SEALS_MAX", 100)
    box = Box(KEYS)
    found = [boxes.parse_envelope(box.seal(b"x", *PLACE)) for _ in range(1000)]
    assert len({(each.salt, each.nonce) for each in found}) == 1000
    assert 10 <= len({each.salt for each in found}) <= 12


def test_a_forked_process_derives_a_key_of_its_own() -> None:
    box = Box(KEYS)
    mine = boxes.parse_envelope(box.seal(b"x", *PLACE)).salt
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(write, boxes.parse_envelope(box.seal(b"x", *PLACE)).salt)
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 16) != mine


# -- keys


def test_an_old_key_reads_and_the_new_one_writes() -> None:
    old, both = Box(Keys({"2026-05": bytes(32)})), Box(KEYS)
    assert both.open(old.seal(b"x", *PLACE), *PLACE) == b"x"
    with pytest.raises(KeyMissing, match="encrypted with key '2026-11', which is not here"):
        old.open(both.seal(b"x", *PLACE), *PLACE)


def test_another_key_of_the_same_id_is_a_missing_key_and_no_tampering() -> None:
    sealed = Box(Keys({"k": bytes(32)})).seal(b"x", *PLACE)
    with pytest.raises(KeyMissing, match="key 'k' is another one here"):
        Box(Keys({"k": SECRET})).open(sealed, *PLACE)


def test_a_key_that_could_not_be_had_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = Box(KEYS).seal(b"x", *PLACE)
    asked: list[str | None] = []

    def fails_once(id: str | None) -> Key | None:
        asked.append(id)
        if len(asked) == 1:
            raise OSError("the key service is down")
        return KEYS(id)

    box = Box(fails_once)
    for _ in range(3):
        with pytest.raises(KeyMissing, match="the key service is down"):
            box.open(sealed, *PLACE)
    assert asked == ["2026-11"], "it was asked for each message"
    monkeypatch.setattr(boxes.time, "monotonic", lambda: 1e12)
    assert box.open(sealed, *PLACE) == b"x"


@pytest.mark.parametrize("given", [lambda id: None, lambda id: 1 / 0])
def test_nothing_is_written_in_the_clear_where_no_key_can_be_had(given: Any) -> None:
    with pytest.raises(StoreUnavailable, match="nothing can be written"):
        Box(given).seal(b"x", *PLACE)


def test_a_key_function_is_asked_again_which_key_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    writes = ["2026-05"]
    box = Box(lambda id: KEYS(writes[0] if id is None else id))
    assert boxes.key_of(box.seal(b"x", *PLACE)) == "2026-05"
    writes[0] = "2026-11"
    assert boxes.key_of(box.seal(b"x", *PLACE)) == "2026-05"
    monkeypatch.setattr(boxes, "WRITE_AGAIN_S", -1.0)
    box._writing = None
    assert boxes.key_of(box.seal(b"x", *PLACE)) == "2026-11"


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = ("A" * 42 + "8", "_" * 42 + "8=")
    monkeypatch.setenv("REDRIVE_KEYS", f" kms:eu/1:{new},\n 2026-05:{old} ")
    keys = Keys.from_env()
    assert keys.ids == ("kms:eu/1", "2026-05") and keys.write == "kms:eu/1"
    assert "AAAA" not in repr(keys) + repr(keys(None))


@pytest.mark.parametrize(
    "text", ["", "   ", "secretsecret", "k:c2VjcmV0", f"k:{'A' * 43},k:{'A' * 43}", f":{'A' * 43}", "k:!!!!"]
)
def test_what_cannot_be_keys_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("REDRIVE_KEYS", text)
    with pytest.raises(ConfigError, match="REDRIVE_KEYS") as told:
        Keys.from_env()
    assert "c2VjcmV0" not in str(told.value) and "secretsecret" not in str(told.value)


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33), "x" * 32])
def test_a_key_of_another_length_is_refused(secret: Any) -> None:
    with pytest.raises(ConfigError, match="expected exactly 32 random bytes"):
        Keys({"k": secret})
