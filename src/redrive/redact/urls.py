"""Hide secrets in URLs: passwords before the host, signatures and codes in the query, the paths of chat hooks.

A URL may also be within another one, percent-encoded once or more, or in JSON with `\\/` for a slash.
"""

from __future__ import annotations

import re

from .formats import HIDDEN
from .plain import is_said_already

_LEVELS = 5  # most percent-encodings of a URL within a URL
# Matches the start of an authority: `://`, `//` alone, or `://` percent-encoded. The scheme precedes the match.
_HEAD = re.compile(
    r":(?:\\{0,7}/){2}|(?<![:/\\\w])//(?=[^\s/@])|(?P<encoded>%(?P<more>(?:25){0,4})3a(?:/|%(?P=more)2f){2})", re.I
)
_RUN = re.compile(rf"(?:{_HEAD.pattern})[^\s\"'<>`]*+", re.I)
_SCHEME = re.compile(r"[a-z0-9+.-]*\Z", re.I)
_SCHEME_MAX = 40
_HOST_END = re.compile(r"[/?#\\]")
_PORT = re.compile(r"[^:]*:\d{0,5}")
# By the number of percent-encodings of a URL within another one: the end of the URL, its '@', and its ':'.
_ENCODED = tuple(
    tuple(re.compile(form, re.I) for form in (rf"[&;]|%{more}26", rf"@|%{more}40", rf":|%{more}3a"))
    for more in ("25" * level for level in range(_LEVELS))
)
# Words in the schemes of engines and brokers, in whose URLs the only '@' follows the password.
_SERVER_WORDS = """postgres redis valkey mysql mariadb mongodb amqp mssql oracle ldap smtp imap pop ftp nats kafka
    clickhouse cassandra snowflake cockroach memcache bolt neo4j couch influx rabbit stomp mqtt socks sqs db2 vertica
    trino presto jdbc"""
