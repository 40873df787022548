"""`redact`: hide the secrets in a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from .formats import hide_formats

# Signs in lower case. A text is searched for URLs, names or authorization schemes only if it has a sign of them. Most
# texts contain none, so many programs do not load the modules that search them.
_URL_SIGNS = """@ 40 sig code= code% hmac assertion samlresponse x-amz- x-goog- hook ifttt chat.googleapis logic.azure
    powerplatform telegram pagerduty make.com"""
_NAME_ROOTS = """pass pwd secret token key credential authorization cookie sess jwt otp cv conn x-amz- x-goog-
    masterauth _auth auth" auth' auth\\ auth= auth: kennwort signature sig" sig' sig\\ csrf xsrf dsn iban
    cardn card_n card-n bearer" bearer' bearer\\"""
_SCHEME_ROOTS = """bearer basic token apikey api-key geniekey negotiate ntlm dpop ssws digest hawk oauth signature mac
    sha256 auth sshpass identified oracle curl mysql mariadb"""
_URLS, _NAMES, _SCHEMES = (roots.split() for roots in (_URL_SIGNS, _NAME_ROOTS, _SCHEME_ROOTS))
# Matches ids, fingerprints, hashes, numbers, times and names: most short texts. A provider's token in mixed case has at
# least 16 characters, and may have no digit.
_PLAIN = re.compile(r"[0-9a-f-]{1,64}|[0-9:TZ.+-]{1,64}|[a-z_.]{1,32}|[A-Za-z_.]{1,15}")
# The replacement of a value may join the text around it: `Cookie:,>=a` becomes `Cookie:***>=a`, which again matches as
# a cookie. Redacting a result again must not change it, so redaction is repeated until nothing changes. Of random signs
# around such a name, one text in a thousand changes a second time and one in a million a fifth; the bound keeps the
# time linear.
_PASSES = 12
# Match a source line in a traceback, and the strings in such a line.
_SOURCE = re.compile(r"""^( *File "[^"\n]*", line \d+, in [^\n]*\n)( +[^\n]*)$""", re.M)
_LITERAL = re.compile(r""""[^"\n]*"|'[^'\n]*'""")


class Joined(str):
    """A text joined from redacted parts. `redact` leaves it unchanged: a name in the text, such as that of a queue
    `secrets`, does not make the words after it a secret."""

    __slots__ = ()


def joined(*parts: str) -> Joined:
    """Join names and words of redrive's into a text, each redacted by itself.

    >>> redact("auth.token: idle"), redact(joined("auth.token", ": idle")), joined("x: ", "key=a1b2", "!")
    ('auth.token: ***', 'auth.token: idle', 'x: key=a1b2!')
    """
    return Joined("".join(map(redact, parts)))


def redact(text: str) -> str:
    """Return the text with its secrets as `***`.

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
    if type(text) is Joined or _PLAIN.fullmatch(text):
        return text
    for _ in range(_PASSES):
        hidden = _hide_once(text)
        if hidden == text:
            break
        text = hidden
    return text


def _hide_once(text: str) -> str:
    low = _lower(text)
    for hide in _hiders(low):
        hidden = hide(text, low)
        if hidden is not text:
            text, low = hidden, _lower(hidden)
    return text


def _hiders(low: str) -> Iterator[Callable[[str, str], str]]:
    """Yield the functions that must search a text, given in lower case, in their order."""
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
    """Return the text in lower case, with the same length: one letter of Unicode would become two characters."""
    low = text.lower()
    return low if len(low) == len(text) else text.replace("\u0130", "i").lower()


@lru_cache(maxsize=64)
def shown_traceback(text: str) -> str:
    """Return a traceback without secrets, including those in strings of its source lines. The results are cached, since
    failures repeat and several logs show them."""
    return _SOURCE.sub(_hide_literals, redact(text))


def _hide_literals(match: re.Match[str]) -> str:
    return match[1] + _LITERAL.sub(lambda literal: redact(literal[0]), match[2])


def clip(text: str, limit: int, shown: int) -> str:
    """Return the first `limit` characters of a text, redacted, and of that at most `shown` characters.

    The text is cut between words before it is redacted: half of a secret would not be recognized.
    """
    if len(text) > limit:
        text = text[:limit]
        text = text[: max(text.rfind(" "), text.rfind("\n"), 0)]
    hidden = redact(text)
    return hidden if len(hidden) <= shown else hidden[: shown - 1] + "…"
