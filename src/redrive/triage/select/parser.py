"""Parse a selector, or point at the mistake in it. The grammar:

selector = [any]
any      = all ("or" all)*
all      = one (["and"] one)*
one      = ("-" | "not") one | "(" any ")" | FIELD ":" values | word
word     = (BARE | "QUOTED")+         a bare word, which is searched in ids, keys, correlation ids, faults and arguments
values   = value | "(" value ("," value)* ")"
value    = ["<" | "<=" | ">" | ">=" | "="] (BARE | "QUOTED")+      `*` in a bare piece stands for any text
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple, NoReturn

from ...duration import milliseconds, parse_time
from ...errors import SelectorError, near_miss
from ...message import REASONS, Lane, is_label_name
from .terms import (
    ALL,
    ARGS,
    FIELDS,
    HEADER,
    JOINS,
    LANE_NAMES,
    NUMBERS,
    TIMES,
    WORD,
    Age,
    Node,
    Number,
    Pattern,
    PointInTime,
    Term,
    TermValue,
    both,
    either,
    opposite,
)

LENGTH_MAX, DEPTH_MAX = 20_000, 50
_AGE_MAX_MS = 10_000 * 365 * 86_400_000  # longer than any age, and still exact in float seconds
_SPACE = re.compile(r"\s*")
_FIELD = re.compile(r'([^\s():,"<>=*]+):')
_WORD = re.compile(r'[^\s(),"]+')
_OP = re.compile(r"<=|>=|<|>|=")
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,9})?")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


def parse(text: str) -> Node:
    """Return the tree of a selector. Raises SelectorError, which points at the mistake."""
    return _Parser(text).whole()


class _RawValue(NamedTuple):
    """A value as written: its comparison, its text split at its stars, and its position."""

    op: str
    parts: tuple[str, ...]
    quoted: bool
    at: int
    end: int

    @property
    def plain(self) -> str | None:
        return self.parts[0] if len(self.parts) == 1 and not self.quoted else None


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0

    def whole(self) -> Node:
        self._check_text()
        if self._peek() == "":
            return ALL
        node = self._any()
        if self._peek() == ")":
            self._fail("this parenthesis was never opened", "leave it out", self.at, self.at + 1)
        if self._peek():
            self._fail("a term is expected here", "terms are FIELD:VALUE", self.at)
        return node

    def _check_text(self) -> None:
        if len(self.text) > LENGTH_MAX:
            raise SelectorError(f"the selector has {len(self.text)} characters", f"expected at most {LENGTH_MAX}")
        for bad in re.finditer(r"[\0\ud800-\udfff]", self.text):
            self._fail("this character cannot be stored", "no message has it", bad.start(), bad.end())

    def _any(self) -> Node:
        nodes = [self._all()]
        while self._word("or"):
            nodes.append(self._all())
        return either(nodes)

    def _all(self) -> Node:
        nodes = [self._one()]
        while self._word("and") or (self._peek() not in ("", ")") and not self._is_word("or")):
            nodes.append(self._one())
        return both(nodes)

    def _one(self) -> Node:
        begin = self._skip()
        self.depth += 1
        if self.depth > DEPTH_MAX:
            self._fail("nested too deeply", f"expected at most {DEPTH_MAX} levels", begin, begin + 1)
        node = self._nested(begin)
        self.depth -= 1
        return node

    def _nested(self, begin: int) -> Node:
        if self._take("-") or self._word("not"):
            return opposite(self._one())
        if not self._take("("):
            return self._term()
        if self._peek() == ")":
            self._fail("there is nothing between these", "expected a term: FIELD:VALUE", begin, self.at + 1)
        node = self._any()
        if not self._take(")"):
            self._fail("this parenthesis is never closed", "expected ) after its terms", begin, begin + 1)
        return node

    def _term(self) -> Node:
        begin = self._skip()
        match = _FIELD.match(self.text, begin)
        if match is None:
            return self._bare(begin)
        field = match[1]
        self._check_field(field, begin)
        self.at = match.end()
        if self.text[self.at : self.at + 1] != "(":
            return Term(field, (self._value(field),))
        self.at += 1
        values = [self._value(field, listed=True)]
        while self._take(","):
            values.append(self._value(field, listed=True))
        if not self._take(")"):
            self._fail("the list of values goes on without a comma, or is not closed", "expected , or )", self.at)
        return Term(field, tuple(dict.fromkeys(values)))

    def _bare(self, begin: int) -> Term:
        word = _WORD.match(self.text, begin)
        if self.text[begin : begin + 1] != '"' and (word is None or word[0].lower() in JOINS):
            end = begin + 1 if word is None else word.end()
            self._fail("a term is expected here", f"FIELD:VALUE; fields: {', '.join(FIELDS)}", begin, end)
        assigned = re.match(r"([\w.]+)[=<>]", self.text[begin:])
        if assigned is not None and assigned[1] in FIELDS:
            self._fail(f"'{assigned[1]}' is a field", f"expected a colon: {assigned[1]}:…", begin)
        written = self._written(WORD)
        if not any(written.parts):
            self._fail("this word matches every message", "expected some text of it", begin, self.at)
        return Term(WORD, (Pattern(written.parts),))

    def _check_field(self, field: str, begin: int) -> None:
        if field.startswith(HEADER) and field != HEADER:
            return
        if field.startswith(ARGS) and all(field.split(".")):
            return
        if field in FIELDS and field not in ("args", "header"):
            return
        end = begin + len(field)
        if field.split(".")[0] == "args":
            self._fail("which argument is meant?", "expected its path, such as args.order.id:42", begin, end)
        if field.split(".")[0] == "header":
            self._fail("which header is meant?", "expected its name, such as header.tenant:acme", begin, end)
        near = near_miss(field, FIELDS)
        why = f"did you mean {near}:… ? " if near else "to search a text with a colon, put it in quotes; "
        self._fail(f"unknown field '{field}'", f"{why}fields: {', '.join(FIELDS)}", begin, end)

    def _value(self, field: str, *, listed: bool = False) -> TermValue:
        if listed:
            self._skip()
        written = self._written(field)
        if not listed and self.text[self.at : self.at + 1] == ",":
            self._fail("a comma stands only in a list or in quotes", f"several values: {field}:(a,b)", self.at)
        if field in TIMES:
            return self._time(field, written)
        if field in NUMBERS:
            return self._number(field, written)
        if field.startswith(ARGS) and written.op:
            return self._number(field, written)
        plain = written.plain
        if field == "lane" and plain == "running":  # as lists call it
            return Pattern((Lane.LEASED.value,))
        if field == "lane" and (len(written.parts) > 1 or written.parts[0] not in LANE_NAMES):
            near = near_miss("".join(written.parts), LANE_NAMES)
            meant = f"did you mean {near}? " if near else ""
            self._fail("there is no such lane", f"{meant}expected {', '.join(LANE_NAMES)}", *written[-2:])
        if field == "reason" and plain is not None and plain not in REASONS:
            near = near_miss(plain, REASONS)
            meant = f'did you mean {near}? Else write "{plain}"; ' if near else f'one of your own: "{plain}"; '
            self._fail(f"unknown reason '{plain}'", f"{meant}reasons: {', '.join(REASONS)}", *written[-2:])
        label, equals, _ = written.parts[0].partition("=")
        if field == "label" and not (equals and is_label_name(label)):
            meant = "expected NAME=VALUE, such as label:customer=7; label:customer=* is any customer"
            self._fail("which label is meant?", meant, *written[-2:])
        return Pattern(written.parts)

    def _written(self, field: str) -> _RawValue:
        begin = self.at
        op = self._op() if field in NUMBERS or field in TIMES or field.startswith(ARGS) else ""
        at, parts, quoted = self.at, [""], False
        while self.at < len(self.text):
            if self.text[self.at] == '"':
                parts[-1] += self._quoted()
                quoted = True
            elif word := _WORD.match(self.text, self.at):
                head, *tail = word[0].split("*")
                parts[-1] += head
                parts += tail
                self.at = word.end()
            else:
                break
        if self.at == at:
            self._fail(f"a value is missing after {field}:{op}", 'expected text; "" means none', begin)
        if len(parts) > 2:
            parts = [parts[0], *filter(None, parts[1:-1]), parts[-1]]
        return _RawValue(op, tuple(parts), quoted, begin, self.at)

    def _op(self) -> str:
        match = _OP.match(self.text, self.at)
        if match is None:
            return ""
        self.at = match.end()
        return match[0]

    def _quoted(self) -> str:
        match = _QUOTED.match(self.text, self.at)
        if match is None:
            self._fail("this quote is never closed", 'expected another "', self.at, self.at + 1)
        self.at = match.end()
        return _ESCAPED.sub(r"\1", match[1])

    def _number(self, field: str, written: _RawValue) -> Number:
        text = written.plain
        whole = field in NUMBERS
        if text is None or _NUMBER.fullmatch(text) is None or (whole and not text.isdigit()):
            expected = "a whole number" if whole else "a number"
            self._fail("no number", f"expected {expected}, such as {field}:>3", written.at, written.end)
        amount = Decimal(text).normalize() + 0  # turns -0 into 0
        return Number(written.op or "=", amount)

    def _time(self, field: str, written: _RawValue) -> Age | PointInTime:
        text, span = written.plain, (written.at, written.end)
        if not written.op or written.op == "=":
            self._fail("earlier or later than that?", f"expected <, <=, > or >=, such as {field}:<6h", *span)
        if text is not None:
            try:
                return Age(written.op, min(milliseconds(text), _AGE_MAX_MS))
            except ValueError:
                pass
            try:
                return PointInTime(written.op, max(0, round(parse_time(text).timestamp() * 1000)))
            except (ValueError, OverflowError):
                pass
        why = f"expected such as {field}:>2h, {field}:<1d12h or {field}:<2026-01-31T15:04:05Z"
        self._fail("neither an age nor a time", why, *span)

    def _skip(self) -> int:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.at

    def _peek(self) -> str:
        self._skip()
        return self.text[self.at : self.at + 1]

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self.at += 1
        return True

    def _is_word(self, word: str) -> bool:
        self._skip()
        match = _WORD.match(self.text, self.at)
        return match is not None and match[0].lower() == word

    def _word(self, word: str) -> bool:
        if not self._is_word(word):
            return False
        self.at += len(word)
        return True

    def _fail(self, what: str, why: str, at: int, end: int | None = None) -> NoReturn:
        if end is None:
            word = _WORD.match(self.text, at)
            end = word.end() if word else at + 1
        raise SelectorError(what, why, self.text, at, end)
