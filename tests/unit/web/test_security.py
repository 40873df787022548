"""What holds of every page and every action of the table, so that none is forgotten."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.support.sites import JSON, NAMES, Browser, Tags, address, stocked

from redrive import App
from redrive.stores.sqlite.store import SqliteStore
from redrive.web import ALL, Permission
from redrive.web.table import ACTIONS, PAGES, Action, SitePage

WEB = Path(__file__).parents[3] / "src" / "redrive" / "web"
TEMPLATES = sorted((WEB / "templates").glob("*.html"))
TOKEN = "correct-horse-battery-staple"
OWN = ("/live", "/login", "/static/redrive.css", "/nowhere", "/queues/")
TAKES_NOTHING = ("export-audit",)  # of the form
BY_NAME = {page.name: page for page in PAGES}
each_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)
each_action = pytest.mark.parametrize("action", ACTIONS, ids=[action.name for action in ACTIONS])


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[App, dict[str, dict[str, str]]]]:
    """An app whose pages all show something. No test here changes it: they are refused."""
    app = App(store=SqliteStore(tmp_path_factory.mktemp("stock") / "work.db"))
    yield app, stocked(app)
    app.store.close()


@pytest.fixture
def app(stock: tuple[App, Any]) -> App:
    return stock[0]


@pytest.fixture
def parts(stock: tuple[App, dict[str, dict[str, str]]]) -> dict[str, dict[str, str]]:
    return stock[1]


def entries(app: App) -> int:
    return sum(1 for _ in app.audit)


def secure(headers: Any) -> bool:
    policy = headers["content-security-policy"]
    return (
        "default-src 'none'" in policy
        and "script-src 'self';" in policy
        and "style-src 'self';" in policy
        and "frame-ancestors 'none'" in policy
        and "form-action 'self'" in policy
        and "unsafe" not in policy
        and headers["x-content-type-options"] == "nosniff"
        and headers["x-frame-options"] == "DENY"
        and headers["referrer-policy"] == "same-origin"
        and headers["cross-origin-resource-policy"] == "same-origin"
    )


def shown(browser: Browser, path: str) -> str:
    """The HTML of a page that there is."""
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text[-2000:]
    return answer.text


# -- every page


@each_page
def test_a_page_is_shown_as_html_and_as_json_and_kept_by_no_cache(page: SitePage, app: App, parts: Any) -> None:
    browser = Browser(app.dashboard())
    html, json = browser.get(address(page, parts)), browser.get(address(page, parts), headers=JSON)
    for answer in (html, json):
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store"), answer.text[:2000]
        assert secure(answer.headers) and "Cookie" in answer.headers["vary"]
    assert html.headers["content-type"] == "text/html; charset=utf-8" and isinstance(json.json(), dict)
    assert "set-cookie" not in json.headers


@each_page
def test_a_page_has_no_inline_script_or_style(page: SitePage, app: App, parts: Any) -> None:
    assert faults(shown(Browser(app.dashboard()), address(page, parts))) == []


@each_page
def test_a_page_loads_nothing_from_elsewhere(page: SitePage, app: App, parts: Any) -> None:
    tags = Tags(shown(Browser(app.dashboard()), address(page, parts)))
    loads = [
        value for tag, name, value in tags.given if name in ("src", "data-live") or (tag == "link" and name == "href")
    ]
    assert loads and all(value.startswith(("/static/", "/live")) for value in loads)


@each_page
def test_a_page_needs_its_permission(page: SitePage, app: App, parts: Any) -> None:
    others = ALL - {page.permission}
    site = app.dashboard(authorize=lambda request: ("ann", others) if page.permission != Permission.VIEW else None)
    expected = 403 if page.permission != Permission.VIEW else 401
    assert Browser(site).get(address(page, parts)).status_code == expected
    assert Browser(site).get(address(page, parts), headers={"X-Redrive-Live": "1"}).status_code == expected


@each_page
def test_a_page_is_for_no_one_who_is_not_known(page: SitePage, app: App, parts: Any) -> None:
    site = app.dashboard(token=TOKEN)
    answer = Browser(site).get(address(page, parts))
    assert answer.status_code == 303 and answer.headers["location"].startswith("/login?next=")
    answer = Browser(site).get(address(page, parts), headers=JSON)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert Browser(app.dashboard(), client=("203.0.113.9", 1)).get(address(page, parts)).status_code == 403
    assert Browser(app.dashboard(), x_forwarded_for="203.0.113.9").get(address(page, parts)).status_code == 403


@each_page
def test_a_page_is_not_shown_under_a_foreign_name(page: SitePage, app: App, parts: Any) -> None:
    answer = Browser(app.dashboard(), origin="http://evil.example:8787").get(address(page, parts))
    assert answer.status_code == 403 and "set-cookie" not in answer.headers


@each_page
def test_a_reader_without_permissions_is_shown_no_buttons(page: SitePage, app: App, parts: Any) -> None:
    if page.permission != Permission.VIEW:
        return  # this page is not for readers
    for site in (app.dashboard(read_only=True), app.dashboard(authorize=lambda request: ("ann", ["view"]))):
        tags = Tags(shown(Browser(site), address(page, parts)))
        assert not [value for tag, name, value in tags.given if name == "action" and "/do/" in value]


@each_page
def test_every_form_of_a_page_posts_to_an_action_with_the_token(page: SitePage, app: App, parts: Any) -> None:
    browser = Browser(app.dashboard())
    forms = Forms(shown(browser, address(page, parts))).found
    known = {f"/do/{action.name}" for action in ACTIONS} | {address(page, parts).partition("?")[0]}
    for to, fields in forms:
        assert to.partition("?")[0] in known and fields.get("csrf") == browser.cookies["redrive_csrf"]


@pytest.mark.parametrize("path", OWN)
@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_every_answer_has_the_headers(path: str, method: str, app: App) -> None:
    for site in (app.dashboard(token=TOKEN), app.dashboard()):
        assert secure(Browser(site).request(method, path).headers)


# -- every action


@each_action
def test_an_action_is_refused_where_the_site_is_read_only(action: Action, app: App) -> None:
    before, browser = entries(app), Browser(app.dashboard(read_only=True))
    answer = browser.post(f"/do/{action.name}", {"reason": "r"})
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET") and secure(answer.headers)
    assert browser.request("POST", f"/do/{action.name}", json={}, headers=JSON).status_code == 405
    assert entries(app) == before


@each_action
def test_an_action_needs_its_permission(action: Action, app: App) -> None:
    before = entries(app)
    browser = Browser(app.dashboard(authorize=lambda request: ("ann", ALL - {action.permission})))
    for answer in (
        browser.post(f"/do/{action.name}", {"reason": "r"}),
        browser.request("POST", f"/do/{action.name}", json={}, headers=JSON),
    ):
        assert answer.status_code == 403 and f"'{action.permission}'" in answer.text.replace("&#39;", "'")
    assert action.permission != Permission.VIEW and entries(app) == before


@each_action
def test_an_action_is_for_no_one_who_is_not_known(action: Action, app: App) -> None:
    browser = Browser(app.dashboard(token=TOKEN))
    assert browser.request("POST", f"/do/{action.name}", data={"reason": "r"}).status_code == 401
    far = Browser(app.dashboard(), client=("203.0.113.9", 1))
    assert far.request("POST", f"/do/{action.name}", data={"reason": "r"}).status_code == 403


@each_action
def test_an_action_of_another_site_is_refused(action: Action, app: App) -> None:
    before, browser = entries(app), Browser(app.dashboard())
    csrf, to = browser.token, f"/do/{action.name}"
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example:8787"},
        {"Host": "evil.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
    ):
        assert browser.request("POST", to, data={"csrf": csrf, "reason": "r"}, headers=headers).status_code == 403
        assert browser.request("POST", to, json={"reason": "r"}, headers=headers).status_code == 403
    for content, kind in (("{}", "text/plain"), ('{"csrf":"', "text/plain"), ("csrf=1", "multipart/form-data")):
        answer = browser.request("POST", to, content=content, headers={"Content-Type": kind})
        assert answer.status_code == 415
    assert entries(app) == before


@each_action
def test_an_action_without_the_token_of_its_form_is_refused(action: Action, app: App) -> None:
    before, browser = entries(app), Browser(app.dashboard())
    browser.get("/keys")
    for form in ({}, {"csrf": ""}, {"csrf": "x" * 43}):
        assert browser.request("POST", f"/do/{action.name}", data={"reason": "r", **form}).status_code == 403
    assert entries(app) == before


@each_action
def test_an_action_is_no_page(action: Action, app: App) -> None:
    answer = Browser(app.dashboard()).get(f"/do/{action.name}")
    assert answer.status_code in (404, 405) and secure(answer.headers)


@pytest.mark.parametrize(
    "action",
    [each for each in ACTIONS if each.name not in TAKES_NOTHING],
    ids=lambda action: action.name,
)
def test_an_action_with_an_empty_form_says_what_is_missing(action: Action, app: App) -> None:
    before, browser = entries(app), Browser(app.dashboard())
    answer = browser.request("POST", f"/do/{action.name}", json={}, headers=JSON)
    if action.name != "export-audit":  # it needs nothing: all of the log
        assert 400 <= answer.status_code < 500 and answer.json()["error"], answer.text
    assert entries(app) == before


def test_names_and_addresses_are_there_once() -> None:
    for found in ([page.name for page in PAGES], [page.path for page in PAGES], [action.name for action in ACTIONS]):
        assert len(found) == len({*found})
    assert len({page.key for page in PAGES if page.key}) == sum(bool(page.key) for page in PAGES)
    assert {action.permission for action in ACTIONS} == ALL - {Permission.VIEW}


@pytest.mark.parametrize("each", [*PAGES, *ACTIONS], ids=lambda each: each.name)
def test_what_the_table_names_is_there_and_says_what_it_does(each: SitePage | Action) -> None:
    found = each.read if isinstance(each, SitePage) else each.act
    assert callable(found) and found.__doc__
    if isinstance(each, SitePage):
        assert (WEB / "templates" / f"{each.name}.html").exists()


# -- templates


class Forms(HTMLParser):
    """The forms that post, with their hidden fields."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self._posts = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form":
            self._posts = (given.get("method") or "").lower() == "post"
            if self._posts:
                self.found.append((given.get("action") or "", {}))
        elif tag == "input" and self._posts and given.get("type") == "hidden":
            self.found[-1][1][given.get("name") or ""] = given.get("value") or ""

    def handle_endtag(self, tag: str) -> None:
        self._posts = self._posts and tag != "form"


