"""Fingerprints: the same 16 hex digits for two runs of one failure, others for another failure."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TypeAlias

from .foreign import members_of, message_of, storable
from .looks import DEPTH_MAX, MEMBERS_MAX, Looks, Seen
from .stack import Stack, stack_of
from .values import TEXT_MAX

NORMALIZED_FROM_MAX = 1_000  # characters of a text that are normalized
NORMALIZED_MAX = 400  # characters of the result that count: the end moves with the length of what was replaced
_CACHED_MAX = 1_024  # texts, and as many fingerprints

# Names out of a program or a schema stay, and what an error body says: another one is another failure. Other quoted
# things are data.
_NAMERS = " named name attribute argument parameter field column constraint relation table module function class type "
_TELLERS = " error message msg code reason detail title error_description "
_CODERS = " http http/1.0 http/1.1 http/2 status code status_code statuscode errno signal error "
_HEX = frozenset("0123456789abcdefABCDEF")
_TOP_DOMAINS = (
    "(?:com|net|org|io|dev|app|ai|co|cloud|internal|local|lan|corp|prod|staging|test|example|invalid|eu|uk|de|us|cn)"
)


def _unquote(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - 32) : match.start()]
    word = re.search(r"(?<!\w)(\w++)(\W{0,4}+)\Z", before)
    if word is None:
        return "<q>"
    if f" {word[1]} " in _NAMERS and match[1].replace(".", "_").isidentifier():
        return match[0]
    in_a_body = f" {word[1]} " in _TELLERS and ":" in word[2]
    beside_a_code = before == f"({word[1]}, "  # `(1213, 'Deadlock found …')`
    return match[1] if in_a_body or beside_a_code else "<q>"


def _unvalue(match: re.Match[str]) -> str:
    """A word with a digit: `404` of a status stays, `user42` keeps its word and `30s` its unit; what else is an id."""
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


# What varies between two runs of one failure, in the order it is replaced. A pattern runs only where its sign occurs
# and its guard is found, a cheaper pattern that its match implies: most texts have few of these things, and a sign is
# found 50 times faster. Numbers, ids, hex and times all become <v>: an id may be all digits today and hex tomorrow.
# Patterns start with a literal or a set where they can, which is what makes a search fast.
_Replacement: TypeAlias = str | Callable[[re.Match[str]], str]
_NORMAL: tuple[tuple[str, str, str, _Replacement], ...] = (
    ("://", "", r"""[A-Za-z][\w+.-]*+://[^\s'"<>)\]}]+""", "<url>"),
    ("@", "", r"[\w.+-]++@[\w-]+(?:\.[\w-]+)*", "<email>"),
    ("-", r"-[0-9a-fA-F]{4}-", r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?!\w)", "<v>"),
    (":", "", r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? +(?=\d|[JFMASOND][a-z]{2} )", ""),
    (":", "", r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*(?=[ -]+\d)", "0"),
    ("0x", "", r"0x[0-9a-fA-F]+", "<v>"),
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
    ("/", "", r"(?<![\w<>/])(?:~|\.{1,2}|[A-Za-z]:)?(?:/[\w.@+~%-]+)+/?", "<path>"),
    ("/", "", r"(?<![\w<>/.-])(?!HTTP/)[\w.-]++(?:(?:/[\w.@+~%-]+){2,}|/[\w@+~%-]+\.\w{1,5}\b)", "<path>"),
    ("\\", "", r"(?<![\w<>])(?:[A-Za-z]:|\\)?(?:\\{1,2}[\w.@+~%-]+){2,}", "<path>"),
    ("'", "", r"'(?<![^\Wbruf]')(?<!\w[bruf]')((?:[^'\\\n]|\\.)*+)'(?!\w)", _unquote),
    ('"', "", r'"(?<![^\Wbruf]")(?<!\w[bruf]")((?:[^"\\\n]|\\.)*+)"(?!\w)', _unquote),
    ("`", "", r"`([^`\n]*+)`", _unquote),
    (")=(", "", r"\)=\([^()]*\)", ")=<q>"),
    ("", r"\d", r"(?<![A-Za-z0-9])[A-Za-z]*+\d[A-Za-z0-9]*+", _unvalue),
    (
        "<v>",
        r"[-+]<v>|<v>(?:[-+.,:_/ ]|e[-+])<v>",
        r"(?:(?<![\w>])[-+])?<v>(?:(?:[-+.,:_/ ]|e[-+])<v>)*+",
        "<v>",
    ),
    (">, <", "", r"(<\w+>(?:: <\w+>)?)(?:, <\w+>(?:: <\w+>)?)+", r"\1"),
)
_Step: TypeAlias = tuple[str, re.Pattern[str] | None, re.Pattern[str], _Replacement]


@cache
def _steps() -> tuple[_Step, ...]:
    """Compiled at the first fault, not at import, where they would cost more than all else here."""
    return tuple(
        (sign, re.compile(guard) if guard else None, re.compile(pattern), replacement)
        for sign, guard, pattern, replacement in _NORMAL
    )


@lru_cache(maxsize=_CACHED_MAX)
def _normalized(text: str) -> str:
    for sign, guard, pattern, replacement in _steps():
        if sign in text and (guard is None or guard.search(text)):
            text = pattern.sub(replacement, text)
    if len(text) >= NORMALIZED_MAX:  # a long quoted value was cut before its end
        text = re.sub(r"""(?s)(?<!\w)['"].*\Z""", "<q>", text)
    return " ".join(text.split())[:NORMALIZED_MAX]


def fingerprint(error: str, text: str, places: tuple[str, ...] = (), related: tuple[str, ...] = ()) -> str:
    """Return 16 hex digits, the same for two runs of one failure.

    They depend on the class's name, the text without what varies (numbers, ids, hex, UUIDs, times, addresses, quoted
    values, hosts, paths, e-mail addresses), the `places` (file and function, no lines) and what is `related`: codes,
    causes, members.
    """
    return _digest(error, _normalized(text[:NORMALIZED_FROM_MAX]), places, related)


@lru_cache(maxsize=_CACHED_MAX)
def _digest(error: str, normalized: str, places: tuple[str, ...], related: tuple[str, ...]) -> str:
    from hashlib import blake2b  # loads OpenSSL, which takes longer than all else that is imported here

    parts = "\0".join((error, normalized, *places, *related))
    return blake2b(parts.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def fingerprint_of(looks: Looks, chain: list[Seen], stack: Stack, depth: int = 0) -> str:
    """The fingerprint of an exception with its causes and, of a group, its members in any order and number."""
    seen, *causes = chain
    related = (seen.code, *[f"{each.known.name} {each.code}" for each in causes])
    # The stack of an endless recursion ends anywhere in its circle.
    places = stack.circle if "RecursionError" in seen.known.errors else stack.places
    if not seen.known.group or depth >= DEPTH_MAX:
        return fingerprint(seen.known.name, seen.text, places, related)
    members = members_of(seen.exception)[:MEMBERS_MAX]
    prints = {fingerprint_of(looks, looks.chain(each), stack_of(each), depth + 1) for each in members}
    text = storable(message_of(seen.exception), TEXT_MAX)  # without the number of members
    return fingerprint(seen.known.name, text, places, (*related, *sorted(prints)))
