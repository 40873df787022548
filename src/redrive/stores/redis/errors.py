"""Classify errors of redis-py: is the call repeated, on which connection, and which error is raised in the end?"""

from __future__ import annotations

import re

from redis import exceptions as ex

from ...errors import ConfigError, RedriveError, StoreError, StoreFull, StoreUnavailable

LOST, SLOW = "lost", "slow"  # codes for errors that are not the server's: a broken connection, and a timeout
# Codes by exception class, subclasses first. redis-py removes the code from the text of an error of these classes.
_CLASSES: tuple[tuple[type[ex.RedisError], str], ...] = (
    (ex.AuthenticationWrongNumberOfArgsError, "NOAUTH"),
    (ex.AuthenticationError, "NOAUTH"),
    (ex.AuthorizationError, "NOPERM"),
    (ex.BusyLoadingError, "LOADING"),
    (ex.TimeoutError, SLOW),
    (ex.ConnectionError, LOST),
    (ex.MovedError, "MOVED"),
    (ex.AskError, "ASK"),
    (ex.TryAgainError, "TRYAGAIN"),
    (ex.ClusterDownError, "CLUSTERDOWN"),
    (ex.MasterDownError, "MASTERDOWN"),
    (ex.NoScriptError, "NOSCRIPT"),
    (ex.OutOfMemoryError, "OOM"),
    (ex.ReadOnlyError, "READONLY"),
    (ex.NoPermissionError, "NOPERM"),
)
# Redis 6.2 wraps the error of a script's command: "ERR Error running script (…): @user_script:3: … -OOM command …"
_WITHIN = re.compile(r"(?:: -|: )(OOM|READONLY|MISCONF|NOPERM|MOVED|ASK|TRYAGAIN|CLUSTERDOWN|NOREPLICAS)\b")
_NOPERM = ("NOPERM", "ACL failure in script", "The user executing the script can't")  # texts by version
_AGAIN = {LOST, "LOADING", "READONLY", "MASTERDOWN", "TRYAGAIN", "ASK", "CLUSTERDOWN", "BUSY", "NOSCRIPT"}
_ELSEWHERE = {LOST, SLOW, "LOADING", "READONLY", "MASTERDOWN", "NOAUTH"}
_SETTINGS = {"NOAUTH", "WRONGPASS", "NOPERM", "MOVED"}
# An error of connecting has no code, so it is recognised by these parts of the system's message.
_REFUSED = ("Name or service not known", "nodename nor servname", "CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")


def code_of(error: ex.RedisError) -> str:
    """Return the server's code for an error, or LOST, or SLOW."""
    for kind, code in _CLASSES:
        if isinstance(error, kind):
            return code
    text = str(error)
    if any(words in text for words in _NOPERM):
        return "NOPERM"
    match = _WITHIN.search(text)
    return match[1] if match else text.partition(" ")[0]


def passes(error: ex.RedisError) -> bool:
    """True if a call that failed with this error may succeed when it is repeated soon."""
    return code_of(error) in _AGAIN and not is_refusal(error)


def is_lost(error: ex.RedisError) -> bool:
    """True if the connection with this error is unusable, and all older ones too, as they lead to the same server."""
    return code_of(error) in _ELSEWHERE


def is_refusal(error: ex.RedisError) -> bool:
    """True if the error means that the server or the name service rejected the settings in the URL."""
    return code_of(error) in _SETTINGS or any(words in str(error) for words in _REFUSED)


def store_error(error: ex.RedisError, where: str, *, opened: bool) -> RedriveError:
    """Return the redrive error for an error of redis-py. A refusal is a wrong setting if no call has succeeded yet;
    later it may pass, as when a password is being changed, and must not end a worker."""
    code = code_of(error)
    words = " ".join(str(error).split()) or type(error).__name__
    text = f"{where}: {words}" if code in words or code in (LOST, SLOW) else f"{where}: {code} {words}"
    if code == "OOM":
        return StoreFull(
            f"{text}; nothing was written. The server is at its maxmemory: raise it (CONFIG SET maxmemory …), or let "
            "workers empty the queues: claims, acks and retries go on"
        )
    if code == "MISCONF":
        kind = StoreFull if "No space left" in words else StoreUnavailable
        return kind(f"{text}; nothing was written. The server cannot write its data to disk: see its log, and its disk")
    if is_refusal(error):
        advised = f"{text}; {_advice(code)}"
        return StoreUnavailable(advised) if opened else ConfigError(advised)
    if code == "READONLY":
        return StoreUnavailable(f"{text}; this is a replica: give the URL of the master")
    if code in ("ASK", "TRYAGAIN"):
        return StoreUnavailable(f"{text}; the slot of this namespace is moving to another node, try again when it has")
    if code in _AGAIN or code in _ELSEWHERE or code == "NOREPLICAS":
        return StoreUnavailable(f"{text}; nothing was acknowledged, the same call may work later")
    return StoreError(text)


def _advice(code: str) -> str:
    if code == "NOPERM":
        return "the user of the store's URL lacks a right; what it needs is in redrive.stores.redis.preflight"
    if code == "MOVED":
        return "the server is a cluster: write redis+cluster:// (rediss+cluster://)"
    return "check user, password, host and TLS of the store's URL"
