"""A form that is refused stands again on its page, with what is wrong and what was typed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.redrive_pages import Pages, text_of

from redrive.web.forms import filled


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    with Pages(tmp_path) as made:
        yield made


FORMS = [
    ("/queues/mail", "pause-queue", {"reason": "they <move>", "for": "soon"}, "for='soon' is not a duration"),
    ("/queues/mail", "set-width", {"width": "many", "group": "a"}, "width='many' is not a number"),
    ("/flow/smtp", "open-breaker", {"reason": "they <move>", "for": "soon"}, "for='soon' is not a duration"),
    ("/tasks/mail.send", "pause-task", {"reason": "they <move>", "for": "soon"}, "for='soon' is not a duration"),
    (
        "/plans?q=task:mail.send",
        "plan",
        {"stop_if": "often", "note": "they <move>", "rate": "3/s"},
        "Stop rule 'often' is refused",
    ),
    (
        "/plans?q=task:mail.send",
        "plan",
        {"rate": "fast", "note": "they <move>", "slow_start": "off"},
        "Rate 'fast' is refused",
    ),
    ("/schedules", "save-view", {"name": " "}, "name"),
]


@pytest.mark.parametrize(("at", "action", "typed", "wrong"), FORMS)
def test_refused_form_is_shown_again_with_the_reason_and_the_typed_texts(
    pages: Pages, at: str, action: str, typed: dict[str, str], wrong: str
) -> None:
    pages.bury(sends=2)
    answer = pages.send_form(pages.get(at), action, **typed)
    assert answer.status_code == 422 and 'aria-label="Pages"' in answer.text
    (form,) = re.findall(
        rf'<form [^>]*action="[^"]*/do/{action}">(?:(?!</form>).)*id="refused".*?</form>', answer.text, re.S
    )
    assert 'role="alert"' in form and wrong in text_of(form.partition("</p>")[0])
    for name, value in typed.items():
        (field,) = re.findall(rf'<input(?![^>]*type="hidden")[^>]* name="{name}"[^>]*>', form)
        if value == "off":
            assert " checked" not in field
        else:
            assert f'value="{value.replace("<", "&lt;").replace(">", "&gt;")}"' in field
    assert " open>" in answer.text and "data-live" not in answer.text


def test_refused_form_leads_only_to_pages_that_the_user_may_see(pages: Pages) -> None:
    pages.bury(sends=1)
    page = pages.get("/queues/mail")
    for here in ("//evil.example/x", "do/pause-queue", "nowhere", "messages/../login", "live"):
        answer = pages.send_form(page, "pause-queue", reason="r", here=here, **{"for": "soon"})
        assert answer.status_code == 422 and "evil" not in answer.text and 'id="refused"' not in answer.text
    assert (
        "evil"
        not in pages.send_form(page, "pause-queue", reason="r", here="queues/mail?x=evil", **{"for": "x"}).headers
    )


def test_form_that_is_not_there_any_more_answers_with_its_error(pages: Pages) -> None:
    pages.bury(sends=1)
    page = pages.get("/flow/smtp")
    answer = pages.send_form(page, "open-breaker", reason="", dependency="gone", here="flow/smtp")
    assert answer.status_code in (404, 422) and 'id="refused"' not in answer.text


@pytest.mark.parametrize(
    ("fields", "form", "shown"),
    [
        ('<input name="a" value="1" size="3">', {"a": '"2'}, '<input name="a" size="3" value="&#34;2">'),
        ('<input name="a">', {}, '<input name="a">'),
        ('<input type="hidden" name="a" value="1">', {"a": "2"}, '<input type="hidden" name="a" value="1">'),
        ('<input type="checkbox" name="a" checked>', {}, '<input type="checkbox" name="a">'),
        (
            '<input type="checkbox" name="a" value="1">',
            {"a": "1"},
            '<input type="checkbox" name="a" value="1" checked>',
        ),
        (
            '<textarea name="a" rows="3">\nx</textarea>',
            {"a": "<y>"},
            '<textarea name="a" rows="3">\n&lt;y&gt;</textarea>',
        ),
        (
            '<select name="a"><option selected>x</option><option value="">any</option></select>',
            {"a": ""},
            '<select name="a"><option>x</option><option value="" selected>any</option></select>',
        ),
    ],
)
def test_fields_are_filled_as_they_were_typed(fields: str, form: dict[str, str], shown: str) -> None:
    assert filled(fields, form) == shown
