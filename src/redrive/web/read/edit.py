"""Edit a dead message: its body as a form and as text, its headers, and the difference before it is saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from markupsafe import escape

from ...codec import is_json
from ...errors import BlobsUnavailable, ConfigError, EnqueueError, Refused, Unreadable
from ...message import Message
from ...present.permissions import Permission
from ...present.schemas import schema_of, schema_text
from ...redact import HIDDEN, in_json, one_line, redact_value
from ...triage.edit import Editor, Prepared
from .. import exact, schemas
from ..ask import PageAnswer, PageRequest, Problem, Record
from ..hidden import Veiled
from .message import gone

EDITED_MAX = 1024 * 1024  # bytes of the largest body that can be edited
FORM = ("body", "headers", "delay", "unchecked")


def edit(ask: PageRequest) -> PageAnswer:
    """Return the form; after a POST, with the difference or the reason why the body does not fit."""
    return Attempt(ask, ask.path["id"]).page()


class _Mistake(NamedTuple):
    """Why an edit cannot be committed, and the HTTP status."""

    text: str
    status: int = 422


class Attempt:
    """An edit of one message, as typed in the form. Raises Problem if that message cannot be edited at all."""

    editor: Editor
    message: Message
    posted: bool

    def __init__(self, ask: PageRequest, id: str) -> None:
        ask.user.need(Permission.VIEW_BODIES)
        self._ask, self.editor = ask, Editor(ask.store, ask.registry)
        if ask.store.find([id])[0] is None:
            raise gone(ask, id)
        self.message = self.editor.find(id)
        self.posted = any(name in ask.form for name in (*FORM, "reason")) or any(
            name.startswith("arg.") for name in ask.form
        )
        self._task = ask.registry.tasks.get(self.message.task) if ask.registry is not None else None
        self._schema: Mapping[str, Any] = {} if self._task is None else schema_of(self._task)  # type: ignore[arg-type]
        self._read_body()
        self._headers = {
            one_line(name): one_line(str(value)) for name, value in redact_value(dict(self.message.headers)).items()
        }
        self._body_text = self._veiled.text if self._veiled else ""
        self._shown: Any = self._veiled.shown if self._veiled else None
        self.mistake: _Mistake | None = None
        self.prepared: Prepared | None = None
        if self.posted:
            self._prepare()

    def _read_body(self) -> None:
        """Read the stored body for the form, with its secrets hidden; note why if it is too large, unreadable or not
        JSON."""
        self._veiled: Veiled | None = None
        self._unread = ""
        try:
            body = self.editor.body(self.message)
            if len(body) > EDITED_MAX:
                self._unread = (
                    f"the body has {len(body):,} bytes, and pages edit {EDITED_MAX:,}; use `redrive dlq edit`"
                )
                return
            if not is_json(body):
                self._unread = "the body is not JSON, and a text field would not keep its bytes"
                return
            self._veiled = Veiled(body)
        except (Unreadable, BlobsUnavailable) as error:
            self._unread = str(error)
        except (ValueError, RecursionError) as error:
            self._unread = f"the body cannot be shown as text: {error}"

    def _prepare(self) -> None:
        form = self._ask.form
        self._body_text = in_json(_lines(form["body"])) if "body" in form else self._body_text
        try:
            self.prepared = self.editor.prepared(
                self.message,
                body=self._new_body(),
                headers=self._new_headers(),
                delay=form.get("delay", "").strip() or 0,
                unchecked=self._ask.checked("unchecked"),
            )
        except (Refused, EnqueueError) as error:
            self.mistake = _Mistake(str(error))
        except (ConfigError, Unreadable, BlobsUnavailable, ValueError, TypeError, RecursionError) as error:
            self.mistake = _Mistake(str(error))

    def _new_body(self) -> bytes | None:
        """Return the edited body; None if the form did not change it. Raises ValueError if it is not JSON."""
        if not self._body_text.strip() and self._veiled is None:
            return None
        try:
            typed = exact.read(self._body_text)
        except ValueError as error:
            raise ValueError(f"the body is not JSON: {error}") from None
        if isinstance(typed, exact.Pairs):
            merged = schemas.changed(schemas.form_of(self._schema, self._shown_fields(typed)), typed, self._ask.form)
            if not exact.same(merged, typed):
                typed, self._body_text = merged, in_json(exact.pretty(merged))
        self._shown = typed
        if self._veiled is None:
            return exact.write(typed).encode()
        return None if exact.same(typed, self._veiled.shown) else exact.write(self._veiled.stored(typed)).encode()

    def _shown_fields(self, typed: exact.Pairs) -> Any:
        """Return the body from which the form's fields were made: the stored one if shown, else the typed one."""
        return self._veiled.shown if self._veiled and isinstance(self._veiled.shown, exact.Pairs) else typed

    def _new_headers(self) -> Mapping[str, str | None] | None:
        """Return the headers that the form changed: None as a value removes one; None if the form has no headers.
        Raises ValueError."""
        if "headers" not in self._ask.form:
            return None
        stored = {one_line(name): (name, value) for name, value in self.message.headers.items()}
        made: dict[str, str | None] = dict.fromkeys(self.message.headers)
        for number, line in enumerate(_lines(self._ask.form["headers"]).splitlines(), 1):
            if not line.strip():
                continue
            shown, sign, text = line.partition(":")
            shown, text = shown.strip(), text.strip()
            if not sign or not shown:
                raise ValueError(f"line {number} of the headers is {line.strip()!r}; expected NAME: VALUE")
            name, value = stored.get(shown, (shown, ""))
            as_it_is = shown in stored and text == self._headers[shown].strip()
            if not as_it_is and HIDDEN in text:
                raise ValueError(f"header {shown!r} holds {HIDDEN}, which hides no value there; write the whole value")
            made[name] = value if as_it_is else text
        return {name: text for name, text in made.items() if text != self.message.headers.get(name)} or None

    def page(self, mistake: str = "", status: int = 422) -> PageAnswer:
        """Return the page of this edit; `mistake` says why it was not committed."""
        wrong = _Mistake(mistake, status) if mistake else self.mistake
        form, ask = self._ask.form, self._ask
        listed = schemas.form_of(self._schema, self._shown)
        unmerged = form if self.posted and self.mistake is not None and not is_json(self._body_text.encode()) else None
        headers = "\n".join(f"{name}: {value}" for name, value in sorted(self._headers.items()))
        typed = {
            "body": escape(self._body_text),
            "headers": escape(_lines(form.get("headers", headers))),
            "delay": form.get("delay", ""),
            "unchecked": ask.checked("unchecked"),
            "reason": form.get("reason", ""),
            "fields": schemas.typed_fields(listed, unmerged),
        }
        record = self._record(wrong)
        return PageAnswer(record, status=wrong.status if wrong else 200, typed=typed, name="edit")

    def _record(self, wrong: _Mistake | None) -> Record:
        message: Message = self.message
        diff = self.prepared.diff if self.prepared is not None else None
        return {
            "id": message.id,
            "task": message.task,
            "queue": message.queue,
            "state": str(message.lane),
            "body": msgspec.Raw(exact.write(self._veiled.shown).encode()) if self._veiled else None,
            "unread": self._unread or None,
            "headers": dict(message.headers),
            "uncheckable": self._uncheckable(),
            "schema": schema_text(self._schema) if self._schema else None,
            "mistake": wrong.text if wrong else None,
            "diff": diff,
            "lines": [] if diff is None else [{"sign": _sign(line), "text": line} for line in diff.splitlines()],
            "command": self._ask.command("dlq", "edit", message.id, "--reason", "…"),
        }

    def _uncheckable(self) -> str | None:
        """Return why the edited body cannot be checked; None if it can be."""
        if self._ask.registry is None:
            return "only the store's URL is known here, and no app: nothing can tell whether the body fits its task"
        if self._task is None:
            return f"the app has no task {self.message.task!r}: nothing can tell whether the body fits it"
        if self.message.version > self._task.version:
            return f"the body has version {self.message.version}, and the app knows {self._task.version} at most"
        return None


def needed(ask: PageRequest) -> str:
    """Return the id of the message that the form edits. Raises Problem if the field is empty."""
    if not (id := ask.text("id")):
        raise Problem("which message?", "the field 'id' is empty", "open the message, and edit it", 422)
    return id


def _lines(text: str) -> str:
    """Return a text with `\n` as its line breaks, as browsers send CRLF."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _sign(line: str) -> str:
    if line.startswith(("+++", "---")):
        return "name"
    return {"+": "new", "-": "old"}.get(line[:1], "")
