"""Texts that hold no secret, though some hold a telling word: none of them may be changed."""

from __future__ import annotations

import base64
import gzip
import json
import random
import string
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parents[2] / "data" / "fingerprints"
HEX = "0123456789abcdef"
LOWER = string.ascii_lowercase + string.digits

PROSE = """\
unexpected token at line 3
Unexpected token < in JSON at position 0
SyntaxError: Unexpected token: punc (})
syntax error near unexpected token `newline'
Unrecognized token 'tru': was expecting ('true', 'false' or 'null')
no token left
no tokens left in the bucket; next one in 3 s
password is required
the password must have at least 12 characters
password: This field is required.
{'password': ['This field may not be blank.']}
password: field required (type=value_error.missing)
token: Input should be a valid string
invalid token: expected three parts, got two
token: must not be empty
TypeError: push() got an unexpected keyword argument 'token'
TypeError: connect() missing 1 required positional argument: 'password'
KeyError: 'access_token'
AttributeError: 'Session' object has no attribute 'token'
the token expired 3 minutes ago
Token has expired
token_type: bearer
max_tokens=4096, prompt_tokens: 1523, completion_tokens: 12, total_tokens=1535
usage: {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19}
This model's maximum context length is 8192 tokens
NextToken=null
see /api/token/refresh
GET /oauth2/token HTTP/1.1
POST /reset-password?user=5 returned 404
password reset mail sent to user 17
secret not found: my-app
secrets "db-credentials" not found
authorization failed
Authorization header is missing
authorization: required
Basic authentication is not enabled
WWW-Authenticate: Basic realm="shop"
bearer token is missing
Bearer authentication failed
SMTP AUTH extension not supported by server.
permission denied for table sessions
session closed
cookie consent was given
the cookie jar is empty
primary key constraint "pk_orders_items_2024" violated
duplicate key value violates unique constraint "sk_invoice_number_key"
Key (id)=(42) already exists.
idempotency_key=order-4711 page_token=CAESBAgB next_page_token=abc123
idempotency-key: 0198c0de-aaaa-7bbb-8ccc-ddddeeeeffff
sort_key=created_at partition_key=tenant-7 routing_key=orders.created
key=order-42 group=tenant-7
PWD=/srv/app OLDPWD=/root
private_key=/etc/ssl/private/shop.key
password=${DB_PASSWORD}
password=%s
--token TOKEN  the token to use
use --password to set it
tests: 30 passed, 2 failed
pass: 12 fail: 3
the keys are sorted: a, b, c
compass: north
the author: Ann
author=ann@example.com
passenger: 12A
tokenize=true detokenizer=fast
jwt: audience does not match
secretary: bob
the session is open since 08:15
session: closed by the peer
{"session": "morning", "signature": "push(order_id: int)", "sig": "kill"}
{"session_count": 1234567890123, "card_number": "none", "dsn": "unset"}
the token is expired, the password was wrong
token is invalid: expected three parts
the password is 'required'
AUTH failed
AUTH extension is not supported
mysql -p asks for the password
mysqldump -P3306 -h db shop
password: must not be empty today
passphrase: the old one is wrong
the signature is unverified
card declined: insufficient funds
https://ann.miller@git.example.com/shop.git
https://deploy@registry.example.com/v2/
authority: none
author: "ann"
monkey: business
"""

CODE = """\
token = self._next_token()
token = tokens[0]
password=settings.DATABASE_PASSWORD,
password=password,
return connect(user=user, password=password)
if token == "EOF":
def login(user: str, password: str | None = None) -> Token:
raise ValueError(f"bad token: {token!r}")
raise ValueError("invalid token: %r" % token)
headers = {"Authorization": f"Bearer {token}"}
headers["Authorization"] = "Bearer " + token
url = f"https://api.example.com/v1/me?access_token={token}"
password = getpass.getpass("Password: ")
secret = os.environ["APP_SECRET"]
secret = os.environ.get("APP_SECRET", "")
self.token = token
api_key=api_key, retries=3)
key = hmac.new(secret, body, hashlib.sha256).hexdigest()
tokens = line.split(":")
token_type = "Bearer"
cookies = response.cookies
session_id = session.id
assert token is not None, "no token"
for token in tokenize(text):
with open(private_key_path) as file:
credentials = service_account.Credentials.from_service_account_file(path)
return self.request("POST", "/oauth/token", data=data)
raise AuthenticationError("password authentication failed")
"""

