"""Read the forms of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request

from ..message import UNREADABLE
from .ask import Problem

FORM_MAX = 1024 * 1024  # the most bytes of a form
BODY_MAX = 4 * 1024 * 1024  # the most bytes of a form with a message's body, where a character may take three bytes
ASIDE = 64 * 1024  # bytes above which a form is decoded on a thread, so as not to block the event loop
LOGIN_MAX = 16 * 1024  # the most bytes of a form that needs no session
FIELDS_MAX = 20_000
_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"
Form = tuple[Mapping[str, str], Mapping[str, list[str]]]


def wants_json(request: Request) -> bool:
    """Return True if the answer is to be JSON: the request accepts JSON and not HTML, or is itself JSON."""
    accepted = request.headers.get("accept", "")
    return "text/html" not in accepted and (_JSON in accepted or _type(request) == _JSON)


def _type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def form_of(request: Request, most: int = FORM_MAX) -> Form:
    """Return the fields of a posted form or JSON object of at most `most` bytes: the last value of each name, and all
    values of each name. Raises Problem."""
    if request.method != "POST":
        return {}, {}
    body, kind = await _body(request, most), _type(request)
    if body and kind not in (_FORM, _JSON):
        why = f"it is {kind or 'of no type'}; expected {_FORM} or {_JSON}"
        raise Problem("the request cannot be read", why, status=415)
    read = _of_json if kind == _JSON else _of_form
    return await asyncio.to_thread(read, body) if len(body) > ASIDE else read(body)


def _of_form(body: bytes) -> Form:
    lists: dict[str, list[str]] = {}
    try:
        for name, value in parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX):
            lists.setdefault(name, []).append(value)
    except (UnicodeDecodeError, ValueError) as error:
        raise Problem("the form cannot be read", str(error)) from None
    return {name: values[-1] for name, values in lists.items()}, lists


async def _body(request: Request, most: int) -> bytes:
    parts, left = [], most
    async for part in request.stream():
        left -= len(part)
        if left < 0:
            raise Problem("the request is too large", f"expected at most {most >> 10:,} KiB", status=413)
        parts.append(part)
    return b"".join(parts)


def _of_json(body: bytes) -> Form:
    try:
        fields = msgspec.json.decode(body or b"{}", type=dict[str, str | int | float | bool | list[str] | None])
    except UNREADABLE as error:
        raise Problem("the request is not an object of texts, numbers and lists of texts", str(error)) from None
    lists = {
        name: value if isinstance(value, list) else [_text(value)]
        for name, value in fields.items()
        if value is not None
    }
    return {name: values[-1] if values else "" for name, values in lists.items()}, lists


def _text(value: str | float | bool) -> str:
    return ("true" if value else "") if isinstance(value, bool) else str(value)
