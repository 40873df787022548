"""Names and texts made to act on terminals, to hide words, or to be run by a shell that a hint is pasted into."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.attack.commands import Said, command

from redrive import Draft
from redrive.events import DeliveryEvent, Notice
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, DeadLetter, Settlement
from redrive.observe.logs import JsonLog, TextLog
from redrive.redact import in_json, many_lines, one_line
from redrive.stores.sqlite.store import SqliteStore

FORMS = ("table", "tsv", "json", "jsonl", "ids")
UNSEEN = {
    "escape": "\x1b[2J\x1b]0;owned\x07",
    "return": "ok\rgone",
    "line": "a\nnext: rm -rf /",
    "backspace": "a\b\b\b",
    "c1": "\x9b2J",
    "delete": "\x7f",
    "soft hyphen": "\xad",
    "bidi": "\u202egpj.exe\u202c",
    "isolate": "\u2066x\u2069",
    "mark": "\u200e\u200f\u061c",
    "zero width": "\u200b\u200c\u200d\u2060\ufeff",
    "separator": "\u2028\u2029",
    "filler": "\u3164\u115f\u2800",
    "tag": "".join(chr(0xE0000 + ord(c)) for c in "ignore"),
    "selector": "\U000e0100\ufe00",
    "annotation": "\ufff9\ufffa\ufffb",
}
HOSTILE = [f"crm{sign}push" for sign in UNSEEN.values()]
FOR_SHELLS = ["a b", "$(touch owned)", "`touch owned`", "a;touch owned", "a'b\"c", "a|b", "a&b", "-x", "*", "~", "#a"]
# All that a terminal may not get: what is not printable, and what has no glyph.
_NEVER = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0e\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_OURS = re.compile("\x1b\\[[012]m")  # bold, dim, plain


def seen(text: str, *, colour: bool = False) -> list[str]:
    return _NEVER.findall(_OURS.sub("", text) if colour else text)


class Scene(NamedTuple):
    """A store whose names and texts are all hostile."""

    folder: Path
    ids: list[str]

    def __call__(self, *words: str, terminal: bool = False) -> Said:
        return command(*words, terminal=terminal)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("terminals")
    store, ids, whole = SqliteStore(folder / "work.db"), list[str](), "".join(UNSEEN.values())
    for name in (*HOSTILE, *FOR_SHELLS):
        put = store.put(
            [Draft(task=name, queue=name, group=name, key=name, correlation_id=name, headers={name: name},
                   body=json.dumps({name: whole}).encode())]
        )  # fmt: skip
        store.put([Draft(task=name, queue=f"{name}2", group=name, delay_ms=10**9)])
        (one,) = store.exchange([], [ClaimRequest(name, 1, 30_000, worker=name)]).deliveries
        fault = Fault(Kind.PERMANENT, name, whole, f"{len(ids):016x}", attempt=1, traceback=f"Traceback:\n{whole}")
        store.exchange([Settlement(one.receipt, DeadLetter("permanent", whole), fault)], [])
        ids.append(put[0].id)
    store.close()
    before, environ = Path.cwd(), dict(os.environ)
    os.chdir(folder)
    for variable in [variable for variable in os.environ if variable.startswith("REDRIVE_")]:
        del os.environ[variable]
    os.environ |= {"REDRIVE_URL": "sqlite:///work.db", "COLUMNS": "2000"}
    try:
        yield Scene(folder, ids)
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ |= environ


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "words",
    [
        "dlq list", "dlq groups", "job list", "queue list", "flow list", "run list", "store info", "store doctor",
        "dlq audit", "dlq plan", "metrics print",
    ],
)  # fmt: skip
@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_nothing_that_is_listed_acts_on_a_terminal(scene: Scene, words: str, form: str, terminal: bool) -> None:
    said = scene(*words.split(), *([] if words.startswith("metrics") else ["-o", form]), terminal=terminal)
    assert said.code in (0, 1, 2) and seen(said.text, colour=terminal) == [], said.text


def test_the_same_names_are_read_back_from_json(scene: Scene) -> None:
    names = {*HOSTILE, *FOR_SHELLS}
    queues = {row["queue"] for row in json.loads(scene("queue", "list", "-o", "json").out)}
    assert queues == names | {f"{name}2" for name in names}
    rows = [json.loads(line) for line in scene("dlq", "list", "-o", "jsonl").out.splitlines()]
    assert {row["task"] for row in rows} == {row["error"] for row in rows} == names


@pytest.mark.parametrize("form", FORMS[:4])
def test_no_message_that_is_shown_acts_on_a_terminal(scene: Scene, form: str) -> None:
    for n, id in enumerate(scene.ids):
        for words in (["job", "show", id], ["dlq", "show", id], ["dlq", "group", f"{n:016x}"]):
            said = scene(*words, "-o", form, terminal=form == "table")
            assert said.code == 0 and seen(said.text, colour=True) == [], said.text


@pytest.mark.parametrize("given", [*HOSTILE, *FOR_SHELLS], ids=ascii)
def test_no_error_acts_on_a_terminal_and_it_is_three_lines(scene: Scene, given: str, tmp_path: Path) -> None:
    name = given.lstrip("-")
    for words in (
        ["job", "show", name], ["dlq", "show", name], ["dlq", "list", f"queue:{name}:"], ["dlq", "rule", name, "none"],
        ["run", "show", name], ["flow", "show", name], ["enqueue", "t", name], ["enqueue", "t", "[]", "--header", name],
        ["queue", "purge", f"{name}2", "--reason", "r"], ["queue", "list", "--output", name], [name], ["queue", name],
        ["store", "info", "--url", name], ["store", "info", "--url", f"redis://h/0?{name}=1"],
        ["group", "resume", name, name], ["worker", f"{name}:app"], ["deliver", name, "--to", f"http://{name}/"],
        ["dlq", "apply", name, "--reason", "x"], ["policy", "preview", name], ["schedule", "run", name],
    ):  # fmt: skip
        said = scene(*words)
        assert seen(said.text) == [], (words, said.text)
        if said.code == 0:
            continue
        lines = [line.partition(": ")[0] for line in said.err.splitlines()]
        assert lines[-3:] == ["error", "why", "next"], (words, said.text)
        assert lines.count("next") == 1


@pytest.mark.parametrize("name", FOR_SHELLS, ids=ascii)
def test_a_hint_is_one_command_whatever_a_name_holds(scene: Scene, name: str, tmp_path: Path) -> None:
    """Pasted into a shell, it names what it is about, and runs nothing else."""
    quoted = re.sub(r"\W", "_", name)
    (tmp_path / f"shop{quoted}.py").write_text(
        f"from redrive import App\napp = App('sqlite:///work.db')\n@app.task(name={name + 'er'!r})\ndef f(): ...\n"
    )
    sys.path.insert(0, str(tmp_path))
    app = ["--app", f"shop{quoted}:app"]
    try:
        hints = [
            (next_of(scene("queue", "purge", "--reason", "r", "--", f"{name}2")), f"{name}2"),
            (next_of(scene("group", "resume", "--", name, "none")), name),
            (next_of(scene("enqueue", *app, "--", f"{name}e", "[]")), f"{name}er"),
            (next_of(scene("policy", "preview", "--task", f"{name}e", *app)), f"{name}er"),
            (next_of(scene("job", "show", "none", "--url", f"sqlite:///{name}.db")), "show"),
        ]
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop(f"shop{quoted}", None)
    for hint, word in hints[:4]:
        assert word in shlex.split(hint), hint
    for hint, _ in hints:
        lexer = shlex.shlex(hint, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        assert not [token for token in lexer if token in (";", "|", "&", "&&", "(", ")")], hint


def next_of(said: Said) -> str:
    last = said.err.splitlines()[-1]
    assert last.startswith("next: "), said
    return last.removeprefix("next: ")


def test_no_log_and_no_webhook_acts_on_a_terminal() -> None:
    for name in HOSTILE:
        fate = DeliveryEvent(
            outcome="dead", id=name, task=name, queue=name, attempt=1, fault="default", error=name, text=name,
            reason=name, degraded=name, correlation_id=name, by=name, deferral="limit", worker=name, duplicate_of=name,
        )  # fmt: skip
        events = [fate, Notice(name="store_unavailable", text=name, about=name, worker=name)]
        for log in (TextLog, JsonLog):
            stream = io.StringIO()
            log(stream)(events)
            assert seen(stream.getvalue()) == [] and len(stream.getvalue().splitlines()) == 2, stream.getvalue()
        fates = [json.loads(line) for line in stream.getvalue().splitlines()]
        assert (fates[0]["task"], fates[0]["text"], fates[1]["about"]) == (name, name, name)


def test_what_cannot_be_seen_is_written_out_and_nothing_else_is_changed() -> None:
    plain = "Größe 数 🙂 👩\u200d🔬"
    assert one_line("Größe 数 🙂 ❤️ ñ") == "Größe 数 🙂 ❤️ ñ" and many_lines("a\nb\x1b") == "a\nb\\x1b"
    for text in (*HOSTILE, plain):
        assert seen(one_line(text)) == [] and json.loads(in_json(json.dumps(text, ensure_ascii=False))) == text
    assert len({one_line(text) for text in HOSTILE}) == len(HOSTILE)