_SERVERS = _SERVER_WORDS.split()
_OWN_TOKEN = re.compile(r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[\w%.~+-]{12,}")
_WATCHER = re.compile(r"@[\w.-]{0,200}sentry[\w.:-]{0,200}/")  # a DSN of Sentry, whose user is a key

_SIGNERS = (
    "sig|signature|code|hmac|assertion|samlresponse|x-amz-(?:signature|credential|security-token)"
    "|x-goog-(?:signature|credential)"
)
_SIGNING = ("sig", "code=", "code%", "hmac", "assertion", "samlresponse", "x-amz-", "x-goog-")
_SIGNED = re.compile(
    rf"(?P<keep>(?:[?&#]|&amp;|\\u0026)(?:{_SIGNERS})=)(?!\*\*\*)(?P<value>[^\s\"'<>&#\\`]{{1,8192}}+)", re.I
)
_SIGNED_ENCODED = re.compile(
    rf"(?P<keep>%(?P<level>(?:25){{0,4}})(?:26|3f|23)(?:{_SIGNERS})(?:=|%(?P=level)3d))(?!\*\*\*)"
    r"(?P<value>(?:(?!%(?P=level)26)[^\s\"'<>&#\\`]){1,8192}+)",
    re.I,
)
_BARE_SIGNED = re.compile(
    r"(?P<keep>(?<![\w.-])(?:sig|x-amz-signature|x-amz-credential|x-goog-signature|x-goog-credential)=)(?!\*\*\*)"
    r"(?P<value>[^\s\"'<>&#\\`,;)]{8,8192}+)",
    re.I,
)
_NO_CODE = re.compile(r"\w{1,3}|[A-Za-z]{2}[-_][A-Za-z]{2}|\{[^}]*\}|%[a-z]")

_S = r"(?:\\{0,7}/|%(?:25){0,4}2f)"  # a slash, perhaps escaped or percent-encoded
_REST = r"(?!\*\*\*)[^\s\"'<>`,;)\]}]+"
_HOOKS = tuple(
    (word, re.compile(rf"({form})({_REST})", re.I))
    for word, form in (
        ("hooks.slack", rf"hooks\.slack(?:-gov)?\.com{_S}(?:services|workflows|triggers){_S}"),
        ("discord", rf"discord(?:app)?\.com{_S}api{_S}(?:v\d{{1,2}}{_S})?webhooks{_S}"),
        ("webhook.office", rf"webhook\.office\.com{_S}webhookb2{_S}"),
        ("office", rf"outlook\.office(?:365)?\.com{_S}webhook{_S}"),
        ("chat.googleapis", rf"chat\.googleapis\.com{_S}v\d{_S}spaces{_S}"),
        ("logic.azure", rf"logic\.azure\.com(?::443)?{_S}workflows{_S}"),
        ("powerplatform", rf"api\.powerplatform\.com(?::443)?{_S}"),
        ("hooks.zapier", rf"hooks\.zapier\.com{_S}hooks{_S}catch{_S}"),
        ("ifttt", rf"maker\.ifttt\.com{_S}(?:trigger{_S}[^\s/]{{1,100}}{_S}(?:json{_S})?with{_S}key|use){_S}"),
        ("telegram", rf"api\.telegram\.org{_S}(?:file{_S})?bot"),
        ("pagerduty", rf"events\.(?:eu\.)?pagerduty\.com{_S}integration{_S}"),
        ("make.com", rf"hook\.[a-z]{{2}}\d\.make\.com{_S}"),
        ("hooks", rf"{_S}hooks{_S}(?=[a-z0-9]{{26}}(?![a-z0-9])|[A-Za-z0-9]{{17}}/[A-Za-z0-9]{{20}})"),
        ("webhooks", rf"{_S}api{_S}webhooks{_S}(?=\d{{10}})"),
    )
)


def hide_urls(text: str, low: str) -> str:
    """Hide the secrets in the URLs of a text; `low` is the text in lower case."""
    if "//" in low or "3a%" in low or "/\\/" in low or ":\\" in low:
        if "@" in text or "40" in text:
            text = _RUN.sub(_hide_users, text)
        for word, form in _HOOKS:
            if word in low:
                text = form.sub(rf"\1{HIDDEN}", text)
    if any(word in low for word in _SIGNING):
        text = _SIGNED_ENCODED.sub(_hide_signature, _SIGNED.sub(_hide_signature, text))
        text = _BARE_SIGNED.sub(rf"\g<keep>{HIDDEN}", text)
    return text


def _hide_signature(match: re.Match[str]) -> str:
    if match["keep"].lower().endswith(("code=", "code%3d")) and _NO_CODE.fullmatch(match["value"]):
        return match[0]
    return match["keep"] + HIDDEN


def _hide_users(match: re.Match[str]) -> str:
    """Hide the passwords in a match: a run of characters that contains one or more authorities."""
    run, parts, at = match[0], [], 0
    scheme = _scheme(match.string[max(0, match.start() - _SCHEME_MAX) : match.start()])
    heads = list(_HEAD.finditer(run))
    for number, head in enumerate(heads):
        end = heads[number + 1].start() if number + 1 < len(heads) else len(run)
        rest = run[head.end() : end]
        hidden = _hide_encoded(rest, head["more"]) if head["encoded"] else _hide_user(rest, scheme)
        parts += [run[at : head.end()], hidden]
        at, scheme = end, _scheme(rest[-_SCHEME_MAX:])
    return "".join((*parts, run[at:]))


def _scheme(before: str) -> str:
    match = _SCHEME.search(before)
    return match[0].lower() if match else ""


def _hide_user(rest: str, scheme: str) -> str:
    """Return `rest`, which follows `scheme://`, with its password hidden."""
    if "@" not in rest:
        return rest
    end = _HOST_END.search(rest)
    host_end = end.start() if end else len(rest)
    server = any(word in scheme for word in _SERVERS)
    at = rest.rfind("@", 0, host_end)
    if at < 0 and (":" not in rest[:host_end] or (_PORT.fullmatch(rest, 0, host_end) and not server)):
        return rest  # no password: the '@' is in the path or the query
    if server or at < 0:
        at = rest.rfind("@")
    user, colon, password = rest[:at].partition(":")
    if colon:
        return f"{user}:{HIDDEN}{rest[at:]}" if not is_said_already(password.strip("[]<>")) else rest
    key = _OWN_TOKEN.fullmatch(user) or (user and _WATCHER.match(rest, at) and not is_said_already(user))
    return f"{HIDDEN}{rest[at:]}" if key and "http" in scheme else rest


def _hide_encoded(rest: str, more: str) -> str:
    """Hide the password after a percent-encoded `://`; `more` has "25" once for each further encoding."""
    ends, ats, colons = _ENCODED[len(more) // 2]
    end = ends.search(rest)
    value, more = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
    colon, at = colons.search(value), max((match.start() for match in ats.finditer(value)), default=-1)
    if colon is None or colon.end() > at:
        return rest
    return f"{value[: colon.end()]}{HIDDEN}{value[at:]}{more}"
