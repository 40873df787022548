"""Store URLs: read by the standard's rules, refused where they can be read in two ways, never shown with a password."""

from __future__ import annotations

import random
import string
from pathlib import Path
from urllib.parse import quote

import pytest

from redrive.blobs import open_blobs
from redrive.errors import ConfigError
from redrive.stores import open_store, sqlite_path
from redrive.stores.redis.url import RedisUrl
from redrive.stores.sqs.url import SqsUrl
from redrive.stores.state_dir import state_dir
from redrive.urls import ENCODED, shown, split

SIGNS = "/@:#%?&=+ "


def passwords(seed: int) -> list[str]:
    draw = random.Random(f"urls-{seed}")
    return ["".join(draw.choices(string.ascii_lowercase + SIGNS, k=24)) for _ in range(200)]


def parts_of(password: str, least: int = 5) -> set[str]:
    """What must not be seen of it: any five characters in a row, but for those that every refusal has."""
    written = {password, quote(password, safe="")}
    parts = {text[n : n + least] for text in written for n in range(len(text) - least + 1)}
    return {part for part in parts if part not in ENCODED}


@pytest.mark.parametrize("engine", ["postgresql", "redis", "rediss+cluster", "amqp"])
def test_an_encoded_password_is_read_as_it_was_and_never_shown(engine: str, seed: int) -> None:
    for password in passwords(seed):
        url = f"{engine}://ann:{quote(password, safe='')}@db.example:5433/work?x=1"
        parts = split(url)
        assert (parts.user, parts.password, parts.hosts, parts.path) == ("ann", password, "db.example:5433", "/work")
        assert shown(url) == f"{engine}://ann:***@db.example:5433/work?x=1"


@pytest.mark.parametrize("engine", ["postgresql", "redis", "sqlite", "mysql", "postgresql+psycopg", "sqs", "memory"])
def test_a_raw_password_is_read_whole_or_refused_and_never_shown(engine: str, seed: int) -> None:
    for password in passwords(seed):
        url = f"{engine}://ann:{password}@db.example:5433/work"
        hidden = [part for part in parts_of(password) if part not in url.replace(password, "")]
        assert not [part for part in hidden if part in shown(url)]
        told, hosts = outcome(url)
        assert not [part for part in hidden if part in told]
        assert hosts in (None, "db.example:5433")


def outcome(url: str) -> tuple[str, str | None]:
    """What a URL's refusal says, with all that it carries; or its hosts."""
    try:
        return "", split(url).hosts
    except ConfigError as error:
        return f"{error} {error!r} {error.__cause__}", None


@pytest.mark.parametrize("engine", ["postgresql", "redis", "sqlite", "mysql", "sqs", "memory", "dynamodb"])
def test_a_store_that_cannot_be_opened_tells_no_password(engine: str, seed: int) -> None:
    for password in passwords(seed)[:40]:
        alone = f"{engine}://ann:{password.replace('@', '')}"  # with an '@' in it, its end is a host
        for url in (f"{engine}://ann:{password}@[/", alone, f"{engine}://:{password}@h:x/0"):
            with pytest.raises(ConfigError) as raised:
                open_store(url)
            told = str(raised.value) + repr(raised.value) + str(raised.value.__cause__ or "")
            assert not [part for part in parts_of(password) if part in told], told


@pytest.mark.parametrize(
    "url, words",
    [
        ("redis://:a/b@cache/0", "write / as %2F"),
        ("redis://:12/34@cache/0", "write / as %2F"),
        ("redis://:a?b@cache/0", "write / as %2F"),
        ("redis://:a#b@cache/0", "'#' must be written %23"),
        ("redis://:a%b@cache/0", "% as %25"),
        ("redis://:a b@cache/0", "a space as %20"),
        ("redis://:hunter2", "HOST:PORT"),
        ("postgresql://ann:hunter2/work", "HOST:PORT"),
        ("postgresql://ann:hun/ter2@db/work", "write / as %2F"),
    ],
)
def test_a_url_that_can_be_read_in_two_ways_is_refused_with_the_way_to_write_it(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        split(url)
    assert words in str(raised.value)
    assert url.rpartition("@")[0].rpartition(":")[2] not in str(raised.value) or "@" not in url
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("password", ["a/b", "p@ss", "a:b:c", "#%?&"])
def test_redis_takes_a_password_of_any_signs(password: str) -> None:
    read = RedisUrl.parse(f"redis://ann:{quote(password, safe='')}@cache:7/1?namespace=x")
    assert (read.username, read.password, read.addresses[0].host, read.db) == ("ann", password, "cache", 1)
    assert password not in read.shown and password not in repr(read)


def test_the_path_of_a_file_may_have_spaces() -> None:
    assert sqlite_path("sqlite:////srv/new place/a b.db") == "/srv/new place/a b.db"
    assert shown("sqlite:////srv/new place/a b.db") == "sqlite:////srv/new place/a b.db"


def test_an_option_that_may_be_the_rest_of_a_password_is_not_quoted() -> None:
    with pytest.raises(ConfigError) as raised:
        SqsUrl.parse("sqs://eu-central-1/shop?triage=postgresql://ann:pa&ss@db/x")
    assert "ss@db" not in str(raised.value) and "ann:pa" not in str(raised.value)
    with pytest.raises(ConfigError, match="unknown option 'trage'"):
        SqsUrl.parse("sqs://eu-central-1/shop?trage=x")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://u:hunter2@h/x",
        "s3://u:hunter2@b/x",
        "s3://b/x?end=http://u:hunter2@h",
        "file://u:hunter2@h/x",
        "s3://[u:hunter2@",
    ],
)
def test_blobs_that_cannot_be_opened_tell_no_password(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_blobs(url, "")
    assert "hunter2" not in f"{raised.value}{raised.value!r}{raised.value.__cause__}"


def test_the_values_that_hold_urls_do_not_show_them() -> None:
    at = SqsUrl.parse("sqs://eu-central-1/shop?triage=postgresql://ann:hunter2@db/x&endpoint=http://u:hunter2@h:1")
    assert "hunter2" not in repr(at) and "hunter2" not in str(at) and "hunter2" not in at.shown


def test_the_folder_of_workers_is_named_without_user_and_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_STATE_DIR", str(tmp_path))
    at = SqsUrl.parse("sqs://eu-central-1/shop?endpoint=http://ann:hunter2@127.0.0.1:4566/x")
    assert at.endpoint_host == "127.0.0.1:4566"
    for password in ("p@ss-word", "hun:ter2"):
        parts = split(f"postgresql://ann:{password}@db/x")
        folder = state_dir(f"{parts.hosts}{parts.path}/redrive")
        assert folder is not None and folder.name.startswith("db-x-redrive-")
