"""Takes secrets out of texts that people and log collectors will read."""

from __future__ import annotations

import re
from typing import Any

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
    # the same within another URL's query, where its characters may be percent-encoded
    (
        re.compile(
            r"(?P<keep>(?::|%3a)(?://|%2f%2f)(?:(?!%3a)[^\s:/@?&#]){0,200}(?::|%3a))(?!\*\*\*)"
            r"(?:(?!%40)[^\s/@?&#]){1,500}(?=@|%40)",
            re.I,
        ),
        rf"\g<keep>{HIDDEN}",
    ),
    (re.compile(r"(?P<keep>\b(?:bearer|basic)\s+)[a-z0-9+/._~=-]{6,}", re.I), rf"\g<keep>{HIDDEN}"),
    # key="some words": up to the quote that ends it
    (
        re.compile(
            rf"(?P<keep>(?:{_NAMES})[\"']?\s{{0,3}}[=:]\s{{0,3}}(?P<quote>[\"']))(?!\*\*\*)(?:(?!(?P=quote))[^\\\n]|\\.){{1,2000}}(?=(?P=quote))",
            re.I,
        ),
        rf"\g<keep>{HIDDEN}",
    ),
    # password%3Dvalue%26 in a URL that is the value of another's option
    (
        re.compile(rf"(?P<keep>(?:{_NAMES})%3d)(?!\*\*\*)(?:(?!%26)[^\s\"'&,;)}}\]]){{1,2000}}", re.I),
        rf"\g<keep>{HIDDEN}",
    ),
    # key=value, "key": "value", also where the name is the end of a longer one: DB_PASSWORD, client_secret
    (
        re.compile(
            rf"(?P<keep>(?:{_NAMES})[\"']?\s{{0,3}}[=:]\s{{0,3}})(?P<quote>[\"']?)(?!\*\*\*)[^\s\"'&,;)}}\]]{{1,2000}}",
            re.I,
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
    >>> redact("sqs://eu-central-1/shop?triage=postgresql%3A%2F%2Fann%3Ahunter2%40db%2Fx&poll=5")
    'sqs://eu-central-1/shop?triage=postgresql%3A%2F%2Fann%3A***%40db%2Fx&poll=5'
    >>> redact('{"db_password": "two words", "n": 1}'), redact("token: ***2")
    ('{"db_password": "***", "n": 1}', 'token: ***2')
    """
    for pattern, hidden in _PATTERNS:
        text = pattern.sub(hidden, text)
    return text


_TELLING = re.compile(rf"(?:{_NAMES}|authorization|cookie)$", re.I)


class Redactor:
    """Hides secrets in JSON values, by the names of fields and by their texts, and numbers them: two that are hidden
    alike are the same secret.

    >>> hide = Redactor()
    >>> hide({"token": "a b", "n": 1}), hide({"token": "c"}), hide({"api_key": "a b"})
    ({'token': '***', 'n': 1}, {'token': '***2'}, {'api_key': '***'})
    """

    def __init__(self) -> None:
        self._seen: list[Any] = []

    def __call__(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                self.text(name): self._hidden(each) if _TELLING.search(name) and each is not None else self(each)
                for name, each in value.items()
            }
        if isinstance(value, list):
            return [self(each) for each in value]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """The text with what `redact` hides in it, numbered."""
        told = redact(text)
        return told if told == text else told.replace(HIDDEN, self._hidden(text))

    def _hidden(self, secret: Any) -> str:
        if secret not in self._seen:
            self._seen.append(secret)
        number = self._seen.index(secret) + 1
        return HIDDEN if number == 1 else f"{HIDDEN}{number}"