URLS = """\
https://example.com/
https://example.com:8443/path/to/page.html#section-2
https://example.com/a:b@c
https://medium.com/@user/a-story-1a2b3c4d5e6f
http://127.0.0.1:8000/orders/42?expand=lines&limit=50
https://api.example.com/v1/orders/{id}/lines?page=2&sort=-created_at
https://shop.example.com/search?q=a+b&lang=de-CH&code=CH
https://github.com/ann/shop/commit/{sha}
https://github.com/ann/shop/blob/{sha}/src/token.py#L10-L20
https://raw.githubusercontent.com/ann/shop/{sha}/README.md
https://registry.npmjs.org/@babel/core/-/core-7.24.0.tgz
https://pypi.org/project/redrive/0.1.0/
https://s3.eu-central-1.amazonaws.com/bucket/key/{uuid}.json?versionId={hex}
https://sqs.eu-central-1.amazonaws.com/123456789012/shop-orders
https://docs.example.com/reset-password/how-to#token
https://example.com/oauth/authorize?response_type=code&client_id=shop&state={hex}
https://example.com/cb?error=invalid_token&error_description=expired
https://hooks.example.com/orders
https://slack.com/api/chat.postMessage
https://discord.com/channels/1100110011001100110/1100110011001100111
postgresql://ann@db.example.com:5432/shop?sslmode=require
postgresql://db.example.com/shop
redis://cache:6379/0
redis://localhost
amqp://broker:5672/%2F
sqlite:////srv/app/work.db
sqs://eu-central-1/shop?mode=requeue
s3://bucket/prefix/{uuid}
file:///srv/blobs/{hex}
ssh://git@github.com/ann/shop.git
git@github.com:ann/shop.git
mailto:ann@example.com
arn:aws:sqs:eu-central-1:123456789012:shop-orders
arn:aws:secretsmanager:eu-central-1:123456789012:secret:shop/db-AbCdEf
docker://registry.example.com:5000/shop@sha256:{hex64}
urn:uuid:{uuid}
"""


def harmless(seed: int, count: int = 2000) -> list[str]:
    """So many texts, drawn from all kinds, each kind in equal parts; those written above are all among them."""
    draw = random.Random(f"harmless-{seed}")
    fixed = [
        *PROSE.splitlines(),
        *(framed(line) for line in CODE.splitlines()),
        *(filled(u, draw) for u in URLS.splitlines()),
    ]
    corpus = faults()
    kinds: list[Callable[[], str]] = [
        lambda: identifier(draw),
        lambda: f"message {identifier(draw)} of task crm.push died on queue crm: {draw.choice(PROSE.splitlines())}",
        lambda: filled(draw.choice(URLS.splitlines()), draw),
        lambda: f"503 Service Unavailable for url: {filled(draw.choice(URLS.splitlines()), draw)} after 17 ms",
        lambda: draw.choice(corpus),
        lambda: frames(draw),
    ]
    drawn = [kinds[n % len(kinds)]() for n in range(count - len(fixed))]
    return [*fixed, *drawn]


