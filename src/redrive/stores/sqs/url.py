"""The URL of a store on SQS: region, prefix of the queues, and options."""

from __future__ import annotations

import re
from enum import StrEnum
from urllib.parse import unquote_plus

from msgspec import Struct

from ...errors import ConfigError
from ...urls import option_shown, shown, split

OPTIONS = ("mode", "cells", "triage", "endpoint", "poll", "receivers", "create", "max_receives", "track", "boto3")
POLL_S, RECEIVERS, RECEIVES = 20, 10, 100
_REGION = re.compile(r"[a-z0-9-]{2,32}")
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,40}")
EXPECTED = "expected sqs://REGION/PREFIX, such as sqs://eu-central-1/shop"


class Mode(StrEnum):
    """Where a message waits for its next run: `visibility`, hidden in its queue; `requeue`, as a delayed copy."""

    VISIBILITY = "visibility"
    REQUEUE = "requeue"


class SqsUrl(Struct, frozen=True, kw_only=True):
    """The region, prefix and options of a store on SQS."""

    shown: str  # the URL for display, without passwords
    region: str
    prefix: str
    mode: Mode = Mode.VISIBILITY
    cells: str | None = None  # URL of the store that holds the cells
    triage: str | None = None  # URL of the triage store
    endpoint: str | None = None
    poll_s: int = POLL_S  # how long SQS waits for messages before it sends an empty response
    receivers: int = RECEIVERS  # most concurrent receives of one queue
    create: bool = False  # True: create missing queues
    max_receives: int = RECEIVES  # maxReceiveCount of the queues that redrive creates
    boto3: bool = False  # True: make every call with boto3, even the frequent ones
    track: bool = False  # True: keep a record of each message in the cells, for find, cancel and deduplication

    @classmethod
    def parse(cls, url: str) -> SqsUrl:
        """Parse the URL of a store on SQS. Raises ConfigError for another URL, an unknown option or a bad value."""
        parts = split(url)
        region, prefix = parts.hosts, parts.path.removeprefix("/")
        known = parts.scheme == "sqs" and parts.user is None
        if not known or not _REGION.fullmatch(region) or not _PREFIX.fullmatch(prefix):
            raise _refused(url, f"{EXPECTED}; a prefix has letters, digits, '-' and '_', at most 40")
        options = {name: unquote_plus(value) for name, value in parts.options()}
        for name in options:
            if name not in OPTIONS:
                raise _refused(url, f"unknown option {option_shown(name)}; known: {', '.join(OPTIONS)}")
        mode = options.get("mode", "visibility")
        if mode not in (*Mode,):
            raise _refused(url, f"mode={mode!r}; expected visibility or requeue")
        return cls(
            shown=shown(url.partition("?")[0]),
            region=region,
            prefix=prefix,
            mode=Mode(mode),
            cells=options.get("cells"),
            triage=options.get("triage"),
            endpoint=options.get("endpoint"),
            poll_s=_whole(url, options, "poll", POLL_S, 0, 20),
            receivers=_whole(url, options, "receivers", RECEIVERS, 1, 100),
            create=_yes(url, options, "create"),
            max_receives=_whole(url, options, "max_receives", RECEIVES, 1, 1000),
            track=_yes(url, options, "track"),
            boto3=_yes(url, options, "boto3"),
        )

    @property
    def endpoint_host(self) -> str:
        """The host of the URL's endpoint, without user and password; empty for AWS's own endpoint."""
        return "" if self.endpoint is None else split(self.endpoint, "endpoint").hosts

    def __repr__(self) -> str:
        return f"SqsUrl({self.shown!r}, mode={self.mode!r})"


def _yes(url: str, options: dict[str, str], name: str) -> bool:
    said = options.get(name, "false")
    if said not in ("true", "false"):
        raise _refused(url, f"{name}={said!r}; expected true or false")
    return said == "true"


def _whole(url: str, options: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    said = options.get(name)
    if said is None:
        return default
    if not said.isdecimal() or not least <= int(said) <= most:
        raise _refused(url, f"{name}={said!r}; expected a whole number from {least} to {most}")
    return int(said)


def _refused(url: str, why: str) -> ConfigError:
    return ConfigError(f"store URL {shown(url)!r}: {why}")
