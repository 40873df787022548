"""Takes secrets out of texts that people and log collectors will read."""

from __future__ import annotations

import re

HIDDEN = "***"
_NAMES = (
    r"pass(?:word|wd|phrase)?|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?|session[_-]?id"
)
_PATTERNS = (
    # the password of a URL: scheme://user:password@host
    (
        re.compile(r"(?P<keep>\b[a-z][a-z0-9+.-]{0,30}://[^\s:/@]{0,200}:)[^\s/@]{1,500}(?=@)", re.I),
        rf"\g<keep>{HIDDEN}",
    ),
    (re.compile(r"(?P<keep>\b(?:bearer|basic)\s+)[a-z0-9+/._~=-]{6,}", re.I), rf"\g<keep>{HIDDEN}"),
    # key=value, "key": "value", also where the name is the end of a longer one: DB_PASSWORD, client_secret
    (
        re.compile(
            rf"(?P<keep>(?:{_NAMES})[\"']?\s{{0,3}}[=:]\s{{0,3}})(?P<quote>[\"']?)[^\s\"'&,;)}}\]]{{1,2000}}", re.I
        ),
        rf"\g<keep>\g<quote>{HIDDEN}",
    ),
    (re.compile(r"\b(?:sk|pk|rk|whsec|ghp|gho|xox[abp]|glpat)[_-][A-Za-z0-9_-]{8,}|\bAKIA[0-9A-Z]{16}\b"), HIDDEN),
)


def redact(text: str) -> str:
    """The text with passwords in URLs, authorization values, `name=value` of telling names and known key forms hidden.

    >>> redact("cannot reach postgresql://ann:hunter2@db/x: token=abc, code 7")
    'cannot reach postgresql://ann:***@db/x: token=***, code 7'
    >>> redact("Authorization: Bearer abcdef123456")
    'Authorization: Bearer ***'
    """
    for pattern, hidden in _PATTERNS:
        text = pattern.sub(hidden, text)
    return text
