"""Who is let in: this machine, who has the token, and those whom `authorize` knows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse
from tests.support.sites import HERE, JSON, Browser

from redrive import App
from redrive.errors import ConfigError
from redrive.present.permissions import as_permissions
from redrive.web import ALL, Permission, User
from redrive.web.access import Access, is_loopback, user_of
from redrive.web.tries import CLIENTS_MAX, WRONG_MAX, LoginTries

TOKEN = "correct-horse-battery-staple"
ELSEWHERE = ("203.0.113.9", 4000)


def request(client: tuple[str, int] | None = HERE, **of: Any) -> Request:
    headers = [(name.encode(), value.encode()) for name, value in of.pop("headers", {}).items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": headers, "client": client, **of})


def status(access: Access, request: Request) -> int:
    try:
        asyncio.run(access.user(request))
    except Exception as error:
        return int(getattr(error, "status", 500))
    return 200


# -- this machine


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.1", "::1", "[::1]", "::ffff:127.0.0.1"])
def test_loopback_is_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "10.0.0.1", "localhost.example.com", "::", "127.0.0.1.nip.io", "2130706433"]
)
def test_other_hosts_are_not_this_machine(host: str) -> None:
    assert not is_loopback(host)


def test_without_a_login_only_this_machine_is_let_in() -> None:
    access = Access(None, None)
    assert status(access, request()) == 200
    assert status(access, request(ELSEWHERE)) == 403
    assert status(access, request(None)) == 403


@pytest.mark.parametrize(
    "name", ["x-forwarded-for", "forwarded", "via", "x-real-ip", "x-forwarded-host", "cf-connecting-ip"]
)
def test_what_a_proxy_on_this_machine_passes_on_is_refused_without_a_login(name: str) -> None:
    assert status(Access(None, None), request(headers={name: "203.0.113.9"})) == 403


def test_http_1_0_is_what_nginx_speaks_by_default_and_is_refused_without_a_login() -> None:
    assert status(Access(None, None), request(http_version="1.0")) == 403
    assert status(Access(None, None), request(http_version="1.1")) == 200
    assert status(Access(lambda asked: "ann", None), request(http_version="1.0")) == 200


def test_under_wsgi_the_address_comes_from_the_server() -> None:
    assert status(Access(None, None), request(None, wsgi_environ={"REMOTE_ADDR": "127.0.0.1"})) == 200
    assert status(Access(None, None), request(None, wsgi_environ={"REMOTE_ADDR": "203.0.113.9"})) == 403


# -- the token


@pytest.mark.parametrize("token", ["short", "", "x" * 15, "a" * 40, "abababababababababab"])
def test_a_token_that_can_be_guessed_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="characters"):
        Access(None, token)


def test_the_token_and_a_session_let_in_and_others_do_not() -> None:
    access = Access(None, TOKEN)
    session = access.session(request(), TOKEN)
    assert status(access, request(headers={"authorization": f"Bearer {TOKEN}"})) == 200
    assert status(access, request(headers={"authorization": f"bearer  {TOKEN} "})) == 200
    assert status(access, request(headers={"cookie": f"redrive_session={session}"})) == 200
    for headers in (
        {},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": "Bearer "},
        {"authorization": f"Basic {TOKEN}"},
        {"cookie": f"redrive_session={TOKEN}"},
        {"cookie": "redrive_session="},
    ):
        assert status(access, request(ELSEWHERE, headers=headers)) == 401


def test_a_session_ends_and_cannot_be_made_longer() -> None:
    now = [1_000.0]
    access = Access(None, TOKEN, clock=lambda: now[0])
    session = access.session(request(), TOKEN)
    assert session is not None
    ends, _, seal = session.partition(".")
    cookie = {"cookie": f"redrive_session={session}"}
    longer = {"cookie": f"redrive_session={int(ends) + 9}.{seal}"}
    assert (status(access, request(headers=cookie)), status(access, request(headers=longer))) == (200, 401)
    now[0] = float(ends)
    assert status(access, request(headers=cookie)) == 401


def test_a_session_of_another_site_on_this_host_does_not_hide_ours() -> None:
    access = Access(None, TOKEN)
    session = access.session(request(), TOKEN)
    for order in (f"redrive_session=other; redrive_session={session}", f"redrive_session={session}; redrive_session=o"):
        assert status(access, request(headers={"cookie": order})) == 200


def test_after_ten_wrong_tokens_a_client_waits_and_sessions_and_others_do_not() -> None:
    access = Access(None, TOKEN)
    session = access.session(request(), TOKEN)
    for _ in range(WRONG_MAX):
        assert status(access, request(headers={"authorization": "Bearer wrong"})) == 401
    right = {"authorization": f"Bearer {TOKEN}"}
    assert status(access, request(headers=right)) == 429, "the right one neither, or the answer would say so"
    assert status(access, request(headers={"cookie": f"redrive_session={session}"})) == 200
    assert status(access, request(ELSEWHERE, headers=right)) == 200


def test_wrong_tokens_are_forgotten_after_a_minute_and_clients_are_bounded() -> None:
    now = [0.0]
    tries = LoginTries(lambda: now[0])
    for _ in range(WRONG_MAX):
        tries.wrong("a")
    assert tries.wait_s("a") == 60 and tries.wait_s("b") == 0
    now[0] = 59.5
    assert tries.wait_s("a") == 1
    now[0] = 60
    assert tries.wait_s("a") == 0
    for n in range(CLIENTS_MAX + 50):
        tries.wrong(str(n))
    assert len(tries._wrong) == CLIENTS_MAX


def test_the_login_form_is_bounded_too(app: App) -> None:
    browser = Browser(app.dashboard(token=TOKEN))
    assert browser.get("/login").status_code == 200
    for _ in range(WRONG_MAX):
        assert browser.post("/login", {"token": "no"}).status_code == 401
    assert browser.post("/login", {"token": TOKEN}).status_code == 429


def test_who_is_not_logged_in_is_led_to_the_login_and_back(app: App) -> None:
    browser = Browser(app.dashboard(token=TOKEN))
    answer = browser.get("/queues?since=1h")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fqueues%3Fsince%3D1h")
    assert browser.get("/queues", headers=JSON).status_code == 401
    assert browser.get(answer.headers["location"]).status_code == 200
    answer = browser.post(answer.headers["location"], {"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/queues?since=1h")
    assert browser.get("/queues").status_code == 200


@pytest.mark.parametrize(
    "to",
    ["//evil.example", "/\\evil.example", "https://evil.example", "/\t/evil.example", "\\/evil", "javascript:alert(1)",
     "/%0d%0aSet-Cookie:a=b".replace("%0d%0a", "\r\n"), "evil", ""],
)  # fmt: skip
def test_a_login_leads_nowhere_else(app: App, to: str) -> None:
    browser = Browser(app.dashboard(token=TOKEN))
    browser.get("/login")
    answer = browser.request(
        "POST", "/login", params={"next": to}, data={"token": TOKEN, "csrf": browser.cookies["redrive_csrf"]}
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_a_login_of_another_site_is_refused(app: App) -> None:
    browser = Browser(app.dashboard(token=TOKEN))
    browser.get("/login")
    answer = browser.post("/login", {"token": TOKEN}, headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403 and "redrive_session" not in browser.cookies
    assert browser.request("POST", "/login", data={"token": TOKEN}).status_code == 403


# -- authorize


def test_what_authorize_returns_is_a_user() -> None:
    assert user_of(None) is None and user_of(False) is None
    assert user_of(True) == User("", ALL)
    assert user_of("ann") == User("ann", ALL)
    assert user_of(("ann", ["retry"])) == User("ann", frozenset({Permission.VIEW, Permission.RETRY}))
    assert user_of(User("ann", frozenset({Permission.PAUSE}))).permissions == {Permission.VIEW, Permission.PAUSE}  # type: ignore[union-attr]
    assert user_of(("ann", [])) == User("ann", frozenset({Permission.VIEW}))


@pytest.mark.parametrize("found", ["", 1, ("ann",), (1, ["retry"]), {"name": "ann"}, ["ann", "bob"]])
def test_anything_else_is_an_error_and_lets_no_one_in(app: App, found: Any) -> None:
    with pytest.raises(ConfigError, match="authorize returned"):
        user_of(found)
    assert Browser(app.dashboard(authorize=lambda request: found)).get("/keys").status_code == 422


def test_an_unknown_permission_names_the_one_that_is_near() -> None:
    with pytest.raises(ConfigError, match="did you mean 'redrive'"):
        as_permissions(["redriv"])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_authorize_may_be_async_and_its_name_is_shown(app: App, asynchronous: bool) -> None:
    async def later(request: Request) -> object:
        return request.headers.get("x-user")

    browser = Browser(app.dashboard(authorize=later if asynchronous else lambda request: request.headers.get("x-user")))
    assert browser.get("/keys").status_code == 401
    assert ">ann<" in browser.get("/keys", headers={"x-user": "ann"}).text


def test_authorize_may_answer_itself(app: App) -> None:
    def redirect(request: Request) -> object:
        return RedirectResponse("/sso", 303)

    def refuse(request: Request) -> object:
        raise HTTPException(418, "teapots only", {"X-Why": "tea"})

    answer = Browser(app.dashboard(authorize=redirect)).get("/keys")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sso")
    answer = Browser(app.dashboard(authorize=refuse)).get("/keys")
    assert (answer.status_code, answer.headers["x-why"]) == (418, "tea") and "teapots only" in answer.text


def test_an_authorize_that_fails_lets_no_one_in(app: App) -> None:
    def broken(request: Request) -> object:
        raise KeyError("ldap")

    answer = Browser(app.dashboard(authorize=broken)).get("/keys")
    assert answer.status_code == 500 and "ldap" not in answer.text


def test_the_token_lets_in_whom_authorize_does_not_know(app: App) -> None:
    browser = Browser(app.dashboard(authorize=lambda request: None, token=TOKEN))
    assert browser.get("/keys", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert browser.get("/keys", headers=JSON).status_code == 401
