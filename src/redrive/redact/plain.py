"""Recognize values that are not secrets despite a secret's name: placeholders, prose, paths, expressions of code."""

from __future__ import annotations

import re

_LITERAL_WORDS = "none null nil true false undefined empty nan str int bool bytes float object string"
LITERALS = frozenset(_LITERAL_WORDS.split())
PLACEHOLDER = re.compile(
    r"\*{2,}\d{0,6}[^\w\s]{0,8}"  # the text by which redrive replaces a secret
    r"|[\w.-]{0,24}\*{3,}[\w.-]{0,6}"  # a key as services abbreviate it: sk_live_****cdef
    r"|<?\[?\(?(?:redacted|hidden|masked|filtered|removed|secret hidden)\)?\]?>?|x{3,}|\w{0,6}_?…|\.{2,}"
    r"|\$\w+|\$?\{{1,2} ?[\w.!:()\[\]]* ?\}{0,2}|%\(\w+\)[a-z]|%[a-z]|%\w+%|\?|:[a-z_]+"  # templates
    r"|<class '[^']*'>?|type\(.*",
    re.I,
)
PATH = re.compile(
    r"(?:~/|\.{1,2}/|[A-Za-z]:[\\/]|/(?:app|bin|data|dev|etc|home|lib|mnt|opt|private|proc|root|run|secrets|srv|sys|tmp"
    r"|usr|var|vault|workspace|Users|Library)/)[\w./\\-]+"
)
CALL = re.compile(r"(?:await )?[a-z_]\w*(?:\.\w+)*\([^!@#$%^&*]*")
COUNT = re.compile(r"\d[\d,.]{0,8}")
METAVAR = re.compile(r"[A-Z][A-Z_]*|<[^>]*>|\[[^\]]*\]?|\{[^}]*\}?|-.*")  # a placeholder in a usage text: --token TOKEN
_SENTENCE = re.compile(r"[A-Z][\w',-]*(?: [\w'\",()-]+){2,40}[.!]")  # a validator's message: "This field is required."
_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_MORE_WORDS = re.compile(r"[,;.]?\s{1,2}[A-Za-z(\"'`]|[.,;:!]?\s*\Z")
# Words that begin a sentence about a name and are not its value; those of the second set only if more words follow.
_ALWAYS = """is are was were be been has have had must should shall may might could would does did do not no missing
    required expected unexpected invalid expired unsupported incorrect wrong malformed denied failed cannot can can't
    don't doesn't isn't wasn't hasn't too the an this that these it its for from with without or but if when while than
    then ensure please neither either and already never only at least most mismatch rejected refused"""
_BEFORE_WORDS = """a in on to by as of up field fields value values input string str int integer number boolean bytes
    type object list dict array token tokens password passwords secret key keys header headers cookie cookies
    credentials got given used using found after before unknown valid error failure bad empty default optional unset
    your you we i authentication login signature permission option flag"""
PROSE = frozenset(_ALWAYS.split())
PROSE_BEFORE_WORDS = frozenset(_BEFORE_WORDS.split())


def is_said_already(value: str) -> bool:
    """True if a value is empty, none, already hidden, or a placeholder."""
    value = value.strip()
    return not value or value.lower() in LITERALS or PLACEHOLDER.fullmatch(value) is not None


def is_message(value: str) -> bool:
    """True if a quoted value is a validator's message about the field."""
    return len(value) <= 300 and _SENTENCE.fullmatch(value.strip()) is not None


def begins_prose(text: str, at: int, value: str) -> bool:
    """True if `value`, which is at `at` in the text, is the first word of a sentence."""
    word = _WORD.match(value)
    if word is None or len(word[0]) < len(value.rstrip(",.;:!)")):
        return False
    low = word[0].lower()
    return low in PROSE or (low in PROSE_BEFORE_WORDS and _MORE_WORDS.match(text, at + len(word[0])) is not None)