def identifier(draw: random.Random) -> str:
    """An id, a hash, a time or a name, as systems make them."""

    def of(characters: str, count: int) -> str:
        return "".join(draw.choices(characters, k=count))

    makers: list[Callable[[], str]] = [
        lambda: str(uuid.UUID(int=draw.getrandbits(128), version=4)),
        lambda: "0198" + str(uuid.UUID(int=draw.getrandbits(128), version=4))[4:],
        lambda: of(HEX, 7),
        lambda: of(HEX, 16),
        lambda: of(HEX, 32),
        lambda: of(HEX, 40),
        lambda: of(HEX, 64),
        lambda: f"sha256:{of(HEX, 64)}",
        lambda: f"sha512-{base64.b64encode(draw.randbytes(64)).decode()}",
        lambda: base64.b64encode(draw.randbytes(16)).decode(),
        lambda: of(string.ascii_uppercase[:22] + string.digits, 26),  # ULID
        lambda: str(draw.randrange(10**18)),
        lambda: f"2026-0{draw.randrange(1, 10)}-11T0{draw.randrange(10)}:22:33.{draw.randrange(1000):03}Z",
        lambda: f"10.{draw.randrange(256)}.{draw.randrange(256)}.7:{draw.randrange(65536)}",
        lambda: ":".join(of(HEX, 2) for _ in range(6)),
        lambda: f"shop-worker-{of(HEX, 10)}-{of(LOWER, 5)}",
        lambda: f"req_{of(HEX, 16)}",
        lambda: f"cus_{of(string.ascii_letters + string.digits, 14)}",
        lambda: f"v{draw.randrange(9)}.{draw.randrange(99)}.{draw.randrange(99)}-rc.1+{of(HEX, 7)}",
        lambda: f"ann.{of(string.ascii_lowercase, 6)}@example.com",
        lambda: f"0x{of(HEX, 12)}",
        lambda: f'etag W/"{of(HEX, 32)}"',
        lambda: f"00-{of(HEX, 32)}-{of(HEX, 16)}-01",  # traceparent
        lambda: f"fingerprint {of(HEX, 16)}, worker ip-10-0-0-7-{draw.randrange(99999)}-{of(HEX, 4)}",
    ]
    return draw.choice(makers)()


def filled(url: str, draw: random.Random) -> str:
    """The URL with values where it has places for them."""

    def of(count: int) -> str:
        return "".join(draw.choices(HEX, k=count))

    made = {"sha": of(40), "hex": of(32), "hex64": of(64), "id": str(draw.randrange(10**6))}
    made["uuid"] = str(uuid.UUID(int=draw.getrandbits(128), version=4))
    for name, value in made.items():
        url = url.replace(f"{{{name}}}", value)
    return url


def framed(source: str) -> str:
    """A line of source as a traceback shows it."""
    return (
        'Traceback (most recent call last):\n  File "/srv/app/shop/auth.py", line 42, in login\n'
        f"    {source.strip()}\nValueError: cannot log in"
    )


def frames(draw: random.Random) -> str:
    """A traceback of several frames, as Python prints it."""
    lines = CODE.splitlines()
    frames = [
        f'  File "/srv/app/shop/{draw.choice(("auth", "tokens", "secrets"))}.py", line {draw.randrange(1, 999)}, in f\n'
        f"    {draw.choice(lines).strip()}\n"
        for _ in range(draw.randrange(1, 8))
    ]
    return "Traceback (most recent call last):\n" + "".join(frames) + f"ValueError: {draw.choice(PROSE.splitlines())}"


def faults() -> list[str]:
    """What the fault corpus of this project says: the texts and lines of real failures of some forty libraries. Two of
    its lines do hold a password, of the test that raised them."""
    found: dict[str, None] = {}
    for path in sorted(CORPUS.glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            found |= dict.fromkeys(strings(json.loads(line)))
    return [text for text in found if ":pw@" not in text]


def strings(value: Any) -> list[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in strings(each)]


def own_tracebacks() -> list[str]:
    """Tracebacks as this Python prints them."""
    found = []
    for raising in ('{}["token"]', 'int("password")', "None.token", "(lambda password: 0)()", "json.loads('token')"):
        try:
            eval(raising, {"json": json})
        except Exception:
            found.append(traceback.format_exc())
    return found
