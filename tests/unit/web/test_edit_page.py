"""The page that edits a message: what it shows, what it refuses without losing a word, and what it commits."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest
from tests.support.dead_letters import BIG, SECRET, Pages, audited, dead, text_of
from tests.support.dead_letters import app as app
from tests.support.dead_letters import pages as pages

from redrive import App
from redrive.message import Draft, Lane, Message
from redrive.read_model import ReadModel
from redrive.web import Site
from redrive.web.hidden import Veiled


def textarea(page: str, name: str = "body") -> str:
    found = re.search(rf'<textarea name="{name}"[^>]*>\n(.*?)</textarea>', page, re.DOTALL)
    assert found is not None
    return unescape(found[1])


def value(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found is not None, name
    return unescape(found[1])


def form(page: str, **changed: str) -> dict[str, str]:
    """The fields of the form as the page shows them, with some of them changed."""
    found = {"body": textarea(page), "headers": textarea(page, "headers"), "delay": ""}
    for name in re.findall(r'name="was\.(\w+)"', page):
        found[f"was.{name}"] = found[f"arg.{name}"] = value(page, f"was.{name}")
    return found | {name.replace("arg_", "arg."): text for name, text in changed.items()}


def body_of(app: App, id: str) -> Any:
    (found,) = app.store.find([id])
    assert found is not None
    return json.loads(found.body)


def edited(app: App, pages: Pages, message: Message, **changed: str) -> Message:
    """Preview the change, and commit what the preview shows."""
    path = f"/messages/{message.id}/edit"
    preview = pages.post(path, form(pages.html(path).text, **changed))
    assert preview.status_code == 200, text_of(preview)
    sent = {name: value(preview.text, name) for name in ("id", "body", "headers", "delay")}
    response = pages.do("edit", **sent, reason="the customer moved")
    assert response.status_code == 303, text_of(response)
    assert f"takes the place of {message.id}" in pages.followed(response)
    (found,) = app.store.find([audited(app, "edit").ids[1]])
    assert found is not None
    return found


def test_edit_page_shows_body_headers_schema_and_a_field_for_each_argument(app: App, pages: Pages) -> None:
    message = dead(app)[0]
    page = pages.html(f"/messages/{message.id}/edit").text
    assert json.loads(textarea(page)) == {**json.loads(message.body), "password": "***"}
    assert textarea(page, "headers") == "api-key: ***\ntenant: acme"
    assert value(page, "arg.city") == "Graz"
    assert "city (string, optional)" in text_of(pages.html(f"/messages/{message.id}/edit"))
    assert "order.ship" in page
    assert SECRET not in page + json.dumps(pages.json(f"/messages/{message.id}/edit"))


def test_committed_edit_replaces_the_message_and_is_audited(app: App, pages: Pages) -> None:
    message = dead(app)[0]
    new = edited(app, pages, message, arg_city="Wien")
    assert json.loads(new.body) == {**json.loads(message.body), "city": "Wien"}
    assert new.headers == {**message.headers, "redrive-replaces": message.id}
    assert app.store.find([message.id]) == [None]
    entry = audited(app, "edit")
    assert (entry.ids, entry.reason) == ((message.id, new.id), "the customer moved")
    assert "Wien" in entry.text
    assert SECRET not in entry.text
    gone = pages.html(f"/messages/{message.id}")
    assert gone.status_code == 404
    assert new.id in text_of(gone)
    assert f'href="/messages/{message.id}"' in pages.html(f"/messages/{new.id}").text


def test_secrets_that_are_left_as_stars_stay_as_they_are_stored(app: App, pages: Pages) -> None:
    new = edited(app, pages, dead(app)[0], body='{"password": "***", "number": 1, "city": "Linz"}')
    assert json.loads(new.body) == {"password": SECRET, "number": 1, "city": "Linz"}
    assert new.headers["api-key"] == SECRET


def test_secret_is_replaced_by_what_is_typed_and_shown_to_who_typed_it_only(app: App, pages: Pages) -> None:
    message = dead(app)[0]
    path = f"/messages/{message.id}/edit"
    sent = form(pages.html(path).text, arg_password="correct horse")
    assert "correct horse" in textarea(pages.post(path, sent).text)
    new = edited(app, pages, message, arg_password="correct horse")
    assert json.loads(new.body)["password"] == "correct horse"
    assert "correct horse" not in audited(app, "edit").text


def test_headers_are_changed_added_and_removed_by_line(app: App, pages: Pages) -> None:
    message = dead(app)[0]
    new = edited(app, pages, message, headers="api-key: ***\r\nregion: south\r\n")
    assert new.headers == {"api-key": SECRET, "region": "south", "redrive-replaces": message.id}


def test_preview_shows_the_difference_and_changes_nothing(app: App, pages: Pages) -> None:
    message = dead(app)[0]
    path = f"/messages/{message.id}/edit"
    preview = pages.post(path, form(pages.html(path).text, arg_city="Wien", delay="10m"))
    assert "<ins>+  &#34;city&#34;: &#34;Wien&#34;,</ins>" in preview.text
    assert "<del>-  &#34;city&#34;: &#34;Graz&#34;,</del>" in preview.text
    assert app.store.find([message.id])[0] == message
    assert [entry for entry in app.audit if entry.action == "edit"] == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"body": '{"number": "many <b>", "city": "Wien"}'}, "Expected `int`"),
        ({"body": '{"number": 1, "colour": "red"}'}, "colour"),
        ({"body": '{"number": 1, "city": "Wien'}, "not JSON"),
        ({"arg_number": "four"}, "Expected `int`"),
        ({"headers": "no sign"}, "expected NAME: VALUE"),
        ({"headers": "other: ***"}, "hides no value there"),
        ({"body": '{"number": 1, "city": "***"}'}, "hides no value there"),
        ({"delay": "soon"}, "soon"),
        ({}, "changes nothing"),
    ],
)
def test_what_does_not_fit_is_explained_and_every_typed_word_is_kept(
    app: App, pages: Pages, changed: dict[str, str], told: str
) -> None:
    message = dead(app)[0]
    path = f"/messages/{message.id}/edit"
    sent = form(pages.html(path).text, **changed)
    for response in (pages.post(path, sent), pages.do("edit", id=message.id, **sent, reason="it is wrong")):
        assert response.status_code == 422
        assert told in text_of(response)
        kept = textarea(response.text)
        assert kept == sent["body"] or json.loads(kept)["number"] == "four"
        assert textarea(response.text, "headers") == sent["headers"]
        assert value(response.text, "delay") == sent["delay"]
    assert app.store.find([message.id])[0] == message


def test_commit_without_a_reason_is_asked_for_it_with_all_that_was_typed(app: App, pages: Pages) -> None:
    message = dead(app)[0]
    response = pages.do("edit", id=message.id, body='{"number": 1}', reason=" ")
    assert response.status_code == 422
    assert json.loads(textarea(response.text)) == {"number": 1}
    assert "the reason is missing" in text_of(response)
    assert app.store.find([message.id])[0] == message


def test_message_that_another_moved_meanwhile_is_not_edited(app: App, pages: Pages) -> None:
    message = dead(app)[0]
    app.dlq.retry([message.id])
    assert pages.html(f"/messages/{message.id}/edit").status_code == 409
    assert pages.do("edit", id=message.id, body='{"number": 1}', reason="late").status_code == 409
    assert pages.html("/messages/0198c0de-0000-7000-8000-000000000000/edit").status_code == 404


def test_without_an_app_it_says_that_nothing_can_be_checked_and_takes_unchecked(app: App) -> None:
    bare, message = Pages(Site(ReadModel(store=app.store))), dead(app)[0]
    path = f"/messages/{message.id}/edit"
    page = bare.html(path)
    assert "only the store's URL is known here" in text_of(page)
    assert 'name="unchecked"' in page.text
    refused = bare.post(path, {"body": '{"anything": 1}'})
    assert refused.status_code == 422
    assert json.loads(textarea(refused.text)) == {"anything": 1}
    bare.do("edit", id=message.id, body='{"anything": 1}', unchecked="1", reason="by hand")
    assert body_of(app, audited(app, "edit").ids[1]) == {"anything": 1}


def test_program_edits_by_json_and_gets_the_difference(app: App, pages: Pages) -> None:
    message = dead(app)[0]
    shown = pages.json(f"/messages/{message.id}/edit")
    assert (shown["body"]["city"], shown["diff"], shown["task"]) == ("Graz", None, "order.ship")
    assert json.loads(shown["schema"])["required"] == ["number"]


def test_numbers_that_no_float_holds_are_kept_to_the_last_digit(app: App, pages: Pages) -> None:
    (put,) = app.store.put(
        [Draft(task="order.ship", queue="crm", body=f'{{"number":{BIG * 4},"city":"Graz"}}'.encode())]
    )
    app.run_worker(["crm"], burst=True)
    message = next(message for message in dead(app) if message.id == put.id)
    new = edited(app, pages, message, arg_city="Wien")
    assert new.body == f'{{"number":{BIG * 4},"city":"Wien"}}'.encode()
    assert new.lane is Lane.READY


@pytest.mark.parametrize(
    ("stored", "typed", "meant"),
    [
        ('{"token":"a","n":1}', '{"n":2,"token":"***"}', '{"n":2,"token":"a"}'),
        ('[{"token":"a"},{"token":"b"}]', '[{"token":"***"},{"token":"***"}]', '[{"token":"a"},{"token":"b"}]'),
        ('[{"token":"a"},{"token":"a"}]', '[{"token":"***"}]', '[{"token":"a"}]'),
        ('{"token":{"deep":1},"n":1.50}', '{"token":"***","n":1.50}', '{"token":{"deep":1},"n":1.50}'),
        ('{"text":"a *** b"}', '{"text":"a *** c"}', '{"text":"a *** c"}'),
        ('{"n":1}', '{"n":"1"}', '{"n":"1"}'),
        ('{"n":1}', '{"n":true}', '{"n":true}'),
    ],
)
def test_stars_mean_what_they_hide(stored: str, typed: str, meant: str) -> None:
    from redrive.web import exact

    assert exact.write(Veiled(stored.encode()).stored(exact.read(typed))) == meant


@pytest.mark.parametrize(
    ("stored", "typed"),
    [
        ('{"token":"a"}', '{"other":"***"}'),
        ('{"token":"a","n":"b"}', '{"token":"a","n":"***"}'),
        ('[{"token":"a"},{"token":"b"}]', '[{"token":"***"}]'),
        ('{"token":"a"}', '["***"]'),
    ],
)
def test_stars_that_hide_nothing_or_several_values_are_refused(stored: str, typed: str) -> None:
    from redrive.web import exact

    with pytest.raises(ValueError, match=r"holds \*\*\*"):
        Veiled(stored.encode()).stored(exact.read(typed))
