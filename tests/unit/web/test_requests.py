"""Forms and JSON are read within bounds, and what cannot be read is refused in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.requests import Request
from tests.support.sites import JSON, Browser, on_a_loop

from redrive import App
from redrive.web import requests
from redrive.web.ask import Problem
from redrive.web.requests import FIELDS_MAX, LOGIN_MAX, Form, form_of, wants_json

FORM = "application/x-www-form-urlencoded"


async def read(body: bytes, kind: str = FORM, chunk: int = 65_536, **of: Any) -> Form:
    parts = [body[n : n + chunk] for n in range(0, len(body), chunk)] or [b""]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    headers = [(b"content-type", kind.encode())]
    return await form_of(Request({"type": "http", "method": "POST", "headers": headers, **of}, receive))


def asked(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "headers": raw})


@on_a_loop
async def test_a_form_is_read_as_last_values_and_all_values() -> None:
    fields, lists = await read(b"id=1&id=2&reason=a+b%26c&empty=", FORM + "; charset=utf-8")
    assert fields == {"id": "2", "reason": "a b&c", "empty": ""} and lists["id"] == ["1", "2"]


@on_a_loop
async def test_json_is_read_as_texts() -> None:
    body = {"id": ["1", "2"], "count": 3, "all": True, "none": False, "rate": 0.5, "left": None, "big": 2**70}
    fields, lists = await read(json.dumps(body).encode(), "application/json")
    assert fields == {"id": "2", "count": "3", "all": "true", "none": "", "rate": "0.5", "big": str(2**70)}
    assert lists["id"] == ["1", "2"] and await read(b"", "application/json") == ({}, {})


@on_a_loop
async def test_a_request_without_a_body_has_no_fields() -> None:
    assert await read(b"", "") == ({}, {})
    assert await form_of(asked()) == ({}, {})


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"\xff\xfe=1", FORM, 400),
        (b"a=1&" * (FIELDS_MAX + 1), FORM, 400),
        (b"csrf=1", "text/plain", 415),
        (b"--x\r\n", "multipart/form-data; boundary=x", 415),
        (b"a=1", "", 415),
        (b"[1]", "application/json", 400),
        (b'{"a": {"b": 1}}', "application/json", 400),
        (b'{"a": [1]}', "application/json", 400),
        (b"{", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b'{"a": "\\ud800"}', "application/json", 400),
        (b'{"a":' + b"[" * 100_000, "application/json", 400),
    ],
    ids=[
        "bytes",
        "many",
        "text",
        "multipart",
        "none",
        "list",
        "object",
        "numbers",
        "half",
        "latin",
        "surrogate",
        "deep",
    ],
)
@on_a_loop
async def test_what_cannot_be_read_is_refused(body: bytes, kind: str, status: int) -> None:
    with pytest.raises(Problem) as refused:
        await read(body, kind)
    assert refused.value.status == status


@on_a_loop
async def test_a_body_is_refused_as_soon_as_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODY_MAX", 1_000)
    taken = 0

    async def receive() -> dict[str, Any]:
        nonlocal taken
        taken += 100
        return {"type": "http.request", "body": b"a" * 100, "more_body": True}

    with pytest.raises(Problem) as refused:
        await form_of(Request({"type": "http", "method": "POST", "headers": []}, receive), 1_000)
    assert refused.value.status == 413 and taken == 1_100


def test_who_is_not_known_sends_little(app: App) -> None:
    browser = Browser(app.dashboard(token="correct-horse-battery-staple"))
    browser.get("/login")
    assert browser.post("/login", {"token": "x" * LOGIN_MAX}).status_code == 413
    sent = b"a" * 1_000_000
    assert browser.request("POST", "/do/pause-queue", content=sent, headers=JSON).status_code == 401


@pytest.mark.parametrize(
    ("headers", "json"),
    [
        ({"accept": "application/json"}, True),
        ({"accept": "text/html,application/xhtml+xml,application/json;q=0.9"}, False),
        ({"accept": "*/*"}, False),
        ({}, False),
        ({"content_type": "application/json"}, True),
        ({"content_type": "APPLICATION/json; charset=utf-8", "accept": "*/*"}, True),
        ({"content_type": "application/json", "accept": "text/html"}, False),
    ],
)
def test_json_is_answered_to_who_asks_for_it_or_sent_it(headers: dict[str, str], json: bool) -> None:
    assert wants_json(asked(**headers)) is json


def test_methods_that_there_are_not_are_refused_in_the_form_that_was_asked_for(app: App) -> None:
    browser = Browser(app.dashboard())
    for method, path in (("PUT", "/queues"), ("DELETE", "/keys"), ("GET", "/do/pause-queue"), ("POST", "/queues")):
        answer = browser.request(method, path, headers=JSON, content=b"{}")
        assert answer.status_code in (404, 405) and answer.json()["error"]
        assert "content-security-policy" in answer.headers


def test_head_is_answered_without_a_stream(app: App) -> None:
    browser = Browser(app.dashboard())
    for path in ("/keys", "/queues", "/live", "/static/redrive.css"):
        assert browser.request("HEAD", path).status_code == 200
    assert browser.site.live.watchers == 0


def test_names_with_slashes_question_marks_and_the_like_have_addresses(app: App) -> None:
    from urllib.parse import quote

    browser = Browser(app.dashboard())
    for name in ("a/b", "a?b", "a#b", "a b", "a%2Fb", "ä", "a&b=c", "a;b", "a\nb\n", "a\\b"):
        app.store.configure(name, paused=True)
        assert browser.json(f"/queues/{quote(name, safe='')}")["queue"] == name


def test_files_are_served_and_nothing_beside_them(app: App) -> None:
    browser = Browser(app.dashboard())
    answer = browser.get("/static/redrive.js")
    assert answer.status_code == 200 and answer.headers["cache-control"] == "public, max-age=86400"
    for name in ("nothing.css", "%2e%2e%2fsite.py", "..%2f__init__.py", "redrive.py", ".css", "%00.css"):
        answer = browser.get(f"/static/{name}")
        assert (answer.status_code, answer.headers["cache-control"]) == (404, "no-store")
