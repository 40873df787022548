"""Texts that a careless expression would look at again and again."""

from __future__ import annotations

UNITS = (
    "a", "\\", '\\"', ",a", ";", ",,", "<a", "<a ", ". ", "\x00", "\u0130", "key key_key", "token", "tokens ",
    "password=", "password='", 'password="', 'password=\\"', "password=&quot;", "password=\n", "password=<",
    "password=,a", "password=a,b", "password%3D", "password%3Da%26", "passwordpassword", "password: |\n  ",
    "password = f(", "\u0130password=a ", "\U0001f600token=", "token: A b c d e. ", "token:{", "token:[", 'tokens=["',
    '["token",', '("password", "', 'name":"password","value":"', "PASSWORD '", "login a password ", "arn:arn:token:",
    "--password ", "--password '", "'--password', '", "<password>", "<password a", "&lt;password&gt;",
    'form-data; name="password"\n', "://", "://a:", "://a:b@", "postgresql://a:", "postgresql://a:@", "%3a%2f%2f",
    "%253a%252f%252fa%253a", "?code=", "&sig=", "%26sig%3D", "x-amz-signature=", "hooks.slack.com/services/",
    "jdbc:oracle:thin:a/", "identified by '", "curl -u a:b ", " -u a:", "AUTH PLAIN ", "Bearer ", "bearer a",
    "Authorization: ", "Authorization: Digest a=", 'Authorization: Digest a="', "digest a=b, ", "Cookie: a=",
    "Cookie: a=b; ", "eyJ", "eyJa.", "eyJaaaaaaaa.", "\neyJaaaaaaaa", "AKIA", "ghp_", "sk-", "sk-a", "xoxb-", "SG.",
    "SG.aaaaaaaa.", "hvs.", "api-", "4b1d", "a:aa", "1:AA", "aQ~", "a1Q~", "a-us", "EAAA", "A3-",
    "MMMMMMMMMMMMMMMMMMMMMMMM.", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\nAAAAAAAAAAAAAAAAAAAAA\n",
    "Private-Lines: 1\nAAA ", 'File "', '\n  File "x", line 1\n', '\n  File "x", line 1\n    token = ', '{"a":', "[[",
    "token is ", "token is 'a\\", "passphrase: aa ", "password=\\\n", "--password \\\n", "mysql a ", "> AUTH a1bcdef ",
    "\nAUTH aaaaaaa", '"session":"aaaaaaaa', '\\"session":', "https://a@sentry",
)  # fmt: skip


def grown(unit: str, size: int) -> str:
    """The unit again and again, up to so many characters."""
    return (unit * (size // len(unit) + 1))[:size]
