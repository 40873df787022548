"""Find secrets after a secret's name without an equals sign or colon: flags, pairs, forms, elements, words of a
language."""

from __future__ import annotations

import re

from .names import telling
from .plain import METAVAR, PATH, PROSE, PROSE_BEFORE_WORDS, is_message, is_said_already

QUOTE = r"(?:\\{0,7}[\"'`]|&(?:quot|apos|#3[49]|#x2[27]);|%(?:25){0,3}2[27]|\\{1,4}u002[27])"
QUOTED_MAX = 65_536  # most characters of a quoted value; of a longer value the rest of its line is hidden
_CLOSING = {q: re.compile(rf"(?:[^\\{q}]|\\.){{0,{QUOTED_MAX}}}+", re.S) for q in "\"'`"}
_BARE = re.compile(r"[^\s\"'`,;<>]++")
_OPENING = re.compile(QUOTE, re.I)

NEXT = r"[ \t]{0,8}(?:\\{1,7}(?:\r?\n|[ \t])|\\{2,8}n)[ \t]{0,64}"  # a line continuation, also as printed by repr
_FLAG = re.compile(
    rf"(?P<list>{QUOTE}\s{{0,4}},)?(?:{NEXT}|[ \t]{{1,8}})(?P<quote>{QUOTE})?(?P<value>[^\s\"'`\\,\]]++)", re.I
)
_PAIR = re.compile(rf"{QUOTE}\s{{0,4}},\s{{0,4}}[bBuU]?(?P<quote>{QUOTE})", re.I)  # ('x-api-key', 'abc')
_PAIR_BEGIN = re.compile(r"[(\[]\s{0,4}[bBuU]?\\{0,7}[\"'`]\Z")
_PAIR_END = re.compile(r"\s{0,4}[)\]]")
_SIGN = r"\s{0,4}[=:]\s{0,4}"
_VALUE = re.compile(  # {"name": "password", "value": "abc"}, <add key="password" value="abc"/>
    rf"{QUOTE}?\s{{0,8}}[,;]?\s{{0,8}}{QUOTE}?value{QUOTE}?{_SIGN}", re.I
)
_VALUE_BEGIN = re.compile(rf"(?:name|key|header|field|variable|parameter){QUOTE}?{_SIGN}{QUOTE}?\Z", re.I)
_FORM = re.compile(r"\"?(?:;[^\r\n]{0,200})?(?:\r?\n[^\r\n]{1,200}){0,3}(?:\r?\n){2}(?P<value>[^\r\n]++)")  # multipart
_FORM_BEGIN = re.compile(r"form-data;\s{0,4}name=\"?\Z", re.I)
_ELEMENT = re.compile(r"(?:\s[^<>]{0,300})?(?:>|&gt;)(?P<value>(?:(?!&lt;)[^<]){1,8192}+)(?=(?:<|&lt;)/)")
_ELEMENT_BEGIN = re.compile(r"(?:<|&lt;)(?:[\w-]{1,32}:)?\Z")
_SPACED = re.compile(r"[ \t]{1,4}(?P<quote>\\{0,7}[\"'`])?(?P<value>[^\s\"'`\\]++)")
_SPACED_BEGIN = re.compile(r"(?:\blogin\s{1,4}\S{1,100}\s{1,4}|\bENV\s{1,4}|\bset\s{1,4}-\w{1,4}\s{1,4})\Z", re.I)
_SAID = re.compile(r"[ \t]{1,4}(?:is|was|were|are)[ \t]{1,4}(?P<quote>[\"'`])?(?P<value>[^\s\"'`]++)", re.I)
# Values that are not words. The alternative for long values is first, since the last one takes quadratic time.
_DRAWN = re.compile(r"\S{16,}+|(?=\S*\d)(?=\S*[^\W\d])\S{6,}|\S*[a-z]\S*[A-Z]\S{4,}")
_NEAR = 64  # characters before a name that are searched

Span = tuple[int, int]


def closing(text: str, quote: str, begin: int) -> int:
    """Return where a value in quotes ends: at the closing quote, or else at the end of the line."""
    if len(quote) == 1:
        match = _CLOSING[quote].match(text, begin)
        end = match.end() if match else begin
        if text[end : end + 1] == quote:
            return end
    else:
        end = text.find(quote, begin, begin + QUOTED_MAX)
        if end >= 0:
            return end
    line = text.find("\n", begin)
    return len(text) if line < 0 else line


