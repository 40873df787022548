"""What a URL of PostgreSQL's says to us, what it says to libpq, and what nobody gets to see."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from psycopg.conninfo import conninfo_to_dict

from redrive.errors import ConfigError
from redrive.stores.postgres.session import Session
from redrive.stores.postgres.url import parse, shown

BASE = "postgresql://ann:hunter2@db.example:5433/work"


def test_options_of_ours_do_not_go_to_libpq() -> None:
    url = parse(f"{BASE}?sslmode=require&schema=jobs&options=-c%20x%3D1&timeout=3s&pool=2&prepare=off&listen=off")
    assert url.conninfo == f"{BASE}?sslmode=require&options=-c%20x%3D1"
    assert (url.schema, url.timeout_s, url.pool, url.prepare, url.listen) == ("jobs", 3.0, 2, "off", "off")
    plain = parse(BASE)
    assert (plain.conninfo, plain.schema, plain.timeout_s, plain.migrate, plain.fsync) == (
        BASE,
        "redrive",
        10,
        True,
        True,
    )


def test_several_hosts_and_another_url_to_listen_on_are_kept() -> None:
    url = parse("postgres://u@one:1,two:2/work?target_session_attrs=read-write&listen=postgresql%3A%2F%2Fthree%2Fwork")
    assert url.conninfo == "postgres://u@one:1,two:2/work?target_session_attrs=read-write"
    assert url.listen == "postgresql://three/work"


@pytest.mark.parametrize(
    "url, words",
    [
        ("postgresql+psycopg://u:hunter2@h/d", "write postgresql://"),
        (f"{BASE}?schema=Jobs", "lower-case"),
        (f"{BASE}?schema=a;drop", "lower-case"),
        (f"{BASE}?timeout=soon", "timeout"),
        (f"{BASE}?timeout=0.01", "0.1 s"),
        (f"{BASE}?pool=0", "1 to 100"),
        (f"{BASE}?prepare=maybe", "auto, on, off"),
        (f"{BASE}?synchronous_commit=no", "remote_apply"),
        (f"{BASE}#x", "%23"),
        (f"{BASE}?shema=jobs", "known: schema, timeout"),
        ("postgresql://ann:%zzhunter2@db/work", "cannot be read"),
        (f"{BASE}?listen=postgresql%3A%2F%2Fann%3Ahunter2%40db%3Fx%3D1", "query parameter"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_tells_no_password(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Session(parse(url))
    assert words in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "url, seen",
    [
        (BASE, "postgresql://ann:***@db.example:5433/work"),
        ("postgresql://h/d?password=hunter2&user=a", "postgresql://h/d?password=***&user=a"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("postgresql://u:a%40b%2Fc%3Ad@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:a@b:c@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:a@b/c:d@h/d", "postgresql://***"),  # it can be read in two ways
    ],
)
def test_a_url_is_shown_without_its_password(url: str, seen: str) -> None:
    assert shown(url) == seen


@pytest.mark.parametrize("password", ["a/b", "a@b", "a:b", "a#b", "a%b", "/@:#%?", "p&w=d", "pä ss"])
def test_a_password_of_any_signs_reaches_libpq_as_it_is(password: str) -> None:
    url = parse(f"postgresql://ann:{quote(password, safe='')}@db.example:5433/work?sslmode=require")
    assert conninfo_to_dict(url.conninfo)["password"] == password
    assert conninfo_to_dict(url.conninfo)["host"] == "db.example"
    assert password not in url.shown and password not in repr(url)


def test_a_raw_at_sign_in_a_password_is_read_up_to_the_last_one() -> None:
    assert conninfo_to_dict(parse("postgresql://ann:p@ss@db/work").conninfo) == {
        "user": "ann",
        "password": "p@ss",
        "host": "db",
        "dbname": "work",
    }
