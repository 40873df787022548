"""What another site makes a browser send is refused, and every answer has the headers that hold its page together."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.support.sites import FP, Browser

from redrive import App
from redrive.present.permissions import Denied
from redrive.web import guard

TOKEN = "x" * 43
FORM = "application/x-www-form-urlencoded"


def request(method: str = "POST", **of: Any) -> Request:
    headers = {"host": "127.0.0.1:8787", **of.pop("headers", {})}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Request({"type": "http", "method": method, "path": "/", "query_string": b"", "headers": raw, **of})


def refused(asked: Request, form: dict[str, str], bears_token: bool = False) -> bool:
    try:
        guard.check_origin(asked, form, bears_token=bears_token)
    except Denied as denied:
        return denied.status == 403
    return False


def from_browser(**headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return request(headers={"content-type": FORM, "cookie": f"redrive_csrf={TOKEN}", **named})


# -- Host


@pytest.mark.parametrize(
    ("given", "host"),
    [
        ("jobs.example.com", "jobs.example.com"),
        ("Jobs.Example.COM:8443", "jobs.example.com"),
        ("jobs.example.com.", "jobs.example.com"),
        ("127.0.0.1:8787", "127.0.0.1"),
        ("[::1]:8787", "::1"),
        ("[::1]", "::1"),
        ("::1", ""),
        ("[::1", ""),
        ("", ""),
        ("evil.example@localhost", ""),
        ("localhost:8787:1", ""),
        ("localhost:http", ""),
        ("localhost evil", ""),
        ("localhost/..", ""),
    ],
)
def test_the_name_in_a_host_header_is_read_strictly(given: str, host: str) -> None:
    assert guard.host_of(given) == host


def test_names_of_hosts_are_taken_with_ports_and_in_any_case() -> None:
    assert guard.host_names(["Jobs.example.com:8443", "[::1]:80"]) == {"jobs.example.com", "::1"}
    assert guard.host_names(None) is None and guard.host_names(["a", "*"]) is None and guard.host_names(()) == set()
    assert guard.host_names("jobs.example.com") == {"jobs.example.com"}


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.nip.io", "localhost.evil.example", "[::1", "a@localhost", ""]
)
def test_a_name_that_is_not_ours_is_refused_though_it_leads_here(app: App, host: str) -> None:
    browser = Browser(app.dashboard())
    for method, path in (("GET", "/keys"), ("POST", "/do/pause-queue"), ("GET", "/live"), ("GET", "/none")):
        assert browser.request(method, path, headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:9", "127.0.0.1", "[::1]:8787", "JOBS.example.com:443"])
def test_loopback_and_allowed_names_are_answered(app: App, host: str) -> None:
    browser = Browser(app.dashboard(hosts=["jobs.example.com"]))
    assert browser.get("/keys", headers={"Host": host}).status_code == 200


def test_with_authorize_the_application_decides_on_hosts(app: App) -> None:
    assert (
        Browser(app.dashboard(authorize=lambda asked: "ann")).get("/keys", headers={"Host": "a.b"}).status_code == 200
    )
    strict = app.dashboard(authorize=lambda asked: "ann", hosts=["a.b"])
    refused = Browser(strict).get("/keys", headers={"Host": "a.c", "Accept": "application/json"})
    assert refused.status_code == 403
    assert refused.json()["next"] == (
        "add it: redrive web --allowed-host a.c, or app.dashboard(hosts=['a.c']) where it is mounted"
    )


# -- forms


def test_a_form_needs_the_token_of_its_cookie() -> None:
    assert not refused(from_browser(), {"csrf": TOKEN})
    for form in ({}, {"csrf": ""}, {"csrf": "y" * 43}, {"csrf": TOKEN + "x"}):
        assert refused(from_browser(), form)
    for cookie in ("", "redrive_csrf=", "redrive_csrf=short", f"redrive_csrf={'y' * 43}"):
        assert refused(from_browser(cookie=cookie), {"csrf": TOKEN})
    assert refused(from_browser(cookie="redrive_csrf="), {"csrf": ""}), "nothing is not equal to nothing"


def test_the_token_of_another_site_on_this_host_does_not_hide_ours() -> None:
    for cookie in (f"redrive_csrf={'y' * 43}; redrive_csrf={TOKEN}", f"redrive_csrf={TOKEN}; redrive_csrf={'y' * 43}"):
        assert not refused(from_browser(cookie=cookie), {"csrf": TOKEN})


@pytest.mark.parametrize("site", ["cross-site", "same-site", "weird"])
def test_what_a_browser_says_is_of_another_site_is_refused_with_the_right_token_too(site: str) -> None:
    assert refused(from_browser(sec_fetch_site=site), {"csrf": TOKEN})
    assert refused(from_browser(sec_fetch_site=site, content_type="application/json"), {})


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://127.0.0.1.evil.example:8787"]
)
def test_an_origin_that_is_not_ours_is_refused(origin: str) -> None:
    assert refused(from_browser(origin=origin), {"csrf": TOKEN})


def test_a_proxy_may_rename_the_host_where_the_browser_says_that_the_page_is_ours() -> None:
    assert not refused(from_browser(origin="https://jobs.example.com", sec_fetch_site="same-origin"), {"csrf": TOKEN})
    assert not refused(from_browser(origin="https://127.0.0.1:8787"), {"csrf": TOKEN}), "a proxy ends TLS"


def test_json_needs_no_token_and_nothing_that_only_looks_like_json_passes() -> None:
    for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON"):
        assert not refused(from_browser(content_type=kind), {})
    for kind in ("text/plain", "text/plain; application/json", "application/json+x", "multipart/form-data", ""):
        assert refused(from_browser(content_type=kind), {})


def test_a_program_with_the_token_of_the_site_needs_nothing_else() -> None:
    assert not refused(from_browser(sec_fetch_site="cross-site"), {}, bears_token=True)


# -- addresses


@pytest.mark.parametrize(
    ("root", "shown"),
    [("", ""), ("/", ""), ("/jobs", "/jobs"), ("/jobs/", "/jobs"), ("//evil.example", "/evil.example"),
     ("/a b;c", "/a%20b%3Bc"), ("/ä?#", "/%C3%A4%3F%23"), ('/"><script>', "/%22%3E%3Cscript%3E")],
)  # fmt: skip
def test_where_the_site_is_mounted_is_quoted(root: str, shown: str) -> None:
    assert guard.root_of(request(root_path=root)) == shown


@pytest.mark.parametrize(
    ("root", "to", "below"),
    [
        ("", "/queues?since=1h", True),
        ("", "/", True),
        ("/jobs", "/jobs", True),
        ("/jobs", "/jobs/queues", True),
        ("/jobs", "/jobsworth", False),
        ("/jobs", "/other", False),
        ("/jobs", "/jobs/../other", False),
        ("/jobs", "/jobs/..", False),
        ("", "//evil", False),
        ("", "/\\evil", False),
        ("", "/\tevil", False),
        ("", "/a\r\nb", False),
        ("", "/ä", False),
        ("", "https://evil", False),
        ("", "", False),
    ],
)
def test_an_address_below_the_mount_is_told_from_others(root: str, to: str, below: bool) -> None:
    assert guard.is_below(root, to) is below


# -- cookies


def set_cookies(app: App, **options: Any) -> list[str]:
    headers = options.pop("headers", {})
    answer = Browser(app.dashboard(**options)).get("/keys", headers=headers)
    return answer.headers.get_list("set-cookie")


def test_cookies_are_for_this_site_and_no_script(app: App) -> None:
    (cookie,) = set_cookies(app)
    assert cookie.startswith("redrive_csrf=") and {"HttpOnly", "Path=/", "SameSite=strict"} <= {*cookie.split("; ")}
    assert "Secure" not in cookie
    (cookie,) = set_cookies(app, authorize=lambda asked: "ann", headers={"X-Forwarded-Proto": "https, http"})
    assert "Secure" in cookie.split("; ")


def test_a_cookie_of_a_site_below_a_path_is_of_that_path_alone(app: App) -> None:
    answer = Browser(app.dashboard(base_path="/jobs")).get("/jobs/keys")
    assert "Path=/jobs;" in answer.headers["set-cookie"]


def test_the_token_of_forms_stays_and_one_that_is_none_is_replaced(app: App) -> None:
    browser = Browser(app.dashboard())
    first = browser.token
    assert browser.get("/keys").status_code == 200 and browser.token == first
    browser.cookies = type(browser.cookies)({"redrive_csrf": "'\"><script>" + "x" * 32})
    answer = browser.get("/keys")
    assert "<script>x" not in answer.text and len(answer.cookies["redrive_csrf"]) == 43


# -- what the last action said


def test_what_an_action_did_is_said_once(app: App) -> None:
    browser = Browser(app.dashboard())
    assert browser.post("/do/note-group", {"fingerprint": FP, "note": "x"}).status_code != 403
    answer = Response()
    asked = request(headers={"cookie": f"redrive_csrf={TOKEN}"})
    guard.say(answer, asked, "Queue ä; <b> is paused.")
    cookie = answer.headers["set-cookie"].partition(";")[0]
    told = request("GET", headers={"cookie": f"redrive_csrf={TOKEN}; {cookie}"})
    assert guard.said(told) == "Queue ä; <b> is paused."
    shown = browser.get("/keys", headers={"Cookie": f"redrive_csrf={TOKEN}; {cookie}"})
    assert "Queue ä; &lt;b&gt; is paused." in shown.text
    ended = [each for each in shown.headers.get_list("set-cookie") if each.startswith("redrive_said=")]
    assert ended and "Max-Age=0" in ended[0]


@pytest.mark.parametrize(
    "cookie", ["Log in at evil.example", "a.b", ".", f"{'0' * 32}.{quote('Log in at evil.example')}"]
)
def test_words_that_another_site_put_into_the_cookie_are_not_shown(app: App, cookie: str) -> None:
    page = Browser(app.dashboard()).get("/keys", headers={"Cookie": f"redrive_csrf={TOKEN}; redrive_said={cookie}"})
    assert page.status_code == 200 and 'class="said"' not in page.text


@pytest.mark.parametrize("text", ["x" * 100_000, "💥" * 5_000, "\r\nSet-Cookie: a=b"], ids=["long", "wide", "lines"])
def test_a_long_text_fits_a_cookie_and_no_text_ends_the_header(text: str) -> None:
    answer = Response()
    guard.say(answer, request(headers={"cookie": f"redrive_csrf={TOKEN}"}), text)
    cookie = answer.headers["set-cookie"]
    assert len(cookie) < 4_096 and "\n" not in cookie and "\r" not in cookie


# -- links from elsewhere


def test_a_link_from_elsewhere_asks_again_with_our_cookies(app: App) -> None:
    browser = Browser(app.dashboard(token="correct-horse-battery-staple"))
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    answer = browser.get('/queues/a%2Fb?since=1h&x="><script>', headers=link)
    assert answer.status_code == 200 and 'content="0; url=/queues/a/b?since=1h&amp;x=%22%3E%3Cscript%3E"' in answer.text
    assert "set-cookie" not in answer.headers, "a new token would spoil the forms of other tabs"
    again = browser.get("/queues/a", headers={**link, "Sec-Fetch-Site": "same-origin"})
    assert again.status_code == 303 and again.headers["location"].startswith("/login?next=")
