"""Hide credentials after the name of a scheme or command: `Bearer …`, `Basic …`, Digest's, `curl -u ann:…`."""

from __future__ import annotations

import re

from .formats import HIDDEN
from .plain import is_said_already

_SCHEMES = (
    "bearer|basic|digest|token|apikey|api-key|negotiate|ntlm|kerberos|hawk|oauth|dpop|mac|ssws|geniekey|key|vapid|"
    "aws4-hmac-sha256|aws4-ecdsa-p256-sha256|aws|signature|scram-sha-1|scram-sha-256|sharedkey|sharedkeylite|"
    "sharedaccesssignature|hmac-sha256|bot|jwt|secret|splunk|user|client"
)
SCHEME = re.compile(rf"(?:{_SCHEMES})[ \t]{{1,4}}(?=\S)", re.I)  # matches a scheme after the name of a header
_PARAMETER = r"[ \t]{0,4}[\w-]{1,64}[ \t]?=(?!=)[ \t]?(?:\\{0,7}\"[^\"\\\r\n]*+\\{0,7}\"|'[^'\r\n]*+'|[^\s,\"'\\]++)"
PARAMETERS = re.compile(rf",?{_PARAMETER}(?:,{_PARAMETER})*+")
CREDENTIAL = re.compile(r"[^\s\"'`,;<>)\]}\\]++")
_ATTRIBUTE = r"(?:Secure|HttpOnly|Partitioned)(?:;[ \t]{0,4})?"
COOKIES = re.compile(rf"(?:[^\s;,\"'=\\]{{1,256}}=[^\s;,\"'\\]*+(?:;[ \t]{{0,4}})?(?:{_ATTRIBUTE})*+)++", re.I)

# Schemes without the name of a header: the credential must look random, since prose has these words too.
_ALONE_WORDS = ("bearer", "basic", "token", "apikey", "api-key", "geniekey", "negotiate", "ntlm", "dpop", "ssws")
_ALONE = re.compile(rf"(?:{'|'.join(_ALONE_WORDS)})(?:[ \t]{{1,4}}|%20|\+|\\t)")
_ALONE_VALUE = re.compile(r"[^\s\"'`,;<>(){}\[\]\\]{6,16384}+")
_LEAST = {"token": 16}  # fewest characters of a credential after this word (after others: 6)
_WITH_PARAMETERS = re.compile(
    r"(?<![\w-])(?:digest|hawk|oauth|signature|mac|aws4-hmac-sha256|scram-sha-256)[ \t]{1,4}(?=[A-Za-z])", re.I
)
_PARAMETER_WORDS = ("digest ", "hawk ", "oauth ", "signature ", "mac ", "hmac-sha256 ", "scram-sha-256 ")
_PROOFS = re.compile(r"(?:response|signature|oauth_signature|oauth_token|mac|credential|p)[ \t]?=", re.I)
_ARGUMENTS = r"[\"',]{0,3}(?:\s{1,4}(?![\"']?-p)\S{1,200}){0,12}+\s{1,4}[\"']?"
_COMMANDS = tuple(
    (word, re.compile(rf"(?P<keep>{before})(?P<value>{value})", flags))
    for word, before, value, flags in (
        ("auth", r"\bAUTH (?:PLAIN|LOGIN|XOAUTH2|CRAM-MD5) ", r"[A-Za-z0-9+/=_-]{4,}+", 0),  # SMTP
        ("auth", r"\"AUTH\" (?:\"[^\"]{1,64}\" )?\"", r"[^\"\n]++", 0),  # Redis
        ("auth default ", r"\bAUTH default ", r"[^\s\"'`]++", 0),
        # as a command, with nothing after the credential: "AUTH failed" does not match
        ("auth ", r"(?:^|(?<=[>$#] ))AUTH ", r"(?=\S{0,200}(?:[\d_]|[^\w\s])|\S{12})[^\s\"'`]{6,}+(?=[ \t]*$)", re.M),
        ("mysql", rf"\bmysql\w{{0,12}}{_ARGUMENTS}-p[\"']?", r"[^\s\"'`]++", 0),
        ("mariadb", rf"\bmariadb[\w-]{{0,12}}{_ARGUMENTS}-p[\"']?", r"[^\s\"'`]++", 0),
        ("curl", r"(?:\s-u\s?|--(?:proxy-)?user[= ])[\"']?[^\s:\"']{1,100}:", r"[^\s\"']++", 0),
        ("sshpass", r"\bsshpass\s{1,4}-p\s?[\"']?", r"[^\s\"']++", 0),
        ("identified", r"\bidentified\s{1,4}by\s{1,4}(?:password\s{1,4})?[\"']", r"[^\"'\n]++", re.I),
        ("oracle", r"jdbc:oracle:[a-z]{1,8}:[^\s/@:]{1,64}/", r"[^\s@]{1,256}(?=@)", re.I),
    )
)


def hide_schemes(text: str, low: str) -> str:
    """Hide credentials after the name of a scheme or command; `low` is the text in lower case, of equal length."""
    if any(word in low for word in _ALONE_WORDS):
        text = _hide_alone(text, low)
    if any(word in low for word in _PARAMETER_WORDS):
        text = _hide_parameters(text)
    for word, form in _COMMANDS:
        if word in low:
            text = form.sub(_hide, text)
    return text


def _hide(match: re.Match[str]) -> str:
    return match[0] if is_said_already(match["value"]) else match["keep"] + HIDDEN


def _hide_alone(text: str, low: str) -> str:
    parts, at = [], 0
    for scheme in _ALONE.finditer(low):
        begin = scheme.start()
        if begin < at or (begin and (low[begin - 1].isalnum() or low[begin - 1] in "_-")):
            continue
        value = _ALONE_VALUE.match(text, scheme.end())
        if value and len(value[0]) >= _LEAST.get(scheme[0][:5], 6) and _is_random(value[0]):
            parts += [text[at : scheme.end()], HIDDEN]
            at = value.end()
    return "".join((*parts, text[at:])) if parts else text


def _is_random(value: str) -> bool:
    """True if the value looks random and not like a word: it has a digit, an inner capital, or a sign of base64."""
    inner = value.rstrip("=.:")
    return (
        "://" not in value
        and (
            (value.endswith("=") and not (inner.islower() and inner.isalpha()))  # Basic realm="…"
            or any(c.isdigit() or c in "+=~%" for c in inner)
            or (not inner.isupper() and any(c.isupper() for c in inner[1:]))
        )
    )


def _hide_parameters(text: str) -> str:
    parts, at = [], 0
    for scheme in _WITH_PARAMETERS.finditer(text):
        if scheme.start() < at:
            continue
        match = PARAMETERS.match(text, scheme.end())
        if match and _PROOFS.search(match[0]):
            parts += [text[at : scheme.end()], HIDDEN]
            at = match.end()
    return "".join((*parts, text[at:])) if parts else text
