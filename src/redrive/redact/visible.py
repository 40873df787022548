"""Escape invisible characters of foreign texts, for terminals, logs and readers of JSON.

Control characters act on terminals, bidirectional ones change the order in which a text is shown, zero-width and tag
characters hide words in a text. All of them are escaped, so no information is lost.
"""

from __future__ import annotations

import re

# Controls, surrogates, line separators, Unicode's default ignorable characters, and others without a glyph. U+FE0F is
# left out, as emoji need it.
_UNSEEN_ABOVE_ASCII = (
    "\x80-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    "\ud800-\udfff\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_UNSEEN = re.compile(f"[\x00-\x1f\x7f{_UNSEEN_ABOVE_ASCII}]")
_UNSEEN_IN_JSON = re.compile(f"[\x7f{_UNSEEN_ABOVE_ASCII}]")


def one_line(text: str) -> str:
    """Escape invisible characters and line breaks, so that the text cannot act on a terminal or forge a line.

    >>> print(one_line("a\\nb\\x1b[2J \\u202egpj.exe \\U000e0041"))
    a\\nb\\x1b[2J \\u202egpj.exe \\U000e0041
    """
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN.sub(_escape, text)


def many_lines(text: str) -> str:
    """Escape invisible characters in each line of a text, and keep its line breaks."""
    return "\n".join(map(one_line, text.split("\n")))


def in_json(text: str) -> str:
    """Escape invisible characters in JSON, as JSON does: the value stays the same.

    >>> print(in_json('["a\\u200bb\\U000e0041"]'))
    ["a\\u200bb\\udb40\\udc41"]
    """
    if text.isascii() and "\x7f" not in text:
        return text
    return _UNSEEN_IN_JSON.sub(_escape_json, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def _escape_json(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n : n + 2].hex()}" for n in range(0, len(units), 2))