class NameContext:
    """The name of a secret in a text, and the text around the name."""

    text: str
    name: str
    word: str
    begin: int
    end: int
    in_code: bool

    def __init__(self, text: str, name: str, word: str, begin: int, end: int, *, in_code: bool) -> None:
        self.text, self.name, self.word, self.begin, self.end, self.in_code = text, name, word, begin, end, in_code
        self.near: str = text[max(0, begin - _NEAR) : begin]

    def secret(self) -> Span | None:
        """Return the span of the secret that the name announces, or None."""
        if self.name.startswith("-") and (span := self._flag()):
            return span
        if (value := _VALUE.match(self.text, self.end)) and _VALUE_BEGIN.search(self.near):
            return self._value(value.end())
        if (pair := _PAIR.match(self.text, self.end)) and _PAIR_BEGIN.search(self.near):
            return self._pair(pair)
        if _FORM_BEGIN.search(self.near) and (form := _FORM.match(self.text, self.end)):
            return form.span("value")
        if _ELEMENT_BEGIN.search(self.near) and (element := _ELEMENT.match(self.text, self.end)):
            return None if _says_nothing(element["value"]) else element.span("value")
        return self._after_space() or self._in_prose()

    def _flag(self) -> Span | None:
        """Return the span of `abc` in `--password abc`, and in the list `'--password', 'abc'`."""
        match = _FLAG.match(self.text, self.end)
        if match is None or (match["list"] and not match["quote"]):
            return None
        value = match["value"]
        if match["quote"]:
            return match.end("quote"), closing(self.text, match["quote"], match.end("quote"))
        word = value.rstrip(",.;:)").lower()
        if METAVAR.fullmatch(value) or word in PROSE or word in PROSE_BEFORE_WORDS:
            return None
        return None if is_said_already(value) or PATH.fullmatch(value) else match.span("value")

    def _pair(self, pair: re.Match[str]) -> Span | None:
        begin = pair.end()
        end = closing(self.text, pair["quote"], begin)
        if not _PAIR_END.match(self.text, end + len(pair["quote"])):
            return None
        value = self.text[begin:end]
        word = value.replace("_", "").replace("-", "")
        is_name = telling(value) or (word.isalpha() and (word.islower() or word.istitle()))
        header = "-" in self.name or self.word in ("authorization", "cookie")
        return None if _says_nothing(value) or (is_name and not header) else (begin, end)  # ('password', 'username')

    def _value(self, at: int) -> Span | None:
        if opening := _OPENING.match(self.text, at):
            end = closing(self.text, opening[0], opening.end())
            return None if _says_nothing(self.text[opening.end() : end]) else (opening.end(), end)
        match = _BARE.match(self.text, at)
        return match.span() if match and not is_said_already(match[0]) else None

    def _after_space(self) -> Span | None:
        """Return the span of `abc` in `PASSWORD 'abc'` (SQL), `requirepass abc` (Redis), `password abc` (.netrc)."""
        match = _SPACED.match(self.text, self.end)
        if match is None or self.in_code:
            return None
        begin, value, quoted = match.start("value"), match["value"], bool(match["quote"])
        end = closing(self.text, match["quote"], begin) if quoted else match.end("value")
        if self.word in ("requirepass", "masterauth") or _SPACED_BEGIN.search(self.near):
            return None if value.lower() in PROSE or METAVAR.fullmatch(value) else (begin, end)
        digits = len(value) >= 6 and any(c.isdigit() for c in value)
        spoken = digits and self.word.startswith(("passw", "passp", "pwd"))  # as in: wrong password 'hunter2'
        return (begin, end) if quoted and (self.name == "PASSWORD" or spoken) else None

    def _in_prose(self) -> Span | None:
        """Return the span of `abc` in `the password was 'abc'`, and of a value without quotes if it is not a word."""
        match = None if self.in_code else _SAID.match(self.text, self.end)
        if match is None:
            return None
        begin, value = match.start("value"), match["value"].rstrip(".,:;!?)")
        if not match["quote"]:
            return (begin, begin + len(value)) if _DRAWN.fullmatch(value) and not is_said_already(value) else None
        end = closing(self.text, match["quote"], begin)
        value = self.text[begin:end]
        named = value.lower() in PROSE or (value.replace("_", "").isalpha() and telling(value))
        return None if _says_nothing(value) or named else (begin, end)


def _says_nothing(value: str) -> bool:
    return is_said_already(value) or is_message(value)
