"""Hide secrets by the names beside them: `password=…`, `"token": "…"`, `--api-key …`, `Authorization: …`.

A name is searched first, then the text after it decides. So prose is kept ("unexpected token", "password is required"),
and code in a traceback too (`token = self.next()`), while a value assigned to such a name is hidden.

No step reads a character twice, and lookahead is bounded: the time is linear in the length of any text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

from .beside import NEXT, QUOTE, NameContext, closing
from .formats import HIDDEN
from .names import FIELDS, WORDS, counts, harmless, is_secret_value, telling
from .plain import CALL, COUNT, PATH, PROSE, begins_prose, is_message, is_said_already
from .schemes import COOKIES, CREDENTIAL, PARAMETERS, SCHEME

_NAME = re.compile(rf"(?:{WORDS}|pass|auth)s?")
_BEFORE = re.compile(r"[\w.$-]*\Z")  # matches the part of the name on the left of the word
_BEFORE_MAX = 64
_NUMBER = re.compile(r"[_-]?\d{0,2}(?![\w-])")  # an optional number after a name: password2, token_1
# Matches what may follow a name: its quote, the bracket of `env["TOKEN"]`, the sign, a YAML block's line break.
_SIGN = re.compile(
    rf"(?P<closing>{QUOTE})?\]?(?:[ ](?:provided|used|given|was|is))?[ \t]{{0,8}}"
    r"(?P<sign>=>|:=|=(?!=)|:(?![:=/])|%(?:25){0,3}3[ad]|&#(?:61|x3d|58|x3a);)[ \t]{0,8}"
    r"(?P<block>[|>][-+]?\d?[ \t]{0,8}\r?\n[ \t]{1,64})?"
    rf"(?:{NEXT})?",
    re.I,
)
# Matches syntax before a value: b"…", SecretStr('…'), Some("…"), string(7) "…", ["…"].
_AROUND = re.compile(
    rf"string\(\d{{1,6}}\) (?=\")|[A-Z]\w{{0,31}}\((?={QUOTE})|[bBuUrRfF]{{1,2}}(?=[\"'])"
    rf"|(?P<list>\[\s{{0,8}})(?={QUOTE})"
)
_OPENING = re.compile(QUOTE, re.I)
_LIST_MAX = 8192
# Matches a bare value. It continues over a comma or bracket, unless a space, a quote or another `name=` follows.
_BARE = re.compile(
    r"(?:[^\s\"'`&,;)}\]<>|\\]|\\(?![nrt\"'`]|u002[27])|<(?![/!])[^<>\s]{1,200}>"
    r"|[&,;)}\]|](?![\s\"'`{(\[<]|\Z|[\w.%$-]{1,64}\s{0,3}[=:]|\\[nrt\"']|amp;|quot;|#\d))++"
)
# Matches the words of a passphrase, which fill the rest of the line.
_PHRASE = re.compile(r"[a-z]{2,12}(?:[ -][a-z]{2,12}){2,24}(?=[\"'`]|[ \t]*$)", re.M)
_ENCODED_BARE = tuple(  # by the number of percent-encodings around the value
    re.compile(rf"(?:(?!%{more}(?:26|2c|0a|0d|20|2[27]|3b))[^\s\"'`&,;)}}\]<>\\])++", re.I)
    for more in ("25" * level for level in range(4))
)
_FIELD = re.compile(  # {"session": "a1b2c3d4"}
    rf"(?P<keep>(?P<quote>\\{{0,7}}[\"'])(?P<name>[\w-]{{0,40}}?(?:{FIELDS}))(?P=quote)\s{{0,4}}(?:=>|:)\s{{0,4}}"
    r"[bBuU]?(?P<open>\\{0,7}[\"']))(?P<value>(?:[^\"'\\\r\n]|\\u[0-9a-f]{4}){8,4096}+)(?=(?P=open))",
    re.I,
)
_FIELD_WORDS = ("session", "sig", "bearer", "csrf", "xsrf", "dsn", "iban", "card")
_WITHIN = ("pass", "auth", "otp", "otps", "cvc", "cvv", "jwt")  # short words that are also part of other words
_PASSWORDS = ("pass", "pwd", "secret", "api", "access", "private", "conn", "require", "master")
_WEAK = ("jwt", "otp", "cv", "cookie", "sess", "credential", "connect.sid")
_ASKED = re.compile(r"(?:unexpected|unrecogni[sz]ed|unknown|lookahead|offending|illegal|next|current|stray)[ \t]\Z")
_ARN = re.compile(r"[\w:/.*-]*:")
_ARN_MAX = 200
_FRAME = re.compile(r"^[ |+]*File \"[^\"\n]{0,1000}\", line \d{1,9}[^\n]{0,1000}\n([ |]*[^\n]*)", re.M)
_TWO_WORDS = re.compile(r"[a-z]+(?:_[a-z]+)+")


class SecretSpan(NamedTuple):
    """The span of a secret in a text."""

    begin: int
    end: int


def hide_named(text: str, low: str) -> str:
    """Hide the values after names of secrets; `low` is the text in lower case, of the same length."""
    code = _Code(text)
    parts: list[str] = []
    at = 0
    for match in _NAME.finditer(low):
        if match.start() < at:
            continue
        secret = _SecretName(text, low, match.start(), match.end(), code).secret()
        if secret is not None and secret.begin < secret.end:
            parts += [text[at : secret.begin], HIDDEN]
            at = secret.end
    text = "".join((*parts, text[at:])) if parts else text
    return _FIELD.sub(_hide_field, text) if any(word in low for word in _FIELD_WORDS) else text


def _hide_field(match: re.Match[str]) -> str:
    return match["keep"] + HIDDEN if is_secret_value(match["name"], match["value"]) else match[0]


class _Code:
    """The spans of source lines in a text: in these, a value without quotes is an expression."""

    def __init__(self, text: str) -> None:
        lines = [match.span(1) for match in _FRAME.finditer(text)] if '", line ' in text else []
        self._begins, self._ends = [begin for begin, _ in lines], [end for _, end in lines]

    def __contains__(self, place: int) -> bool:
        at = bisect_right(self._begins, place) - 1
        return at >= 0 and place < self._ends[at]


class _SecretName:
    """A secret's name in a text: the word that marks it, the whole name, which ends with the word, and the text
    around."""

    def __init__(self, text: str, low: str, begin: int, end: int, code: _Code) -> None:
        self.text, self.low, self.word, self.word_at = text, low, low[begin:end], begin
        before = _BEFORE.search(text, max(0, begin - _BEFORE_MAX), begin)
        self.begin = before.start() if before else begin
        number = _NUMBER.match(low, end)
        self.end = number.end() if number else -1
        self.name = text[self.begin : max(end, self.end)]
        self.in_code = self.begin in code

    def secret(self) -> SecretSpan | None:
        """Return the span of the secret that follows the name, or None."""
        if self.end < 0 or (self.word in _WITHIN and self.text[self.begin : self.word_at][-1:].isalpha()):
            return None
        if self._in_arn():
            return None
        if harmless(self.name) or not telling(self.name.lstrip("-$")):
            return None
        sign = _SIGN.match(self.text, self.end)
        if sign is not None:
            place = self._authorization(sign) if self.word == "authorization" else self._assignment(sign)
            if place is not None or self.word == "authorization" or self.name.startswith("-"):
                return place  # in `--token = abc` the `=` is not the value
        span = NameContext(self.text, self.name, self.word, self.begin, self.end, in_code=self.in_code).secret()
        return None if span is None else SecretSpan(*span)

    def _in_arn(self) -> bool:
        """True if the name is part of an ARN: arn:aws:secretsmanager:eu-central-1:123456789012:secret:shop."""
        if self.text[self.begin - 1 : self.begin] != ":":
            return False
        arn = self.text.rfind("arn:", max(0, self.begin - _ARN_MAX), self.begin)
        return arn >= 0 and _ARN.fullmatch(self.text, arn, self.begin) is not None

    def _assignment(self, sign: re.Match[str]) -> SecretSpan | None:
        at = sign.end()
        if sign["block"]:
            end = self.text.find("\n", at)
            return SecretSpan(at, len(self.text) if end < 0 else end)
        if sign["sign"][0] in "%&":
            return self._in_percent(at, sign["sign"].count("25"))
        around = _AROUND.match(self.text, at)
        opening = _OPENING.match(self.text, around.end() if around else at)
        if opening is not None:
            if not sign["closing"] and self._closes(opening):
                return None
            return self._in_quotes(opening, listed=around is not None and bool(around["list"]))
        if self.in_code:
            return None
        if self.word.startswith("cookie") and (cookies := COOKIES.match(self.text, at)):
            return SecretSpan(*cookies.span())
        return self._bare(at, sign)

    def _closes(self, quote: re.Match[str]) -> bool:
        """True if this quote closes the string that contains the name, as in `input('Password: ')`."""
        if quote.end() < len(self.text) and self.text[quote.end()] not in " ,;:)]}+%\r\n":
            return False
        begin = max(0, self.begin - 256)
        begin = max(begin, self.text.rfind("\n", begin, self.begin) + 1)
        return self.text.count(quote[0], begin, self.begin) % 2 == 1

    def _in_quotes(self, opening: re.Match[str], *, listed: bool) -> SecretSpan | None:
        """Return the span of a quoted value, up to its closing quote; in a list, of all quoted values."""
        begin = opening.end()
        end = closing(self.text, opening[0], begin)
        if listed and (bracket := self.text.find("]", end, end + _LIST_MAX)) >= 0:
            inside = self.text[begin:bracket].rstrip().removesuffix(opening[0])
            end = begin + len(inside)
        value = self.text[begin:end]
        bare = value.removeprefix("Bearer ").removeprefix("Basic ")
        if is_said_already(bare) or is_message(value) or (self.in_code and self._is_word_of_code(value)):
            return None
        return SecretSpan(begin, end)

    def _is_word_of_code(self, value: str) -> bool:
        """True if a literal belongs to the code: `TOKEN = "token"`, `kind_of_token="Bearer"`, a format."""
        if any(c in "{}()[]\\%" for c in value):
            return True
        if any(c.isdigit() for c in value) or len(value) > 20:
            return False
        return telling(value) or not self.word.startswith(_PASSWORDS) or _TWO_WORDS.fullmatch(value) is not None

    def _bare(self, at: int, sign: re.Match[str]) -> SecretSpan | None:
        match = _BARE.match(self.text, at)
        if match is None:
            return None
        colon, spaced = sign["sign"] == ":" and not sign["closing"], sign[0][-1].isspace()
        value = match[0].rstrip(".") if colon else match[0]
        if is_said_already(value) or not value.strip(".-*_") or "://" in value[:24]:
            return None  # the secrets within a URL are hidden by urls.py
        phrase = _PHRASE.match(self.text, at) if self.word.startswith("pass") else None
        if phrase and not PROSE.intersection(phrase[0].split()) and not begins_prose(self.text, at, value):
            return SecretSpan(at, phrase.end())
        if (counts(self.name) and COUNT.fullmatch(value)) or PATH.fullmatch(value):
            return None
        if (colon and (self._is_weak(value) or (spaced and self._is_prose(at, value)))) or (
            spaced and CALL.fullmatch(value)
        ):
            return None
        return SecretSpan(at, at + len(value))

    def _is_weak(self, value: str) -> bool:
        """True for a plain word after a name that is common in prose: "jwt: audience", "cannot pass: LISTEN"."""
        if self.word == "pass":
            return True
        return self.word.startswith(_WEAK) and value.isalpha() and len(value) < 20

    def _is_prose(self, at: int, value: str) -> bool:
        asked = _ASKED.search(self.low, max(0, self.begin - 16), self.begin)
        return asked is not None or begins_prose(self.text, at, value)

    def _in_percent(self, at: int, level: int) -> SecretSpan | None:
        """Return the span of a percent-encoded value: `password%3Dabc%26…`. `level`: number of encodings minus one."""
        opening = _OPENING.match(self.text, at)
        begin = opening.end() if opening else at
        match = _ENCODED_BARE[level].match(self.text, begin)
        return None if match is None or is_said_already(match[0]) else SecretSpan(begin, match.end())

    def _authorization(self, sign: re.Match[str]) -> SecretSpan | None:
        """Return the span of the credential after its scheme: one word, or all parameters of the scheme."""
        around = _AROUND.match(self.text, sign.end())
        begin = around.end() if around else sign.end()
        if opening := _OPENING.match(self.text, begin):
            end = closing(self.text, opening[0], opening.end())
            scheme = SCHEME.match(self.text, opening.end(), end)
            begin = scheme.end() if scheme else opening.end()
            value = self.text[begin:end]
            word = self.in_code and self._is_word_of_code(value)
            return None if is_said_already(value) or is_message(value) or word else SecretSpan(begin, end)
        if self.in_code:
            return None
        scheme = SCHEME.match(self.text, begin)
        if scheme is None:
            return self._bare(begin, sign)
        match = PARAMETERS.match(self.text, scheme.end()) or CREDENTIAL.match(self.text, scheme.end())
        nothing = match is None or is_said_already(match[0]) or match[0].lower() in PROSE
        return None if nothing or match is None else SecretSpan(scheme.end(), match.end())
