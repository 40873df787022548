"""Secrets that must never be shown, the shapes that they stand in, and texts that must never be changed.

All are drawn from a seed. No canary is a real secret: the formats are those that providers publish.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import shlex
import string
import uuid
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote

ALNUM = string.ascii_letters + string.digits
LOWER = string.ascii_lowercase + string.digits
UPPER = string.ascii_uppercase + string.digits
HEX = "0123456789abcdef"
URLSAFE = ALNUM + "_-"


class Canary(NamedTuple):
    """A secret; `bare`: it is known by its own form, without a word beside it."""

    value: str
    bare: bool = False


def canaries(seed: int) -> list[Canary]:
    """Sixty: a third are passwords as people and generators make them, the others tokens of providers."""
    draw = random.Random(f"canaries-{seed}")

    def of(characters: str, count: int) -> str:
        return "".join(draw.choices(characters, k=count))

    def slack(kind: str) -> str:
        return f"xox{kind}-{of(string.digits, 12)}-{of(string.digits, 12)}-{of(ALNUM, 24)}"

    passwords = [
        f"hunter{of(LOWER, 4)}2",
        of(string.ascii_lowercase, 14),
        of(LOWER, 12),
        of(ALNUM, 16),
        of(ALNUM, 32),
        of(HEX, 32),
        of(HEX, 64),
        of(string.digits, 10),
        f"{of(LOWER, 5)}/{of(LOWER, 5)}",
        f"{of(LOWER, 5)}@{of(LOWER, 5)}",
        f"{of(LOWER, 5)}:{of(LOWER, 5)}",
        f"{of(LOWER, 5)}#{of(LOWER, 5)}",
        f"{of(LOWER, 5)}%{of(LOWER, 5)}",
        f"/{of(LOWER, 3)}@{of(LOWER, 3)}:{of(LOWER, 3)}#{of(LOWER, 3)}%{of(LOWER, 3)}",
        f"{of(LOWER, 4)}&{of(LOWER, 4)};{of(LOWER, 4)},{of(LOWER, 4)}",
        f"{of(LOWER, 4)}!{of(LOWER, 4)}$%^*({of(LOWER, 4)})",
        f"{of(LOWER, 6)}=={of(LOWER, 6)}",
        f"pä{of(LOWER, 4)}ß{of(LOWER, 6)}ю",
        str(uuid.UUID(int=draw.getrandbits(128), version=4)),
        base64.b64encode(draw.randbytes(30)).decode(),
    ]
    tokens = [
        f"AKIA{of(UPPER, 16)}",
        f"ASIA{of(UPPER, 16)}",
        f"ABSK{of(ALNUM, 120)}",
        *(f"gh{kind}_{of(ALNUM, 36)}" for kind in "pousr"),
        f"github_pat_{of(ALNUM, 22)}_{of(ALNUM, 59)}",
        f"glpat-{of(URLSAFE, 20)}",
        f"glrt-{of(URLSAFE, 20)}",
        slack("b"),
        slack("p"),
        f"xapp-1-{of(UPPER, 11)}-{of(string.digits, 13)}-{of(LOWER, 64)}",
        f"sk_live_{of(ALNUM, 24)}",
        f"rk_test_{of(ALNUM, 24)}",
        f"whsec_{of(ALNUM, 32)}",
        f"AIza{of(URLSAFE, 35)}",
        f"ya29.{of(URLSAFE, 60)}",
        f"GOCSPX-{of(URLSAFE, 28)}",
        f"SG.{of(URLSAFE, 22)}.{of(URLSAFE, 43)}",
        f"{of(ALNUM, 3)}8Q~{of(ALNUM, 34)}",
        f"{of(ALNUM, 76)}AZDO{of(ALNUM, 4)}",
        f"SK{of(HEX, 32)}",
        f"npm_{of(ALNUM, 36)}",
        f"pypi-AgEIcHlwaS5vcmc{of(URLSAFE, 70)}",
        f"dckr_pat_{of(URLSAFE, 27)}",
        f"hvs.{of(URLSAFE, 92)}",
        f"dop_v1_{of(HEX, 64)}",
        f"dapi{of(HEX, 32)}",
        f"shpat_{of(HEX, 32)}",
        f"sk-proj-{of(URLSAFE, 40)}7T3BlbkFJ{of(URLSAFE, 40)}",
        f"sk-ant-api03-{of(URLSAFE, 90)}1AA",
        f"hf_{of(string.ascii_letters, 34)}",
        f"{of(string.digits, 10)}:AA{of(URLSAFE, 33)}",
        f"M{of(ALNUM, 23)}.{of(ALNUM, 6)}.{of(ALNUM, 38)}",
        f"{of(HEX, 32)}-us{of('123456789', 1)}",
    ]
    found = [*map(Canary, passwords), *(Canary(token, bare=True) for token in tokens)]
    return [*found, *(Canary(of(ALNUM + "+/", 40)) for _ in range(60 - len(found)))]


# -- shapes


def jwt(value: str) -> str:
    """An unsigned-looking JSON Web Token that carries the value."""
    parts = ({"alg": "HS256", "typ": "JWT"}, {"sub": value, "exp": 1_700_000_000})
    written = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join((*written, base64.urlsafe_b64encode(hashlib.sha256(value.encode()).digest()).rstrip(b"=").decode()))


def pem(value: str) -> str:
    """A private key in PEM whose bytes are made of the value."""
    data = base64.encodebytes((value * 20).encode()).decode()
    return f"-----BEGIN RSA PRIVATE KEY-----\n{data}-----END RSA PRIVATE KEY-----"


def word(value: str) -> str:
    """As an unquoted value, where it can be one."""
    return value if not set(value) & set(" \"'`\\") else json.dumps(value)


def url(value: str) -> str:
    return quote(value, safe="")


def basic(value: str) -> str:
    return base64.b64encode(f"ann:{value}".encode()).decode()


def hook(value: str) -> str:
    return url(value).replace("%", "x")


class Shape(NamedTuple):
    """A text that holds a secret; `written` is how the secret is written in it."""

    name: str
    text: Callable[[str], str]
    written: Callable[[str], str] = str


SHAPES = (
    Shape("variable", lambda v: f"password={word(v)}"),
    Shape("environment", lambda v: f"PATH=/bin DB_PASSWORD={word(v)} HOME=/root"),
    Shape("yaml", lambda v: f"host: db\npassword: {word(v)}\nport: 5432"),
    Shape("json", lambda v: json.dumps({"user": "ann", "password": v}), lambda v: json.dumps(v)[1:-1]),
    Shape("python", lambda v: repr({"user": "ann", "password": v}), lambda v: repr(v)[1:-1]),
    Shape("arrow", lambda v: f'["password"] => "{v}"'),
    Shape("ruby", lambda v: f'{{:user=>"ann", :password=>"{v}"}}'),
    Shape("flag", lambda v: f"mysqldump --user ann --password {shlex.quote(v)} shop", shlex.quote),
    Shape("flag with =", lambda v: f"psql --dbname shop --password={word(v)} --quiet"),
    Shape("flag in a list", lambda v: f"Command {['mysql', '--password', v, 'shop']} returned non-zero exit status 1."),
    Shape("bearer", lambda v: f"Authorization: Bearer {url(v)}", url),
    Shape("basic", lambda v: f"sent Authorization: Basic {basic(v)} to the API", basic),
    Shape("token scheme", lambda v: f"Authorization: Token {url(v)}", url),
    Shape("apikey scheme", lambda v: f"> authorization: ApiKey {basic(v)}", basic),
    Shape("digest", lambda v: f'Authorization: Digest username="ann", realm="r", nonce="n1", uri="/", response="{v}"'),
    Shape(
        "sigv4",
        lambda v: (
            "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20260101/eu-central-1/s3/aws4_request, "
            f"SignedHeaders=host;x-amz-date, Signature={url(v)}"
        ),
        url,
    ),
    Shape("header in json", lambda v: json.dumps({"authorization": f"Bearer {v}"}), lambda v: json.dumps(v)[1:-1]),
    Shape("header in a tuple", lambda v: repr([("accept", "*/*"), ("authorization", f"Bearer {v}")])),
    Shape("key header", lambda v: f"X-Api-Key: {word(v)}"),
    Shape("cookie", lambda v: f"Cookie: theme=dark; session={url(v)}; lang=de", url),
    Shape("set-cookie", lambda v: f"Set-Cookie: sid={url(v)}; Path=/; HttpOnly; SameSite=Lax", url),
    Shape("postgres url", lambda v: f"cannot reach postgresql://ann:{url(v)}@db.example.com:5432/shop?schema=x", url),
    Shape("redis url", lambda v: f"redis://:{url(v)}@cache:6379/0", url),
    Shape("https userinfo", lambda v: f"clone https://ann:{url(v)}@git.example.com/shop.git failed", url),
    Shape(
        "url in a url",
        lambda v: "sqs://eu-central-1/shop?triage=" + quote(f"postgresql://ann:{url(v)}@db/x", safe="") + "&poll=5",
        lambda v: quote(url(v), safe=""),
    ),
    Shape("sas", lambda v: f"https://shop.blob.core.windows.net/c/b?sv=2022-11-02&sp=r&sig={url(v)}&se=2026", url),
    Shape("presigned", lambda v: f"https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Signature={url(v)}", url),
    Shape("session token", lambda v: f"https://b.s3.amazonaws.com/k?X-Amz-Security-Token={url(v)}&x=1", url),
    Shape("oauth code", lambda v: f"GET https://shop.example.com/callback?code={url(v)}&state=s1 500", url),
    Shape("access token", lambda v: f"https://api.example.com/v1/me?access_token={url(v)}#top", url),
    Shape("slack hook", lambda v: f"POST https://hooks.slack.com/services/T0AB1CD2E/B0AB1CD2E/{hook(v)}", hook),
    Shape("discord hook", lambda v: f"https://discord.com/api/webhooks/1100110011001100110/{hook(v)} said 429", hook),
    Shape(
        "teams hook", lambda v: f"https://shop.webhook.office.com/webhookb2/8a1b@9c2d/IncomingWebhook/{hook(v)}/x", hook
    ),
    Shape("private key", lambda v: f"cannot load key\n{pem(v)}\nof the app", lambda v: pem(v).split("\n")[1][:40]),
    Shape("bare jwt", lambda v: f"got {jwt(v)} from the issuer", lambda v: jwt(v).split(".")[1]),
    Shape("plural list", lambda v: json.dumps({"passwords": [v, "old one"]}), lambda v: json.dumps(v)[1:-1]),
    Shape("plural", lambda v: f"tokens={word(v)}"),
    Shape(
        "escaped json",
        lambda v: json.dumps(json.dumps({"client_secret": v})),
        lambda v: json.dumps(json.dumps(v))[3:-3],
    ),
    Shape("xml", lambda v: f"<db><user>ann</user><password>{xml(v)}</password></db>", lambda v: xml(v)),
    Shape("name and value", lambda v: json.dumps({"name": "DB_PASSWORD", "value": v}), lambda v: json.dumps(v)[1:-1]),
    Shape("odbc", lambda v: f"Driver=x;Server=db;Uid=ann;Pwd={odbc(v)};Encrypt=yes", lambda v: odbc(v)),
    Shape(
        "azure", lambda v: f"AccountName=shop;AccountKey={azure(v)};EndpointSuffix=core.windows.net", lambda v: azure(v)
    ),
    Shape(
        "form",
        lambda v: f'--b1\r\nContent-Disposition: form-data; name="password"\r\n\r\n{v}\r\n--b1--\r\n',
    ),
    Shape("form encoded", lambda v: f"grant_type=password&username=ann&password={url(v)}&scope=all", url),
    Shape("sql", lambda v: f"syntax error in: CREATE USER ann PASSWORD '{v.replace(chr(39), chr(39) * 2)}'"),
    Shape("sentry", lambda v: f"Sentry responded 403: https://{url(v)}@o42.ingest.sentry.io/4711", url),
    Shape("mysql", lambda v: f"mysqldump --host db -uann -p{shlex.quote(v)} shop: exit 2", shlex.quote),
    Shape("redis as a user", lambda v: f"> AUTH default {word(v)}"),
    Shape("docker", lambda v: json.dumps({"auths": {"https://i.example.com": {"auth": basic(v)}}}), basic),
    Shape("said in quotes", lambda v: f"refused: the password was {v!r}", lambda v: repr(v)[1:-1]),
    Shape("next line", lambda v: f"psql --host db --password \\\n  {shlex.quote(v)} shop", shlex.quote),
    Shape("assigned on the next line", lambda v: f"password=\\\n{word(v)}"),
    Shape("two words", lambda v: f"pass word: {word(v)}"),
    Shape("german", lambda v: f"kennwort={word(v)}"),
    Shape("camel case", lambda v: f"Client(id='ann', clientSecret={v!r}, retries=3)", lambda v: repr(v)[1:-1]),
)

# Where prose, names and ids stand as well, so that only what looks like no word is known for a secret.
LOOKS = (
    Shape("token as user", lambda v: f"clone https://{url(v)}@git.example.com/shop.git failed", url),
    Shape("redis command", lambda v: f"> AUTH {word(v)}"),
    Shape("said", lambda v: f"the token is {word(v)}, code 3"),
    Shape("quoted field", lambda v: f"bad cookie {json.dumps({'session': v})}", lambda v: json.dumps(v)[1:-1]),
)
FIELDS = ("session", "signature", "sig", "bearer", "csrf", "xsrf", "dsn", "iban", "card_number", "cardNumber")


def looks_drawn(value: str) -> bool:
    """Whether a password looks like no word of a language."""
    return len(value) >= 12 and any(c.isdigit() for c in value) and any(c.isalpha() for c in value)


def xml(value: str) -> str:
    return value.replace("&", "&amp;").replace("<", "&lt;")


def odbc(value: str) -> str:
    return value.replace(";", "_").replace(",", "_").replace("&", "_").replace(")", "_")


def azure(value: str) -> str:
    return base64.b64encode(value.encode() * 3).decode()


def leaked(secret: str, text: str) -> str | None:
    """The longest part of the secret, of eight characters or more, that the text shows; shorter ones in whole."""
    least = min(len(secret), 8)
    for begin in range(len(secret) - least + 1):
        part = secret[begin : begin + least]
        if part in text:
            return part
    return None
