"""A form for a task's body: one field for each argument that is a text, a number or a boolean."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import escape

from ..redact import one_line
from . import exact
from .ask import Record

FIELDS_MAX = 60
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_KINDS = ("string", "integer", "number", "boolean")


def form_of(schema: Mapping[str, Any], body: Any) -> list[Record]:
    """Return the fields of a form for this body: name, type, whether it is required, and its present value as text."""
    if not isinstance(body, exact.Pairs):
        return []
    held = dict(body)
    required = schema.get("required", ())
    fields = []
    for name, part in schema.get("properties", {}).items():
        kind, nullable, choices = _kind(part)
        value = _shown(held.get(name))
        if not kind or value is None:
            continue
        fields.append(
            {
                "name": name, "kind": kind, "nullable": nullable, "choices": choices, "required": name in required,
                "text": value, "about": part.get("description", ""), "absent": name not in held,
            }
        )  # fmt: skip
    return fields[:FIELDS_MAX]


def changed(fields: Sequence[Record], body: exact.Pairs, form: Mapping[str, str]) -> exact.Pairs:
    """Return the body with the values of the fields that a person changed: those whose typed text differs from the
    form's initial one."""
    made = exact.Pairs(body)
    for field in fields:
        name = field["name"]
        typed, was = form.get(f"arg.{name}"), form.get(f"was.{name}")
        if typed is None or typed == was:
            continue
        at = next((at for at, (known, _) in enumerate(made) if known == name), None)
        if typed == "" and not field["required"] and not field["nullable"] and field["kind"] != "string":
            if at is not None:
                del made[at]
            continue
        pair = (name, _value(field, typed))
        if at is None:
            made.append(pair)
        else:
            made[at] = pair
    return made


def typed_fields(fields: Sequence[Record], form: Mapping[str, str] | None = None) -> list[Record]:
    """Return the fields as a page shows them; with `form`, with the texts that were typed in it."""
    shown = []
    for field in fields:
        was = (form or {}).get(f"was.{field['name']}", field["text"])
        text = (form or {}).get(f"arg.{field['name']}", field["text"])
        shown.append({**field, "text": escape(text), "was": escape(was)})
    return shown


def _kind(part: Mapping[str, Any]) -> tuple[str, bool, list[str]]:
    """Return, for the schema of an argument, its type (empty if a field cannot hold it), True if it may be null, and
    its choices."""
    several = part.get("anyOf", (part,))
    given = [each for each in several if each.get("type") != "null"]
    nullable = len(given) < len(several)
    if len(given) != 1:
        return "", nullable, []
    choices = [each for each in given[0].get("enum", ()) if each is not None]
    if choices:
        return ("string" if all(isinstance(each, str) for each in choices) else ""), nullable, choices
    kind = given[0].get("type", "")
    return (kind if kind in _KINDS else ""), nullable, []


def _shown(value: Any) -> str | None:
    """Return a value as the text of a field; None if a field's text would lose part of the value."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, exact.ExactNumber):
        return value.digits
    return value if isinstance(value, str) and one_line(value) == value else None


def _value(field: Record, typed: str) -> Any:
    """Return the value that a typed text means in this field. A text that does not fit is returned as it is, for the
    schema to refuse."""
    if typed == "" and field["nullable"]:
        return None
    if field["kind"] == "boolean" and typed in ("true", "false"):
        return typed == "true"
    if field["kind"] in ("integer", "number") and _NUMBER.fullmatch(typed.strip()):
        return exact.ExactNumber(typed.strip())
    return typed
