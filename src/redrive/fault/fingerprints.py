"""Compute fingerprints: 16 hex digits that are the same for two runs of one failure, and differ between failures."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TypeAlias

from .inspection import DEPTH_MAX, MEMBERS_MAX, ExceptionFacts, Inspection, members_of, message_of, storable
from .model import TEXT_MAX
from .templates import generalize
from .traceback import Stack, stack_of

NORMALIZED_FROM_MAX = 1_000  # most characters read of a text
NORMALIZED_MAX = 400  # most characters of the normalized text that count, as the lengths of values shift what follows
_CACHED_MAX = 1_024  # most texts, and most fingerprints, that are cached

# Quoted names of a program, a type or a schema, and the texts of error bodies and nested errors, are kept, since they
# distinguish failures. Other quoted parts are data.
_NAMERS = " named name attribute argument parameter field column constraint relation table module function class type "
_TELLERS = " error message msg code reason detail title error_description "
_TYPES = frozenset(
    re.findall(
        r"\w+",
        """NoneType bool bytes bytearray complex coroutine date datetime dict float function generator int integer list
        method module null number object set str string timedelta tuple type array boolean""",
    )
)
_CODERS = " http http/1.0 http/1.1 http/2 status code status_code statuscode errno signal error "
_PUNCTUATION = dict.fromkeys(map(ord, ".,:;!'\"`"))  # releases of a library change punctuation and the case of letters
_HEX = frozenset("0123456789abcdefABCDEF")
_TOP_DOMAINS = (
    "(?:com|net|org|io|dev|app|ai|co|cloud|internal|local|lan|corp|prod|staging|test|example|invalid|eu|uk|de|us|cn)"
)


def _unquote(match: re.Match[str]) -> str:
    quoted, text, end = match[1], match.string, match.end()
    before = text[max(0, match.start() - 32) : match.start()]
    if quoted in _TYPES or quoted.startswith("$"):  # "Expected `int`, got `str` - at `$.id`"
        return quoted
    if before[-1:] == "[" and _in_brackets(quoted, before, text[end : end + 1]):
        return quoted
    if quoted.isidentifier() and text.startswith((": [", ": {", " object"), end):
        return quoted
    word = re.search(r"(?<!\w)(\w++)(\W{0,4}+)\Z", before)
    if word is None:
        return "<q>"
    if f" {word[1]} " in _NAMERS and match[1].replace(".", "_").isidentifier():
        return match[0]
    in_a_body = f" {word[1]} " in _TELLERS and ":" in word[2]
    beside_a_code = before == f"({word[1]}, "  # as in `(1213, 'Deadlock found …')`
    in_an_error = word[2] == "(" and word[1].endswith(("Error", "Exception")) and " " in quoted
    return quoted if in_a_body or beside_a_code or in_an_error else "<q>"


def _in_brackets(quoted: str, before: str, after: str) -> bool:
    """True if the quoted part is a name, as in `schema['properties']['id']`, or a sentence in a validator's list."""
    if after == "]" and quoted.isidentifier():
        return before[-2:-1].isalnum() or before.endswith(("'][", '"]['))
    return before.endswith(": [") and quoted.endswith(".") and " " in quoted


def _unvalue(match: re.Match[str]) -> str:
    """Return a word with a digit as it is if it identifies the failure, such as the `404` of a status; of others only
    the part that does, such as `user` of `user42`; `<v>` for ids."""
    word = match[0]
    if word.isdigit():
        if len(word) > 3:
            return "<v>"
        before = match.string[max(0, match.start() - 16) : match.start()].rstrip(" :=(#-").rpartition(" ")[2]
        return word if f" {before.lstrip('[(').lower()} " in _CODERS else "<v>"
    head, tail = word.rstrip("0123456789"), word.lstrip("0123456789")
    if head.isalpha() and (len(word) < 4 or not _HEX.issuperset(head)):
        return f"{head}<v>"
    return f"<v>{tail}" if tail.isalpha() and len(tail) <= 2 and len(word) < 10 else "<v>"


