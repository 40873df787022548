"""Names whose values are secrets: `password`, `api_key`, `X-Auth-Token`, `sessionid`, and plurals."""

from __future__ import annotations

import re
from functools import lru_cache

_KINDS = """access account api app application auth authentication client consumer crypt deploy encryption hmac
    integration license licence master private secret service[_-]?account shared shared[_-]?access signing
    storage[_-]?account subscription webhook"""
_SINGLE = """pass[_\\s-]?word passwd passphrase passcode passwort kennwort pwd secret[_-]?value secret token credential
    authorization cookie jwt otp(?!s?[a-rt-z]) cvv cvc2? session[_.-]?id sessid sessionid phpsessid connect\\.sid
    connection[_.-]?string conn[_-]?str requirepass masterauth x-amz-signature x-amz-credential x-goog-signature
    x-goog-credential"""
# In lower case, like the searched text. Each word begins with a letter, so the search can skip other characters.
WORDS = "|".join(
    (*_SINGLE.split(), *(f"{kind}[_. -]?key" for kind in _KINDS.split()), "session id", "connection string")
)
_SHORT = "cred|creds|pass|pw|sid|pin|auth"  # these words count only as a whole part of a name: db_pass, PASS
# Matches a name that ends with one of the words and optionally a number: password2, token_1.
TELLING = re.compile(rf"(?:(?:{WORDS})s?|(?:^|[^a-z])(?:{_SHORT}))[_-]?\d{{0,2}}$")
_PARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Matches names of harmless values: positions in a list, ids of requests, tokens of a language model.
_HARMLESS = re.compile(
    r"(?:^|[^a-z])(?:page|next|continuation|pagination|sync|cursor|resume|resumption|request|idempotency|dedup|bos|eos|"
    r"pad|sep|unk|mask|special|stop|end|start|max|min|num|n|total|prompt|completion|input|output|cached|reasoning|"
    r"new|next_page|nextpage|id_or|fencing|fence|lock|unexpected|delimiter|cancel|cancellation)[_. -]?tokens?$"
    r"|(?:^|[^a-z])(?:oldpwd|public[_-]?keys?)$"
)
# Names of fields that hold a secret only if the value looks random, since the names are also used for other things.
FIELDS = "session|sig|signature|bearer|csrf|xsrf|dsn|iban|card[_-]?(?:number|no)"
_FIELD = re.compile(rf"(?:^|[^a-z])(?:{FIELDS})$")
_DRAWN = re.compile(r"(?![\w.]+\()(?:(?=[^\d]*\d)\S{8,}|\S{16,})|[A-Z]{2}\d\d[ -][A-Z0-9 -]{10,34}|[\d -]{12,30}")
_COUNTED = re.compile(r"(?:token|secret|key|cookie|password|credential|otp)s$")  # a number after a plural is a count


@lru_cache(maxsize=4096)
def telling(name: str) -> bool:
    """Return True if the value of a field with this name is a secret.

    >>> [telling(name) for name in ("password", "X-Api-Key", "accessToken", "DB_PASS", "tokens", "Cookie")]
    [True, True, True, True, True, True]
    >>> [telling(name) for name in ("token_type", "page_token", "compass", "idempotency_key", "secretary", "tokenId")]
    [False, False, False, False, False, False]
    """
    if len(name) > 256:
        name = name[-256:]
    low = _PARTS.sub("_", name).lower().strip()
    return TELLING.search(low) is not None and _HARMLESS.search(low) is None


def is_secret_value(name: str, value: str) -> bool:
    """Return whether this value of a field looks like a secret, for names that alone do not decide.

    >>> is_secret_value("session", "k3j4h5k3j4h5"), is_secret_value("session", "morning")
    (True, False)
    >>> is_secret_value("cardNumber", "4111 1111 1111 1111")
    True
    """
    low = _PARTS.sub("_", name[-256:]).lower()
    return _FIELD.search(low) is not None and _DRAWN.fullmatch(value) is not None


def counts(name: str) -> bool:
    """True if a number under this name is a count: `tokens: 1523`."""
    return _COUNTED.search(name.lower()) is not None


def harmless(name: str) -> bool:
    """True if the values of a name that ends in a secret's word are harmless: `page_token`."""
    return _HARMLESS.search(_PARTS.sub("_", name).lower()) is not None
