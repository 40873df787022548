"""Forms that were refused: on the page that has the form, with the reason and what was typed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, unquote

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape
from starlette.routing import Match, Route

from ..errors import RedriveError
from .ask import PageAnswer, PageRequest, Problem
from .table import Action, SitePage

HERE = "here"  # the field of a form with the address of its page
REFUSED = "refused"  # the id of the text that says what is wrong with a form
_FIELD = re.compile(r"<input\b[^>]*>|(<textarea\b[^>]*>)(.*?)</textarea>|(<select\b[^>]*>)(.*?)</select>", re.DOTALL)
_OPTION = re.compile(r"<option(?: value=\"([^\"]*)\")?(?: selected)?>(.*?)</option>", re.DOTALL)
_VALUE, _CHECKED = re.compile(r' value="[^"]*"'), re.compile(r" checked(?=[ >])")


def form_again(
    ask: PageRequest, action: Action, problem: Problem, pages: Iterable[tuple[SitePage, Route]]
) -> PageAnswer | None:
    """Return the page whose form was refused, with the reason and what was typed. None if the form does not say which
    page has it, or if that page cannot be shown to this user any more."""
    here = ask.form.get(HERE, "")
    path, _, query = here.partition("?")
    scope = {"type": "http", "method": "GET", "path": f"/{unquote(path)}", "root_path": ""}
    for page, route in pages if HERE in ask.form else ():
        match, found = route.matches(scope)
        if match is not Match.FULL or not ask.user.may(page.permission):
            continue
        lists = parse_qs(query, keep_blank_values=True)
        last = {name: values[-1] for name, values in lists.items()}
        try:
            record = page.read(replace(ask, path=found["path_params"], query=last, form={}, lists=lists))
        except (RedriveError, Problem):
            return None
        if isinstance(record, PageAnswer) and record.to:
            return None
        typed: dict[str, Any] = dict(record.typed) if isinstance(record, PageAnswer) else {}
        typed |= {"problem": problem, "action": action.name, "form": ask.form, "ids": ask.all("id"), HERE: here}
        return PageAnswer(record, status=problem.status, typed=typed, name=page.name)
    return None


@pass_context
def refused(context: Context, action: str, values: Mapping[str, object] = {}) -> bool:
    """Return True if the form of this action, with these hidden values, was refused."""
    typed = context.get("typed") or {}
    if "problem" not in typed or typed["action"] != action:
        return False
    form = typed["form"]  # its moment is that of the page that was left
    return all(form.get(name, "").strip() == str(value).strip() for name, value in values.items() if name != "at")


def filled(fields: str, form: Mapping[str, str]) -> Markup:
    """Return the fields of a form as they were filled in; hidden ones stay.

    >>> filled('<input name="for" value="15m">', {"for": "soon"})
    Markup('<input name="for" value="soon">')
    """
    return Markup(_FIELD.sub(lambda field: _filled(field, form), fields))


def _filled(field: re.Match[str], form: Mapping[str, str]) -> str:
    whole, area, _, menu, options = field[0], *field.groups()
    name = re.search(r' name="([^"]*)"', area or menu or whole)
    if name is None or ' type="hidden"' in whole:
        return whole
    typed = form.get(Markup(name[1]).unescape())
    if area:
        return whole if typed is None else f"{area}\n{escape(typed)}</textarea>"
    if menu:
        return whole if typed is None else f"{menu}{_OPTION.sub(lambda each: _chosen(each, typed), options)}</select>"
    if ' type="checkbox"' in whole or ' type="radio"' in whole:
        value = re.search(r' value="([^"]*)"', whole)
        ticked = typed == (Markup(value[1]).unescape() if value else "on")
        return _CHECKED.sub("", whole)[:-1] + (" checked>" if ticked else ">")
    return whole if typed is None else f'{_VALUE.sub("", whole)[:-1]} value="{escape(typed)}">'


def _chosen(option: re.Match[str], typed: str) -> str:
    given, text = option.groups()
    value = "" if given is None else f' value="{given}"'
    chosen = Markup(text if given is None else given).unescape() == typed
    return f"<option{value}{' selected' if chosen else ''}>{text}</option>"