# Patterns of the parts that vary between two runs of one failure, in the order in which they are replaced. A pattern
# runs only if its sign (a substring) occurs and its guard (a cheaper pattern) matches: most texts have few of these
# parts, and a substring is found 50 times faster. Numbers, ids, hex and times all become <v>: an id may be all digits
# today and hex tomorrow. Patterns start with a literal or a set if possible, which makes a search fast.
_Replacement: TypeAlias = str | Callable[[re.Match[str]], str]
_DATA: tuple[tuple[str, str, str, _Replacement], ...] = (
    # These parts are always data: pydantic's shortened input, SQLAlchemy's parameters, PostgreSQL's excerpt of the
    # statement with its values, arguments of a program.
    ("input_value=", "", r"(?s)input_value=.*?, input_type=", "input_value=<q>, input_type="),
    ("[parameters: ", "", r"(?s)\[parameters: .*?(?:\]\s*(?=\(Background)|\]?\Z)", ""),
    ("\nLINE ", "", r"\nLINE \d+: [^\n]*(?:\n *\^)?", ""),
    # Releases of urllib3 wrap the same errno in different classes.
    ("(Caused by ", "", r"(?s)\(Caused by .*?(\[Errno -?\d+\][\w ]*).*", r"(Caused by \1"),
    ("Command '[", "", r"(?s)Command '\[.*\]'(?= (?:returned|timed|died))", "Command <q>"),
)
_NORMAL: tuple[tuple[str, str, str, _Replacement], ...] = (
    ("://", "", r"""[A-Za-z][\w+.-]*+://[^\s'"<>)\]}]+""", "<url>"),
    ("@", "", r"[\w.+-]++@[\w-]+(?:\.[\w-]+)*", "<email>"),
    ("-", r"-[0-9a-fA-F]{4}-", r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?!\w)", "<v>"),
    (":", "", r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? +(?=\d|[JFMASOND][a-z]{2} )", ""),
    (":", "", r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*(?=[ -]+\d)", "0"),
    ("0x", "", r"<(?:\w+\.)*(\w+) object at 0x[0-9a-fA-F]+>", r"<\1>"),
    ("0x", "", r"0x[0-9a-fA-F]+", "<v>"),
    ("Connection(", "", r"(\w*Connection)\([^()]*\)", r"<\1>"),
    (
        ":",
        r":[0-9a-fA-F]{0,4}:",
        r"(?<![\w:])\[?(?:[0-9a-fA-F]{0,4}+:){2,7}+[0-9a-fA-F]{0,4}+(?![\w:])(?:\](?::\d+)?)?",
        "<v>",
    ),
    (
        ".",
        rf"\.(?:{_TOP_DOMAINS}|[\w-]+:\d)",
        rf"(?<![\w.-])(?:[\w-]++\.)+(?:{_TOP_DOMAINS}\b(?::\d+)?|[\w-]+:\d+)(?![\w(])",
        "<host>",
    ),
    ("localhost", "", r"localhost(?::\d+)?\b", "<host>"),
    (":", r":\d\d", r"(to|at|from|host) [A-Za-z][\w-]*+:\d{2,5}\b", r"\1 <host>"),
    ("_", r"_[A-Za-z]{14}", r"(?<![A-Za-z])([a-z]{2,5}_)(?=[a-z]*[A-Z])(?=[A-Z]*[a-z])[A-Za-z]{14,}(?!\w)", r"\1<v>"),
    ("<host>/", "", r"<host>(?:/(?:[\w.@+~%-]++|<v>)++)+", "<url>"),
    ("/", "", r"(?<![\w<>/])(?:~|\.{1,2}|[A-Za-z]:)?(?:/(?:[\w.@+~%-]++|<v>)++)+/?(?:\?[\w.@+~%=&<>-]+)?", "<path>"),
    ("/", "", r"(?<![\w<>/.-])(?!HTTP/)[\w.-]++(?:(?:/[\w.@+~%-]+){2,}|/[\w@+~%-]+\.\w{1,5}\b)", "<path>"),
    ("\\", "", r"(?<![\w<>])(?:[A-Za-z]:|\\)?(?:\\{1,2}[\w.@+~%-]+){2,}", "<path>"),
    ("'", "", r"'(?<![^\Wbruf]')(?<!\w[bruf]')((?:[^'\\\n]|\\.)*+)'(?!\w)", _unquote),
    ('"', "", r'"(?<![^\Wbruf]")(?<!\w[bruf]")((?:[^"\\\n]|\\.)*+)"(?!\w)', _unquote),
    ("`", "", r"`([^`\n]*+)`", _unquote),
    (" --", "", r"(?<= )--[a-z][\w-]*+", "<q>"),
    (")=(", "", r"\)=\([^()]*\)", ")=<q>"),
    ("", r"\d", r"(?<![A-Za-z0-9])[A-Za-z]*+\d[A-Za-z0-9]*+", _unvalue),
    ("<v>", r"[-+]<v>|<v>(?:[-+.,:_/ ]|e[-+])<v>", r"(?:(?<![\w>])[-+])?<v>(?:(?:[-+.,:_/ ]|e[-+])<v>)*+", "<v>"),
    ("-<v>", "", r"(?<![\w-])[A-Z]{1,4}-<v>", "<v>"),  # identifiers such as `SKU-17`
    (">, <", "", r"(<\w+>(?:: <\w+>)?)(?:, <\w+>(?:: <\w+>)?)+", r"\1"),
)
_Step: TypeAlias = tuple[str, re.Pattern[str] | None, re.Pattern[str], _Replacement]


@cache
def _steps(data: bool) -> tuple[_Step, ...]:
    """Return the patterns, compiled at the first fault: otherwise compiling would dominate the import."""
    return tuple(
        (sign, re.compile(guard) if guard else None, re.compile(pattern), replacement)
        for sign, guard, pattern, replacement in (_DATA if data else _NORMAL)
    )


@lru_cache(maxsize=_CACHED_MAX)
def _normalize(text: str) -> tuple[str, tuple[str, ...], bool]:
    """Return the text without its varying parts, the words that it quotes, and whether the text has no other words."""
    for sign, _, pattern, replacement in _steps(True):
        if sign in text:
            text = pattern.sub(replacement, text)
    quoted = tuple(re.findall(r"'(\w+)'", text)) if "'" in text else ()
    for sign, guard, pattern, replacement in _steps(False):
        if sign in text and (guard is None or guard.search(text)):
            text = pattern.sub(replacement, text)
    if len(text) >= NORMALIZED_MAX:  # a long quoted value was cut before its closing quote
        text = re.sub(r"""(?s)(?<!\w)['"].*\Z""", "<q>", text)
    text = " ".join(text.lower().translate(_PUNCTUATION).split())[:NORMALIZED_MAX]
    return text, quoted, re.search(r"[^\W\d_]{2}(?!\w*>)", text) is None


def fingerprint(error: str, text: str, places: tuple[str, ...] = (), related: tuple[str, ...] = ()) -> str:
    """Return 16 hex digits, the same for two runs of one failure.

    They depend on the class's name, the text without its varying parts (numbers, ids, hex, UUIDs, times, addresses,
    quoted values, hosts, paths, e-mail addresses), the `places` (file and function, no lines) and `related`: codes,
    causes, members.
    """
    return _digest(error, _normalize(text[:NORMALIZED_FROM_MAX])[0], places, related)


@lru_cache(maxsize=_CACHED_MAX)
def _digest(error: str, normalized: str, places: tuple[str, ...], related: tuple[str, ...]) -> str:
    from hashlib import blake2b  # imported late: it loads OpenSSL, which is slow

    parts = "\0".join((error, normalized, *places, *related))
    return blake2b(parts.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


@lru_cache(maxsize=_CACHED_MAX)
def _class(name: str) -> str:
    """Return a class's name as its library and its own name: releases move classes between modules.

    botocore makes classes for some of a service's codes, more with each release; the fingerprint has the code.
    """
    if name.startswith("botocore.errorfactory."):
        return "botocore.ClientError"
    library, _, rest = name.partition(".")
    return f"{library}.{rest.rpartition('.')[2]}"


def _added_by(text: str, stack: Stack) -> tuple[str, ...]:
    """Return the words that the fingerprint takes from the stack in addition to the text.

    Quoted words of the text are included if they are literals in the user's function: `row["price"]` is not
    `row["currency"]`. For a text without other words, the library function that raised it is included.
    """
    _, quoted, wordless = _normalize(text[:NORMALIZED_FROM_MAX])
    names = tuple([each for each in quoted if each in stack.names]) if quoted and stack.names else ()
    return (*names, stack.raised) if wordless and stack.raised else names


def fingerprint_of(inspection: Inspection, chain: list[ExceptionFacts], stack: Stack, depth: int = 0) -> str:
    """Return the fingerprint of an exception and its causes; of a group also its members, in any order and number."""
    seen, *causes = chain
    cls = type(seen.exception)
    text = generalize(seen.text, stack.templates, cls)
    # The innermost cause is the reason of the failure. If a library raised the exception, only the cause's code counts,
    # since releases differ in the rest.
    root = [f"{_class(each.known.name)} {each.code}" for each in causes[-1:] if each.code or not stack.raised]
    related = (seen.code, *root, *_added_by(text, stack))
    # The stack of an endless recursion ends at an arbitrary function of the recursion.
    places = stack.all_places if "RecursionError" in seen.known.errors else stack.places
    if not seen.known.group or depth >= DEPTH_MAX:
        return fingerprint(_class(seen.known.name), text, places, related)
    members = members_of(seen.exception)[:MEMBERS_MAX]
    prints = {fingerprint_of(inspection, inspection.chain(each), stack_of(each), depth + 1) for each in members}
    text = storable(message_of(seen.exception), TEXT_MAX)  # `seen.text` has the number of members
    text = generalize(text, stack.templates, cls)
    return fingerprint(_class(seen.known.name), text, places, (*related, *sorted(prints)))
