"""Recognize well-known phrases in error texts: the last resort, since texts are written for people."""

from __future__ import annotations

import re

from .known_errors import kind_of_status
from .model import Kind

# Patterns are stored as text, which `re` compiles and caches at first use, to keep the import fast.
_QUOTA = r"(?i)quota[ _-]?(?:\w+ ){0,3}exceeded|exceeded [^.\n]{0,40}quota|(?:insufficient|over)[ _-]?quota"
_STATUS = r"(?i)\b(?:http|status)(?:/\d(?:\.\d)?)?(?:[ _-]?(?:code|error|status))?\W{1,3}([45]\d\d)\b"
_TOO_MUCH = (
    r"(?i)too many requests|\brate[ _-]?limit(?:ed|ing|er|[ _-]?exceeded|[ _-]?reached)?\b|\bthrottl(?:ed|ing)\b"
)
# A bare number is a status if the words around it say so; otherwise it is a count, an amount or part of a name. At the
# end of a message the words before it must be clearer: "failed: 404" may be the number of failures.
_ANSWERED = "code|response|returned|returns|responded|replied|answered|received|got|gave"
_BY_WHOM = r"(?:(?:a|an|with|by|code|error|status)\W{1,2}){0,2}"
_AFTER = (
    r"(?=\W*$|\s*[:;)\]}>\"'(\[{!?-](?!\d)|[.,](?:\s|$)(?!\s*\d)"
    r"|\s(?:errors?|responses?|status|client|from|by|on|when|while|after|again|too|resource_exhausted"
    r"|for (?:url|http|/|get|post|put))\b"
)
_BARE_429 = rf"(?i)(?:^\W*|(?:error|\b(?:errors|{_ANSWERED}|failed|refused|rejected))\W{{1,3}}{_BY_WHOM})429{_AFTER})"
_BARE_STATUS = (
    rf"(?i)(?:^[\s(\[{{<\"']*|(?:error|\b(?:{_ANSWERED}))\W{{1,3}}{_BY_WHOM}"
    rf"|\b(?:failed|refused|rejected)(?:\s\(|\s(?:with|by)\W{{1,2}}{_BY_WHOM}))(40[0134]|503)(?!\s*(?:\(of\b|[%€$£])){_AFTER}"
    r"|\s(?:bad request|unauthori[sz]ed|forbidden|not found|service unavailable|server)\b)"
)
_TOO_LATE = r"(?i)\btimed?[ -]?out\b|\bdeadline exceeded\b"
_PASSING = (
    r"(?i)\bconnection (?:\w+ ){0,2}(?:reset|refused|aborted|closed|lost|dropped)\b|\bbroken pipe\b|\bgone away\b"
    r"|\b(?:temporary|transient) (?:failure|error)\b|\btemporarily unavailable\b|\btry again later\b|\bbad gateway\b"
    r"|(?<!\bnot )(?<!\bnon-)\btemporary(?:\s*(?:$|[:;,.!?)\]}\"'])|(?: \w+){0,2} (?:failures?|errors?|problems?"
    r"|issues?|outages?|glitch|hiccup|faults?|interruption|disruption|overload|downtime|maintenance)\b)"
    r"|\b(?:service|server) (?:\w+ )?unavailable\b|\b(?:database|table)(?: \w+)? is locked\b"
    r"|\bdeadlock (?:found|detected)\b|\b(?:host|network) (?:is )?unreachable\b|\bno route to host\b"
)
# Permanent failures: a phrase of a server alone, or after plain words only. A message about a missing thing may have
# been sent before the thing exists, and a missing part of a network may return.
_NETWORK = "hosts?|hostname|server|node|address|domain|name|peer|route|leader|master|primary|replica|shard|broker|lock"
_PLAIN = rf"(?!(?:[a-z]+ ){{0,5}}(?:{_NETWORK})\b)(?:[a-z]+ ){{0,5}}"
_FOR_GOOD = (
    r"(?i)\bunauthori[sz]ed\b"
    # Not as an adjective ("forbidden words"), nor negated.
    r"|(?<!\bnot )(?<!\blonger )(?<!-)\bforbidden"
    r"(?=\s*(?:$|[:;,.!?()\[\]{}<>=\"'–—]|-(?!\w))|\s(?:for|to|by|from|on)\b)"
    r"|(?:^|[:;,.!?()\[\]{}<>=]|\s[–—-])\s*[\"']?(?:4\d\d )?"
    rf"(?:validation (?:error|failed)\b|{_PLAIN}not[ -]found(?=\s*(?:$|[:;,.!?()\[\]{{}}<>=\"'–—-])))"
)
# A pattern runs only if its stem occurs: most texts have none, and a substring is found 50 times faster.
_BY_TEXT: tuple[tuple[str, str, Kind], ...] = (
    ("quota", _QUOTA, Kind.QUOTA),
    ("too many", _TOO_MUCH, Kind.THROTTLED),
    ("rate", _TOO_MUCH, Kind.THROTTLED),
    ("throttl", _TOO_MUCH, Kind.THROTTLED),
    ("429", _BARE_429, Kind.THROTTLED),
    ("out", _TOO_LATE, Kind.TIMEOUT),
    ("deadline", _TOO_LATE, Kind.TIMEOUT),
    ("connection", _PASSING, Kind.TRANSIENT),
    ("tempor", _PASSING, Kind.TRANSIENT),
    ("transient", _PASSING, Kind.TRANSIENT),
    ("unavailable", _PASSING, Kind.TRANSIENT),
    ("unreachable", _PASSING, Kind.TRANSIENT),
    ("gateway", _PASSING, Kind.TRANSIENT),
    ("away", _PASSING, Kind.TRANSIENT),
    ("again", _PASSING, Kind.TRANSIENT),
    ("locked", _PASSING, Kind.TRANSIENT),
    ("deadlock", _PASSING, Kind.TRANSIENT),
    ("pipe", _PASSING, Kind.TRANSIENT),
    ("route", _PASSING, Kind.TRANSIENT),
    ("not found", _FOR_GOOD, Kind.PERMANENT),
    ("validation", _FOR_GOOD, Kind.PERMANENT),
    ("unauthori", _FOR_GOOD, Kind.PERMANENT),
    ("forbidden", _FOR_GOOD, Kind.PERMANENT),
)


def kind_of_text(text: str, *, of_os: bool = False) -> Kind | None:
    """Return the kind for an HTTP status or a well-known phrase in the text; None if there is neither.

    `of_os`: the text is that of one of Python's own OSErrors, in which a bare number is not a status, and "forbidden"
    is not a server's word.
    """
    low = text.lower()
    if ("http" in low or "status" in low) and (match := re.search(_STATUS, text)):
        return Kind.QUOTA if over_quota(text) else kind_of_status(int(match[1]), None)
    if not of_os and ("40" in low or "503" in low) and (match := re.search(_BARE_STATUS, text)):
        return Kind.QUOTA if over_quota(text) else kind_of_status(int(match[1]), None)
    for stem, pattern, kind in _BY_TEXT:
        if stem in low and not (of_os and stem == "forbidden") and re.search(pattern, text):
            return kind
    return None


def over_quota(text: str) -> bool:
    """True if the text says, in any case of letters, that a quota is exhausted."""
    return "quota" in text.lower() and re.search(_QUOTA, text) is not None