def faults(html: str) -> list[str]:
    """Scripts, styles and handlers that stand in a page, and addresses that run something."""

    class Found(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            given = dict(attrs)
            bad = tag == "style" or (tag == "script" and not given.get("src"))
            for name, value in attrs:
                bad |= name.startswith("on") or name in ("style", "srcdoc")
                bad |= (value or "").strip().lower().startswith(("javascript:", "data:", "vbscript:"))
            if bad or tag in ("iframe", "object", "embed", "base"):
                found.append(self.get_starttag_text() or tag)

    found: list[str] = []
    Found().feed(html)
    return found


def test_faults_are_found() -> None:
    bad = (
        "<style>",
        "<p style='a'>",
        "<script>1</script>",
        "<a onclick=x>",
        "<a href=' JavaScript:1'>",
        "<base href=/>",
    )
    assert all(faults(each) for each in bad) and faults('<script src="/a.js"></script><a href="/">') == []


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_a_template_has_no_inline_script_or_style_and_trusts_no_text(template: Path) -> None:
    source = template.read_text()
    assert not re.search(r"\son\w+\s*=|\sstyle\s*=|<style|javascript:|autoescape|\{%-?\s*raw", source)
    assert not re.findall(r"<script(?![^>]*\ssrc=)", source)
    trusted = re.findall(r"\{\{([^}]*\|\s*safe[^}]*)\}\}", source)
    assert all(re.match(r"\s*'[^']*'\s*\|\s*safe", each) for each in trusted), "only words of the template itself"
    assert not re.search(r"""(href|src|action)=["']?(/|https?:|//)""", source), "addresses are made by url()"


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_every_value_in_an_attribute_stands_in_quotes(template: Path) -> None:
    assert not re.findall(r"<[^>{%]*\s[a-z-]+=\{\{", template.read_text())


def test_the_script_makes_no_markup_of_texts() -> None:
    script = (WEB / "static" / "redrive.js").read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|localStorage", script
    )
    assert len(script.splitlines()) <= 300
