"""`redact`: a text without secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from .formats import hide_formats

# What a text must hold, in lower case, for its URLs, its names and the schemes of authorization to be looked at. Most
# texts have none of it, and a program that reads no such text need not load what looks at them.
_URL_SIGNS = """@ 40 sig code= code% hmac assertion samlresponse x-amz- x-goog- hook ifttt chat.googleapis logic.azure
    powerplatform telegram pagerduty make.com"""
_NAME_ROOTS = """pass pwd secret token key credential authorization cookie sess jwt otp cv conn x-amz- x-goog-
    masterauth _auth"""
_SCHEME_ROOTS = """bearer basic token apikey api-key geniekey negotiate ntlm dpop ssws digest hawk oauth signature mac
    sha256 auth sshpass identified oracle curl"""
_URLS, _NAMES, _SCHEMES = (roots.split() for roots in (_URL_SIGNS, _NAME_ROOTS, _SCHEME_ROOTS))
# Ids, fingerprints, hashes, numbers and times, which most short texts are.
_PLAIN = re.compile(r"[0-9a-f-]{1,64}|[0-9:TZ.+-]{1,64}|[A-Za-z_.]{1,32}")


def redact(text: str) -> str:
    """The text with secrets as `***`.

    >>> redact("cannot reach postgresql://ann:hunter2@db/x: token=abc, code 7")
    'cannot reach postgresql://ann:***@db/x: token=***, code 7'
    >>> redact("Authorization: Bearer abcdef123456")
    'Authorization: Bearer ***'
    >>> redact("sqs://eu-central-1/shop?triage=postgresql%3A%2F%2Fann%3Ahunter2%40db%2Fx&poll=5")
    'sqs://eu-central-1/shop?triage=postgresql%3A%2F%2Fann%3A***%40db%2Fx&poll=5'
    >>> redact('{"db_password": "two words", "n": 1}'), redact("token: ***2")
    ('{"db_password": "***", "n": 1}', 'token: ***2')
    >>> redact("unexpected token at line 3: password is required, no token left")
    'unexpected token at line 3: password is required, no token left'
    """
    if _PLAIN.fullmatch(text):
        return text
    low = _lower(text)
    for hide in _hiders(low):
        hidden = hide(text, low)
        if hidden is not text:
            text, low = hidden, _lower(hidden)
    return text


def _hiders(low: str) -> Iterator[Callable[[str, str], str]]:
    """What may have to be hidden in a text that is so in lower case, in the order in which it is looked for."""
    yield hide_formats
    if any(word in low for word in _URLS):
        from .urls import hide_urls

        yield hide_urls
    if any(word in low for word in _NAMES):
        from .named import hide_named

        yield hide_named
    if any(word in low for word in _SCHEMES):
        from .schemes import hide_schemes

        yield hide_schemes


def _lower(text: str) -> str:
    """In lower case, and as long: one letter of Unicode's is two there."""
    low = text.lower()
    return low if len(low) == len(text) else text.replace("\u0130", "i").lower()


def clip(text: str, limit: int, shown: int) -> str:
    """At most `shown` characters of a text without its secrets, which are looked for in its first `limit` ones: whole
    words of these, as half of a secret is not known for one."""
    if len(text) > limit:
        text = text[:limit]
        text = text[: max(text.rfind(" "), text.rfind("\n"), 0)]
    hidden = redact(text)
    return hidden if len(hidden) <= shown else hidden[: shown - 1] + "…"
