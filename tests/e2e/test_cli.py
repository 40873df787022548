"""The command line as its users and their scripts meet it: as a process, by its output, errors and exit codes."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from tests.support.command_line import COMMAND, TASKS, Call, dead, environment, failed, good, home, on_terminal, redrive  # noqa: F401

from redrive import Draft
from redrive.message import ClaimRequest, DeadLetter, GroupOrder, OnDead, Settlement
from redrive.stores.sqlite.store import SqliteStore


def jsonl(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# -- help


def test_help_names_every_command_and_each_of_them_has_help(redrive: Call) -> None:
    from redrive.program.main import COMMANDS, cli

    text = good(redrive("--help"))
    for name in [name for section in COMMANDS.values() for name in section]:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None and command.name == name and command.help
        assert re.search(rf"^  {name} +\S", text, re.M)
    assert "0 done, 1 failed, 2 usage" in text


def test_help_imports_nothing_that_only_commands_need(home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "redrive", "--help"],
        cwd=home, env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")}
    heavy = {"rich", "httpx", "asyncio", "sqlite3", "uvloop", "redrive.cli.worker", "redrive.worker.store_loop"}
    assert "click" in imported and not heavy & imported


def test_without_a_command_help_goes_to_stderr_as_a_mistake(redrive: Call) -> None:
    for words in ([], ["dlq"]):
        done = redrive(*words)
        assert (done.returncode, done.stdout) == (2, "") and "Usage:" in done.stderr


def test_misspelt_commands_name_the_near_miss(redrive: Call) -> None:
    assert failed(redrive("wroker"), 2)[1] == "did you mean 'worker'?"
    assert failed(redrive("dlq", "lst"), 2)[2].endswith("redrive dlq list")


# -- what goes where


def test_pinned_counts_of_queue_list(redrive: Call, home: Path) -> None:
    good(redrive("enqueue", "ok", "[1]", "--app", "tasks:app"))
    good(redrive("enqueue", "ok", "[1]", "--app", "tasks:app", "--delay", "1h"))
    dead(home)
    rows = {row["queue"]: row for row in json.loads(good(redrive("queue", "list", "--app", "tasks:app", "-o", "json")))}
    assert set(rows) == {"crm", "bulk", "naps"}
    crm = rows["crm"]
    assert crm.pop("oldest_age_s") >= 0
    assert {hold["kind"] for hold in crm.pop("held")} <= {"no_worker"}  # once it has been due for ten seconds
    assert crm == {
        "queue": "crm", "ready": 1, "scheduled": 1, "parked": 0, "leased": 0, "dead": 0, "quarantine": 0, "done": 0,
        "paused": False,
    }  # fmt: skip
    assert rows["bulk"]["dead"] == 1


def test_pinned_fields_of_job_show_and_dlq_list(redrive: Call) -> None:
    id = good(redrive("enqueue", "bad", '{"number": 7}', "--app", "tasks:app")).strip()
    good(redrive("worker", "tasks:app", "--drain", "--log", "off"))
    shown = json.loads(good(redrive("job", "show", id, "--app", "tasks:app", "-o", "json")))
    assert [shown[name] for name in ("id", "task", "queue", "state", "attempt", "crashes", "redrives", "due_at")] == [
        id, "bad", "crm", "dead", 2, 0, 0, None,
    ]  # fmt: skip
    assert shown["body"] == {"number": 7}
    assert [(f["attempt"], f["kind"], f["error"], f["text"]) for f in shown["faults"]] == [
        (1, "default", "ValueError", "no. 7 is bad"),
        (2, "default", "ValueError", "no. 7 is bad"),
    ]
    assert shown["faults"][0]["delay_ms"] >= 10 and "Traceback" in shown["faults"][0]["traceback"]
    row = jsonl(good(redrive("dlq", "list", "--url", "sqlite:///work.db", "-o", "jsonl")))[0]
    pinned = ("id", "task", "queue", "reason", "attempt", "redrives", "error", "text")
    assert [row[name] for name in pinned] == [id, "bad", "crm", "exhausted", 2, 0, "ValueError", "no. 7 is bad"]
    assert row["fingerprint"] == shown["faults"][-1]["fingerprint"]
    assert row["died_at"].endswith("Z") and len(row["died_at"]) == len("2026-01-31T15:04:05.678Z")


def test_job_show_tells_how_far_a_message_came(redrive: Call, home: Path) -> None:
    store = SqliteStore(home / "work.db")
    [put] = store.put([Draft(task="ok", queue="crm")])
    [delivery] = store.exchange([], [ClaimRequest("crm", 1, 60_000)]).deliveries
    shown = json.loads(good(redrive("job", "show", put.id, "--app", "tasks:app", "-o", "json")))
    assert shown["progress"] is None
    assert store.checkpoint(delivery.receipt, b'{"page": 3}')
    store.close()
    shown = json.loads(good(redrive("job", "show", put.id, "--app", "tasks:app", "-o", "json")))
    assert shown["progress"] == {"page": 3}
    assert '"page": 3' in good(redrive("job", "show", put.id, "--app", "tasks:app", "-o", "table"))


@pytest.mark.parametrize(
    "body, expected",
    [
        (b'{"a": 1.50, "a": 12345678901234567890123}', None),
        (b"\xff\x00", {"base64": "/wA="}),
        (b"", {"base64": ""}),
        (b"[" * 100_000 + b"]" * 100_000, "base64"),
        (b'"\\ud800"', "base64"),
    ],
    ids=["numbers", "bytes", "empty", "deep", "surrogate"],  # an id stands in the environment, which bounds its length
)
def test_raw_body_is_kept_to_the_byte_and_shown(redrive: Call, home: Path, body: bytes, expected: Any) -> None:
    (home / "body").write_bytes(body)
    id = good(redrive("enqueue", "ok", "--raw", "body", "--url", "sqlite:///work.db")).strip()
    text = good(redrive("job", "show", id, "--url", "sqlite:///work.db", "-o", "jsonl"))
    if expected is None:
        assert f'"body":{body.decode()},' in text
    elif expected == "base64":
        import base64

        assert base64.b64decode(json.loads(text)["body"]["base64"]) == body
    else:
        assert json.loads(text)["body"] == expected


def test_an_unknown_task_waits_as_long_as_park_for_says(redrive: Call, home: Path) -> None:
    def state() -> tuple[str, str | None]:
        shown = json.loads(good(redrive("job", "show", id, "--app", "tasks:app", "-o", "json")))
        return ("waits" if shown["state"] in ("ready", "scheduled", "parked") else shown["state"]), shown["reason"]

    worker = ("worker", "tasks:app", "-q", "later", "--burst", "--log", "off")
    (home / "body").write_bytes(b"\xff")
    for flags, variables, expected in (
        ((), {}, ("waits", None)),
        (("--park-for", "0"), {}, ("dead", "unroutable")),
        ((), {"REDRIVE_PARK_FOR": "0"}, ("dead", "unroutable")),
        (("--park-for", "1h"), {"REDRIVE_PARK_FOR": "0"}, ("waits", None)),
    ):
        where = ("-q", "later", "--url", "sqlite:///work.db")
        id = good(redrive("enqueue", "not.yet", "--raw", "body", *where)).strip()
        good(redrive(*worker, *flags, **variables))
        assert state() == expected
    assert failed(redrive(*worker, "--park-for", "soon"), 2)


def test_raw_body_comes_from_stdin_and_keeps_the_queue_of_a_known_task(redrive: Call) -> None:
    done = redrive("enqueue", "ok", "--raw", "-", "--app", "tasks:app", "-o", "json", stdin=b'{"number": 1}')
    assert json.loads(good(done))["queue"] == "crm"


def test_pipe_gets_tsv_with_a_heading_and_one_line_per_row(redrive: Call) -> None:
    id = good(redrive("enqueue", "t", '{"x": 1}', "--url", "sqlite:///work.db", "-q", "a\tb\nc\\d")).strip()
    lines = good(redrive("job", "list", "--url", "sqlite:///work.db")).splitlines()
    assert lines[0].split("\t") == ["id", "task", "queue", "state", "attempt", "redrives", "due_at"]
    assert lines[1].split("\t")[:4] == [id, "t", "a\\tb\\nc\\\\d", "ready"] and len(lines) == 2


@pytest.mark.parametrize(
    "form, expected",
    [("json", lambda text: [row["id"] for row in json.loads(text)]),
     ("jsonl", lambda text: [row["id"] for row in jsonl(text)]),
     ("ids", lambda text: text.split()),
     ("tsv", lambda text: [line.split("\t")[0] for line in text.splitlines()[1:]]),
     ("table", lambda text: [line.split()[0] for line in text.splitlines()[1:]])],
)  # fmt: skip
def test_every_form_lists_the_same_rows(
    redrive: Call, home: Path, form: str, expected: Callable[[str], list[str]]
) -> None:
    ids = dead(home, 2)
    by_flag = good(redrive("dlq", "list", "--app", "tasks:app", "-o", form))
    by_variable = good(redrive("dlq", "list", REDRIVE_APP="tasks:app", REDRIVE_OUTPUT=form))
    assert expected(by_flag) == ids and by_flag == by_variable


def test_empty_json_list_is_an_array(redrive: Call, home: Path) -> None:
    dead(home, 0)
    done = redrive("dlq", "list", "--app", "tasks:app", "-o", "json")
    assert json.loads(good(done)) == [] and "nothing is dead in" in done.stderr


def test_terminal_gets_a_table_no_wider_than_it_is(redrive: Call, home: Path) -> None:
    id = dead(home)[0]
    text = on_terminal(["dlq", "list", "--app", "tasks:app"], home, NO_COLOR="1")
    heading, row, left_out = text.splitlines()
    assert heading.split()[:4] == ["id", "task", "queue", "reason"] and row.startswith(f"{id[:23]} ")
    assert left_out.endswith("hidden; -v shows all")
    assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text
    assert "\x1b[1m" in on_terminal(["dlq", "list", "--app", "tasks:app"], home)


def test_table_on_a_terminal_says_how_to_see_the_rest(redrive: Call, home: Path) -> None:
    for number in range(3):
        good(redrive("enqueue", "t", "--url", "sqlite:///work.db", "-q", f"q{number}"))
    text = on_terminal(["queue", "list", "--url", "sqlite:///work.db", "--limit", "2"], home)
    assert "the first 2 are shown; --limit 0 shows all" in text and "q2" not in text


def test_reader_that_leaves_early_is_no_error(redrive: Call, home: Path) -> None:
    good(redrive("enqueue", "t", "--url", "sqlite:///work.db"))
    words = [*COMMAND, "job", "list", "--url", "sqlite:///work.db"]
    with subprocess.Popen(
        words, cwd=home, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_output_that_cannot_show_a_character_writes_it_out(redrive: Call) -> None:
    good(redrive("enqueue", "größe", "--url", "sqlite:///work.db"))
    assert "gr\\xf6\\xdfe" in good(redrive("job", "list", "--url", "sqlite:///work.db", PYTHONIOENCODING="ascii"))


# -- errors


def test_store_that_is_not_there_is_unreachable_and_is_not_made_by_looking(redrive: Call, home: Path) -> None:
    what, _, next = failed(redrive("dlq", "list", "--app", "tasks:app"), 3)
    assert what == f"there is no store at {home}/work.db" and next.endswith("config show")
    failed(redrive("enqueue", "t", "--url", "sqlite:////nowhere/work.db"), 3)
    (home / "text.db").write_text("this is no database, but long enough to be taken for one" * 100)
    failed(redrive("job", "list", "--url", "sqlite:///text.db"), 3)
    assert not (home / "work.db").exists()


@pytest.mark.parametrize(
    "app, what, why",
    [
        ("task:app", "there is no module 'task'", "did you mean 'tasks'?"),
        ("tasks:ap", "module 'tasks' has no app 'ap'", "its apps: app, other"),
        ("tasks:ok", "'tasks:ok' is of type Task, not an App", "its apps: app, other"),
        ("tasks", "--app = 'tasks' is refused: it is not MODULE:APP", "expected MODULE:APP, such as 'tasks:app'"),
    ],
)
def test_wrong_app_names_what_was_probably_meant(redrive: Call, app: str, what: str, why: str) -> None:
    said = failed(redrive("worker", "--app", app), 2)
    assert said[0] == what and said[1].endswith(why)


def test_module_that_raises_is_told_with_its_own_line(redrive: Call, home: Path) -> None:
    (home / "broken.py").write_text("import redrive\n\nimport no_such_thing\n")
    what, why, _ = failed(redrive("worker", "broken:app"), 1)
    assert "No module named 'no_such_thing'" in what and why.endswith("broken.py:3")


@pytest.mark.parametrize(
    "words, expected",
    [
        (["enqueue", "okay", "[1]"], "did you mean 'ok'?"),
        (["enqueue", "ok"], "missing a required argument: 'number'"),
        (["enqueue", "ok", '["1"]'], "Expected `int`, got `str` - at `$.number`"),
        (["enqueue", "ok", '{"numbr": 1}'], "missing a required argument: 'number'"),
        (["enqueue", "ok", "{1"], ""),
        (["enqueue", "ok", "[1]", "--delay", "5"], "expected: a number and its unit"),
        (["enqueue", "ok", "[1]", "--at", "tomorrow"], "expected: RFC 3339"),
        (["enqueue", "ok", "[1]", "--priority", "4"], ""),
        (["enqueue", "ok", "[1]", "--for", "5m"], "it says how long the key is held"),
        (["dlq", "retry"], "ids name single ones"),
        (["dlq", "retry", "x", "--queue", "crm"], "ids name single ones"),
        (["queue", "list", "-o", "xml"], ""),
    ],
)
def test_wrong_words_are_a_usage_error(redrive: Call, words: list[str], expected: str) -> None:
    good(redrive("enqueue", "t", "--url", "sqlite:///work.db"))
    assert expected in failed(redrive(*words, "--app", "tasks:app", REDRIVE_URL="sqlite:///work.db"), 2)[1]


def test_unknown_url_scheme_names_the_known_ones(redrive: Call) -> None:
    what, why, _ = failed(redrive("job", "list", "--url", "sqlit:///work.db"), 2)
    assert "unknown scheme 'sqlit'" in what and "sqlite:///PATH" in why


def test_bad_settings_file_says_which_key_and_to_edit_it(redrive: Call, home: Path) -> None:
    (home / "redrive.toml").write_text('leese = "2s"\n')
    what, why, next = failed(redrive("config", "show"), 2)
    assert "unknown key 'leese'" in what and "'lease'" in why and next == f"edit {home}/redrive.toml"
    (home / "redrive.toml").unlink()
    assert failed(redrive("config", "show", REDRIVE_LEASE="soon"), 2)[2] == "unset REDRIVE_LEASE"


@pytest.mark.parametrize("words", [["enqueue", "ok", "[1]"], ["queue", "list"]])
def test_store_in_the_memory_of_another_process_is_refused(redrive: Call, words: list[str]) -> None:
    assert "in the memory of another process" in failed(redrive(*words, "--app", "tasks:other"), 4)[1]


def test_unknown_id_fails_and_says_where_to_look(redrive: Call, home: Path) -> None:
    dead(home)
    assert failed(redrive("job", "show", "nope", "--app", "tasks:app"), 1)[2].endswith("job list --app tasks:app")


def test_traceback_of_a_mistake_is_shown_on_request_only(redrive: Call, home: Path) -> None:
    (home / "odd.py").write_text(
        "from redrive import App\nclass Odd(App):\n    @property\n    def store(self): return 1 / 0\napp = Odd('memory://')\n"
    )
    assert "unexpected ZeroDivisionError" in failed(redrive("job", "list", "--app", "odd:app"), 1)[0]
    done = redrive("job", "list", "--app", "odd:app", REDRIVE_TRACEBACK="1")
    assert "Traceback" in done.stderr


# -- commands


def test_enqueue_takes_arguments_by_name_in_order_and_from_stdin(redrive: Call) -> None:
    forms = (['{"number": 5, "dry": true}'], ["[5]"], ["-"])
    bodies = []
    for words in forms:
        id = good(redrive("enqueue", "ok", *words, "--app", "tasks:app", stdin=b'{"number": 5}')).strip()
        bodies.append(json.loads(good(redrive("job", "show", id, "--app", "tasks:app", "-o", "json")))["body"])
    assert bodies == [{"number": 5, "dry": True}, {"number": 5}, {"number": 5}]


def test_enqueue_sets_what_its_options_say(redrive: Call) -> None:
    words = [
        "--queue",
        "bulk",
        "--delay",
        "1h",
        "--priority",
        "0",
        "--group",
        "g",
        "--header",
        "a=b=c",
        "--correlation-id",
        "c",
    ]
    words += ["--deadline", "2999-01-01T00:00:00Z", "--key", "k"]
    for task, where in (("ok", ["--app", "tasks:app"]), ("other", ["--url", "sqlite:///work.db"])):
        id = good(redrive("enqueue", task, '{"number": 1}', *where, *words)).strip()
        shown = json.loads(good(redrive("job", "show", id, "--app", "tasks:app", "-o", "json")))
        names = ("queue", "state", "priority", "group", "headers", "correlation_id", "deadline_at", "key")
        assert [shown[name] for name in names] == [
            "bulk", "scheduled", 0, "g", {"a": "b=c"}, "c", "2999-01-01T00:00:00.000Z", "k",
        ]  # fmt: skip


def test_enqueue_of_a_held_key_prints_the_holder_and_says_so(redrive: Call) -> None:
    first = redrive("enqueue", "ok", "[1]", "--key", "k", "--app", "tasks:app")
    again = redrive("enqueue", "ok", "[2]", "--key", "k", "--app", "tasks:app")
    assert good(first) == good(again) and "holds the key 'k'" in again.stderr and first.stderr == ""


def test_dlq_retry_by_id_drives_back_and_reports_the_rest(redrive: Call, home: Path) -> None:
    one, other = dead(home, 2)
    done = redrive("dlq", "retry", one, "nope", "--app", "tasks:app")
    assert done.returncode == 5 and done.stdout.splitlines()[1:] == [f"{one}\tretried", "nope\tunknown"]
    assert redrive("dlq", "retry", one, "--app", "tasks:app").returncode == 1
    assert good(redrive("dlq", "list", "--app", "tasks:app", "-o", "ids")).split() == [other]
    assert good(redrive("dlq", "retry", "--all", "--app", "tasks:app", "-o", "ids")).split() == [other]
    assert "nothing is dead" in failed(redrive("dlq", "retry", "--all", "--app", "tasks:app"), 1)[0]
    good(redrive("worker", "tasks:app", "--burst", "--log", "off"))
    rows = jsonl(good(redrive("dlq", "list", "--app", "tasks:app", "-o", "jsonl")))
    assert [(row["redrives"], row["attempt"]) for row in rows] == [(1, 1), (1, 1)]


def test_dlq_filters_choose_by_what_died_when_and_why(redrive: Call, home: Path) -> None:
    dead(home)
    none = (
        ["--queue", "crm"],
        ["--died-of", "exhausted"],
        ["--error", "ValueError"],
        ["--since", "2999-01-01T00:00:00Z"],
    )
    for words in none:
        assert good(redrive("dlq", "list", "--app", "tasks:app", "-o", "ids", *words)) == ""
    for words in (
        ["--queue", "bulk"],
        ["--died-of", "rejected"],
        ["--since", "1h"],
        ["--until", "2999-01-01T00:00:00Z"],
    ):
        assert len(good(redrive("dlq", "list", "--app", "tasks:app", "-o", "ids", *words)).split()) == 1


def test_dlq_commands_take_a_selector_and_point_at_its_mistake(redrive: Call, home: Path) -> None:
    one, *others = dead(home, 3)
    app = ("--app", "tasks:app", "-o", "ids")
    assert good(redrive("dlq", "list", "queue:bulk", f"not id:{one}", *app)).split() == others
    assert good(redrive("dlq", "list", "queue:bulk lane:quarantine", *app)) == ""
    assert len(good(redrive("dlq", "groups", "failed:<1h reason:rejected", *app)).split()) == 1
    wrong = redrive("dlq", "retry", "queue:bulk resaon:rejected", *app)
    assert "unknown field 'resaon'" in failed(wrong, 2)[0] and "did you mean reason" in failed(wrong, 2)[1]
    assert wrong.stderr.startswith("  queue:bulk resaon:rejected\n             ^^^^^^\n")
    assert "ids name single ones" in failed(redrive("dlq", "retry", one, "--all", *app), 2)[1]
    assert good(redrive("dlq", "retry", f"task:no -id:{one}", "--queue", "bulk", *app)).split() == others
    assert good(redrive("dlq", "list", *app)).split() == [one]


def test_dlq_groups_count_by_fingerprint_and_lead_to_a_sample(redrive: Call, home: Path) -> None:
    ids = dead(home, 3)
    group = json.loads(good(redrive("dlq", "groups", "--app", "tasks:app", "-o", "json")))[0]
    assert (group["count"], group["task"]) == (3, "no") and group["sample_id"] in ids
    found = good(redrive("dlq", "list", "--app", "tasks:app", "--fingerprint", group["fingerprint"], "-o", "ids"))
    assert found.split() == ids


def test_job_list_by_time_takes_what_rests_by_when_it_came_to_rest(redrive: Call, home: Path) -> None:
    rests = dead(home)[0]
    waits = good(redrive("enqueue", "ok", "[1]", "--app", "tasks:app")).strip()

    def listed(*words: str) -> list[str]:
        return good(redrive("job", "list", "--app", "tasks:app", "-o", "ids", *words)).split()

    assert listed("--since", "1h") == [waits, rests]
    assert listed("--since", "1h", "--until", "2000-01-01T00:00:00Z") == []
    assert listed("--until", "1h") == []
    assert listed("--since", "1h", "--state", "dead") == [rests]


def test_job_cancel_ends_what_waits_and_says_what_it_found(redrive: Call, home: Path) -> None:
    rests = dead(home)[0]
    waits = good(redrive("enqueue", "ok", "[1]", "--app", "tasks:app")).strip()
    done = redrive("job", "cancel", waits, rests, "nope", "--app", "tasks:app")
    assert done.returncode == 5
    assert done.stdout.splitlines()[1:] == [f"{waits}\tcancelled", f"{rests}\ttoo_late", "nope\tunknown"]
    assert good(redrive("job", "list", "--state", "cancelled", "--app", "tasks:app", "-o", "ids")).split() == [waits]
    assert redrive("job", "cancel", "nope", "--app", "tasks:app").returncode == 1


def test_paused_queue_is_not_worked_until_it_is_resumed(redrive: Call) -> None:
    good(redrive("enqueue", "ok", "[1]", "--app", "tasks:app"))
    good(redrive("queue", "pause", "crm", "--reason", "a look", "--app", "tasks:app"))
    good(redrive("worker", "tasks:app", "--burst", "--log", "off"))
    rows = jsonl(good(redrive("queue", "list", "--url", "sqlite:///work.db", "-o", "jsonl")))
    assert [(row["ready"], row["paused"]) for row in rows] == [(1, True)]
    assert "did you mean 'crm'?" in redrive("queue", "resume", "crmm", "--app", "tasks:app").stderr
    good(redrive("queue", "resume", "crm", "--app", "tasks:app"))
    good(redrive("worker", "tasks:app", "--burst", "--log", "off"))
    assert good(redrive("job", "list", "--app", "tasks:app", "-o", "ids")) == ""


def test_purge_asks_first_and_says_what_went(redrive: Call, home: Path) -> None:
    good(redrive("enqueue", "ok", "[1]", "--app", "tasks:app"))
    id = good(redrive("enqueue", "ok", "[1]", "--app", "tasks:app", "--delay", "1h")).strip()
    rests = dead(home)[0]
    words = ["queue", "purge", "crm", "bulk", "--reason", "spam", "--app", "tasks:app"]
    assert jsonl(good(redrive(*words, "--dry-run", "-o", "jsonl"))) == [
        {"queue": "crm", "would_cancel": 2},
        {"queue": "bulk", "would_cancel": 0},
    ]
    what, _, next = failed(redrive(*words), 4)
    assert "2 of queue 'crm'" in what and next.endswith("queue purge crm bulk --reason spam --app tasks:app --yes")
    assert "nothing was cancelled" in on_terminal(words, home, answer="n\n")
    gone = jsonl(good(redrive(*words, "--yes", "--reason", "a wrong import", "-o", "jsonl")))
    assert gone[0] == {"queue": "crm", "cancelled": 2, "asked_to_stop": 0, "waiting": 0}
    assert json.loads(good(redrive("job", "show", id, "--app", "tasks:app", "-o", "json")))["purged"].endswith(
        ": a wrong import"
    )
    assert good(redrive("dlq", "list", "--app", "tasks:app", "-o", "ids")).split() == [rests]
    good(redrive("enqueue", "ok", "[1]", "--app", "tasks:app"))
    assert "crm" in on_terminal(words, home, answer="y\n")
    assert good(redrive("job", "list", "--state", "ready", "--app", "tasks:app", "-o", "ids")) == ""


def test_doctor_fails_with_a_line_for_each_finding(redrive: Call) -> None:
    url = "sqlite:///work.db?synchronous=normal"
    good(redrive("enqueue", "t", "--url", url))
    done = redrive("store", "doctor", "--url", url, "-o", "json")
    assert done.returncode == 1 and any("synchronous=normal" in line for line in json.loads(done.stdout)["findings"])
    assert "finding" in done.stderr


def test_the_schema_is_printed_without_a_store_and_upgraded_with_one(redrive: Call, home: Path) -> None:
    assert "create table message" in good(redrive("store", "sql", "--app", "tasks:app"))
    assert failed(redrive("store", "sql", "redis://192.0.2.1"), 4)[0] == "Redis has no schema"
    assert not (home / "work.db").exists()
    failed(redrive("store", "upgrade", "--app", "tasks:app"), 3)
    dead(home)
    done = json.loads(good(redrive("store", "upgrade", "--app", "tasks:app", "-o", "json")))
    assert done["before"] == done["after"] > 0
    (home / "new.db").touch()
    done = json.loads(good(redrive("store", "upgrade", "sqlite:///new.db", "-o", "json")))
    assert (done["before"], done["after"] > 0) == (0, True)


def test_no_password_is_shown(redrive: Call) -> None:
    done = redrive("job", "list", "--url", "nosuch://ann:hunter2@db/x")
    assert failed(done, 2) and "hunter2" not in done.stderr and "***" in done.stderr


def test_a_store_without_a_schema_says_so(redrive: Call) -> None:
    done = redrive("store", "sql", "--url", "sqs://eu-central-1/shop")
    assert failed(done, 4) and "SQS has no schema" in done.stderr
    done = redrive("store", "upgrade", "--url", "sqs://eu-central-1/shop")
    assert done.returncode == 0 and "SQS has no schema" in done.stderr


def test_groups_are_listed_widened_and_resumed(redrive: Call, home: Path) -> None:
    url = f"sqlite:///{home / 'g.db'}"
    store = SqliteStore(home / "g.db")
    store.configure("crm", group_order=GroupOrder.STRICT, on_dead=OnDead.BLOCK)
    dead, _ = store.put([Draft(task="t", queue="crm", group="tenant-7")] * 2)
    store.put([Draft(task="t", queue="bulk", group="a")] * 3)
    (delivery,) = store.exchange([], [ClaimRequest("crm", 9, 1000)]).deliveries
    store.exchange([Settlement(delivery.receipt, DeadLetter("permanent"))], [])
    store.close()
    listed = json.loads(redrive("group", "list", "crm", "--blocked", "-o", "json", "--url", url).stdout)
    expected = {"group": "tenant-7", "queue": "crm", "width": 1, "taken": 1, "parked": 1, "blocked_by": dead.id}
    assert listed == [expected]
    wrong = redrive("group", "resume", "crm", "tenant-8", "--url", url)
    assert wrong.returncode == 4 and "blocked there: tenant-7" in wrong.stderr
    resumed = json.loads(redrive("group", "resume", "crm", "tenant-7", "-o", "json", "--url", url).stdout)
    assert resumed == [expected | {"parked": 0, "blocked_by": None}]  # as it is now: the next one has the place
    assert "did you mean 'bulk'" in redrive("group", "width", "bulc", "2", "--url", url).stderr
    assert "'x' is not a whole number" in redrive("group", "width", "bulk", "x", "--url", url).stderr
    assert redrive("group", "list", "crm", "-o", "ids", "--blocked", "--url", url).stdout == ""
    redrive("group", "width", "bulk", "2", "--url", url)
    redrive("group", "width", "bulk", "3", "--group", "a", "--url", url)
    assert json.loads(redrive("group", "list", "bulk", "-o", "json", "--url", url).stdout)[0]["taken"] == 3
    redrive("group", "width", "bulk", "--reset", "--group", "a", "--url", url)
    assert json.loads(redrive("group", "list", "bulk", "-o", "json", "--url", url).stdout)[0]["width"] == 2
    assert "strict" in redrive("group", "width", "crm", "2", "--url", url).stderr
    assert redrive("group", "width", "crm", "--url", url).returncode == 2


def test_store_check_says_ok_and_exits_1_on_damage(redrive: Call, home: Path) -> None:
    ids = [good(redrive("enqueue", "t", json.dumps({"x": "y" * 3000}), "--url", "sqlite:///work.db")) for _ in range(4)]
    assert json.loads(good(redrive("store", "check", "--url", "sqlite:///work.db", "-o", "json"))) == {
        "ok": True,
        "problems": [],
    }
    info = json.loads(good(redrive("store", "info", "--url", "sqlite:///work.db", "-o", "json")))
    assert (info["ready"], info["name"], info["durable"], info["path"]) == (len(ids), "sqlite", True, f"{home}/work.db")
    import sqlite3

    with sqlite3.connect(home / "work.db") as c:
        c.execute("pragma wal_checkpoint(truncate)")
    c.close()
    data = bytearray((home / "work.db").read_bytes())
    data[4096 * 3 : 4096 * 3 + 64] = b"\xff" * 64
    (home / "work.db").write_bytes(data)
    done = redrive("store", "check", "--url", "sqlite:///work.db", "-o", "json")
    assert done.returncode in (1, 3) and done.returncode != 0


def test_config_show_tells_value_and_source_and_hides_passwords(redrive: Call, home: Path) -> None:
    (home / "redrive.toml").write_text('url = "postgresql://ann:hunter2@db/x"\n')
    done = redrive("config", "show", "-o", "json", REDRIVE_LEASE="2s", REDRIVE_GRCAE="1s")
    rows = {row["name"]: (row["value"], row["source"]) for row in json.loads(good(done))}
    assert rows["url"] == ("postgresql://ann:***@db/x", f"{home}/redrive.toml")
    assert rows["lease"] == ("2s", "REDRIVE_LEASE") and rows["grace"] == ("30s", "default")
    assert "did you mean REDRIVE_GRACE?" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(redrive: Call, shell: str) -> None:
    assert "_REDRIVE_COMPLETE" in good(redrive("completion", shell))
    assert good(redrive("completion", SHELL=f"/usr/bin/{shell}")) == good(redrive("completion", shell))


def test_completion_offers_commands_options_and_choices(home: Path) -> None:
    def offers(words: str) -> list[str]:
        env = environment(_REDRIVE_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
        program = [
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'redrive'; from redrive.program.main import main; main()",
        ]
        done = subprocess.run(program, cwd=home, env=env, capture_output=True, text=True, check=False)
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert offers("redrive dl") == ["dlq"]
    assert offers("redrive dlq ret") == ["retry"]
    assert offers("redrive policy preview pay") == ["payments"]
    assert "worker" in offers("redrive ")


def test_version_prints_one_line(redrive: Call) -> None:
    import redrive as package

    assert good(redrive("version")) == good(redrive("--version")) == f"redrive {package.__version__}\n"


def test_policy_preview_gives_each_delay_with_its_range_and_the_whole(redrive: Call) -> None:
    shown = json.loads(good(redrive("policy", "preview", "payments", "-o", "json")))
    assert (shown["retries"], shown["total_s"], shown["horizon_s"], shown["ends"]) == (2, 120.0, 120.0, "attempts")
    assert [(s["retry"], s["low_s"], s["mean_s"], s["high_s"], s["at_mean_s"]) for s in shown["steps"]] == [
        (1, 60.0, 60.0, 60.0, 60.0),
        (2, 60.0, 60.0, 60.0, 120.0),
    ]
    lines = good(redrive("policy", "preview", "webhooks")).splitlines()
    assert lines[0].split("\t") == ["retry", "mean_s", "low_s", "high_s", "at_mean_s", "at_low_s", "at_high_s"]
    assert [line.split("\t")[1] for line in lines[1:]] == ["5.0", "10.0", "20.0", "40.0", "80.0"]


def test_policy_preview_plots_the_range_and_tells_total_and_horizon_in_a_table(redrive: Call) -> None:
    text = good(redrive("policy", "preview", "webhooks", "-o", "table"))
    bars = [line.split()[-1] for line in text.splitlines() if line.strip()[:1].isdigit()]
    assert bars[-1] == "█" * 25 + "░" * 5 and [len(bar) for bar in bars] == [2, 4, 8, 15, 30]
    assert "total    5 retries, the last 2m35s after" in text and "horizon  2m50s:" in text


def test_policy_preview_takes_a_tasks_policy_and_a_kind(redrive: Call) -> None:
    words = ["policy", "preview", "--app", "tasks:app", "--task", "bad", "-o", "json"]
    assert json.loads(good(redrive(*words)))["retries"] == 1
    refused = json.loads(good(redrive(*words, "--kind", "permanent")))
    assert (refused["ends"], refused["steps"]) == ("refused", [])
    _, why, next = failed(redrive("policy", "preview", "--app", "tasks:app", "--task", "bd"), 2)
    assert why == "did you mean 'bad'? known: bad, die, nap, no, ok" and next.endswith("--task bad")


# -- init


def test_init_writes_an_app_whose_printed_commands_all_run(redrive: Call, home: Path) -> None:
    done = redrive("init", "new place")
    assert good(done).splitlines() == ["new place/tasks.py", "new place/redrive.toml"]
    commands = [line.strip() for line in done.stderr.splitlines() if line.startswith("  ")]
    assert commands[0].startswith("cd ") and len(commands) == 7
    script = "set -e\n" + "\n".join(c.replace("python -m redrive", f"'{sys.executable}' -m redrive") for c in commands)
    ran = subprocess.run(["sh", "-c", script], cwd=home, env=environment(), capture_output=True, text=True, timeout=90)
    assert ran.returncode == 0, ran.stderr
    assert "hello, Ada" in ran.stdout and "order A-2: an amount of 0.0 cannot be charged" in ran.stdout
    below = home / "new place" / "below"
    below.mkdir()
    assert "A-2" in good(redrive("dlq", "list", cwd=below))


def test_init_never_overwrites(redrive: Call, home: Path) -> None:
    what, why, _ = failed(redrive("init"), 4)
    assert what == "nothing was written" and "tasks.py exists" in why
    assert (home / "tasks.py").read_text() == TASKS and not (home / "redrive.toml").exists()


@pytest.mark.slow
def test_init_writes_a_django_project_whose_commands_run(redrive: Call, home: Path) -> None:
    assert "shop/django/shop/tasks.py" in good(redrive("init", "shop/django", "--django"))
    inside = {"cwd": home / "shop/django", "capture_output": True, "text": True, "timeout": 90}
    env = environment(DJANGO_SETTINGS_MODULE="settings")
    enqueued = subprocess.run([sys.executable, "orders.py"], env=env, **inside)
    assert enqueued.returncode == 0, enqueued.stderr
    worked = subprocess.run([*COMMAND, "worker", "--drain", "--log", "off"], env=env, **inside)
    assert worked.stdout == "order A-1: charged 12.5\n", worked.stderr
    dead = subprocess.run([*COMMAND, "dlq", "list"], env=env, **inside)
    assert "order A-2: 0 cannot be charged" in dead.stdout


def test_init_writes_a_fastapi_application_that_enqueues(redrive: Call, home: Path) -> None:
    good(redrive("init", "orders", "--fastapi"))
    program = (
        "from fastapi.testclient import TestClient; from web import web; client = TestClient(web); "
        "print([client.post('/orders', params={'number': 'A', 'amount': n}).status_code for n in (1, 0)])"
    )
    asked = subprocess.run(
        [sys.executable, "-c", program], cwd=home / "orders", env=environment(), capture_output=True, text=True
    )
    assert asked.stdout == "[202, 202]\n", asked.stderr
    counts = json.loads(good(redrive("queue", "list", "-o", "json", cwd=home / "orders")))
    assert counts["queues"][0]["ready"] == 2 if isinstance(counts, dict) else counts[0]["ready"] == 2


def test_init_writes_an_app_with_a_bridge_to_celery(redrive: Call, home: Path) -> None:
    good(redrive("init", "bridge", "--celery"))
    program = "from tasks import app, bridge; print(app.tasks['shop.charge'].name)"
    asked = subprocess.run(
        [sys.executable, "-c", program], cwd=home / "bridge", env=environment(), capture_output=True, text=True
    )
    assert asked.stdout == "shop.charge\n", asked.stderr


# -- the worker


def test_reload_starts_the_worker_anew_when_code_changes(redrive: Call, home: Path) -> None:
    good(redrive("init", "project"))
    project = home / "project"
    command = [*COMMAND, "worker", "--reload", "--log", "off"]
    with subprocess.Popen(
        command, cwd=project, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            good(redrive("enqueue", "greet", '{"name": "Ada"}', cwd=project))
            assert process.stdout.readline() == "hello, Ada\n"
            code = (project / "tasks.py").read_text()
            (project / "tasks.py").write_text("this is no Python")
            while "ended; it starts again when a file changes" not in process.stderr.readline():
                pass
            (project / "tasks.py").write_text(code.replace("hello, ", "good day, "))
            good(redrive("enqueue", "greet", '{"name": "Ada"}', cwd=project))
            assert process.stdout.readline() == "good day, Ada\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) is not None
        finally:
            process.kill()


@contextmanager
def running(home: Path, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker, which ends with the block."""
    command = [*COMMAND, "worker", *words]
    with subprocess.Popen(
        command, cwd=home, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # its child reads the end of its pipe, and ends too


def napping(process: "subprocess.Popen[bytes]") -> None:
    """Wait until the task `nap` runs."""
    assert process.stdout is not None
    assert process.stdout.readline() == b"napping\n"


def test_worker_logs_each_fate_as_json_on_stderr_and_nothing_on_stdout(redrive: Call) -> None:
    id = good(redrive("enqueue", "ok", "[1]", "--app", "tasks:app")).strip()
    done = redrive(
        "worker", "tasks:app", "-q", "crm:3", "--burst", "--lease", "2s", "--grace", "5s", "--processes", "1"
    )
    assert good(done) == ""
    fates = [line for line in jsonl(done.stderr) if "outcome" in line]
    assert [(f["id"], f["outcome"], f["attempt"]) for f in fates] == [(id, "done", 1)]


def test_worker_reads_its_settings_from_variables(redrive: Call) -> None:
    good(redrive("enqueue", "ok", "[1]", "--app", "tasks:app"))
    dead_id = good(redrive("enqueue", "no", "--app", "tasks:app")).strip()
    variables = {"APP": "tasks:app", "BURST": "1", "QUEUES": "bulk:2", "LOG": "text", "NAME": "w7", "LEASE": "2s"}
    done = redrive("worker", **{f"REDRIVE_{name}": text for name, text in variables.items()})
    assert good(done) == "" and f"no {dead_id} attempt 1" in done.stderr and "/w7-0" in done.stderr
    assert good(redrive("job", "list", "--app", "tasks:app", "--state", "ready")).count("\tok\t") == 1


def test_worker_flag_goes_before_the_variable_in_its_children_too(redrive: Call) -> None:
    good(redrive("enqueue", "ok", "[1]", "--app", "tasks:app"))
    good(redrive("worker", "tasks:app", "-q", "crm", "--burst", "--log", "off", REDRIVE_QUEUES="bulk"))
    assert good(redrive("job", "list", "--app", "tasks:app", "-o", "ids")) == ""


def test_worker_with_a_url_moves_the_app_to_that_store(redrive: Call) -> None:
    good(redrive("enqueue", "ok", "[1]", "--app", "tasks:app", "--url", "sqlite:///elsewhere.db"))
    good(redrive("worker", "tasks:app", "--url", "sqlite:///elsewhere.db", "--burst", "--log", "off"))
    assert good(redrive("job", "list", "--url", "sqlite:///elsewhere.db", "-o", "ids")) == ""


def test_worker_says_when_no_task_is_on_a_queue(redrive: Call) -> None:
    done = redrive("worker", "tasks:app", "-q", "cmr", "--burst", "--log", "off")
    assert done.returncode == 0 and "no task of tasks:app is on queue 'cmr'; did you mean 'crm'?" in done.stderr


def test_worker_on_a_memory_store_runs_in_its_own_process(redrive: Call) -> None:
    assert "local/" in redrive("worker", "tasks:other", "--burst", "--log", "json").stderr


def test_several_processes_share_the_work_under_names_of_their_own(redrive: Call) -> None:
    for _ in range(4):
        good(redrive("enqueue", "ok", "[1]", "--app", "tasks:app"))
    done = redrive("worker", "tasks:app", "--burst", "--processes", "2", "--name", "pair")
    good(done)
    lines = jsonl(done.stderr)
    assert len([line for line in lines if line.get("outcome") == "done"]) == 4
    names = {line["worker"].rpartition("/")[2] for line in lines if line.get("notice") == "started"}
    assert names and names <= {"pair-0", "pair-1"}


def test_worker_process_that_dies_is_replaced_and_its_message_runs_again(redrive: Call) -> None:
    good(redrive("enqueue", "die", "--app", "tasks:app"))
    done = redrive("worker", "tasks:app", "--burst", "--log", "off")
    assert done.returncode == 0 and "was killed by SIGKILL" in done.stderr
    assert good(redrive("job", "list", "--app", "tasks:app", "-o", "ids")) == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_the_worker_within_its_grace_and_gives_back_uncounted(
    redrive: Call, home: Path, number: signal.Signals
) -> None:
    id = good(redrive("enqueue", "nap", "[30]", "--app", "tasks:app")).strip()
    with running(home, "tasks:app", "--grace", "100ms") as process:
        napping(process)
        process.send_signal(number)
        assert process.wait(25) == 0  # the nap would take 30 s
    shown = json.loads(good(redrive("job", "show", id, "--app", "tasks:app", "-o", "json")))
    assert (shown["state"], shown["attempt"], shown["crashes"]) == ("ready", 0, 0)


def test_interrupted_command_exits_130(home: Path) -> None:
    command = [*COMMAND, "enqueue", "ok", "-", "--app", "tasks:app"]  # waits for stdin
    with subprocess.Popen(
        command, cwd=home, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        deadline_s = time.monotonic() + 30
        while not (home / "work.db").exists() and time.monotonic() < deadline_s:
            time.sleep(0.02)  # the store is opened just before stdin is read
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"") and b"Traceback" not in err


@pytest.mark.slow
def test_a_drain_says_after_ten_seconds_what_it_waits_for_though_its_log_is_off(home: Path, redrive: Call) -> None:
    good(redrive("enqueue", "nap", "[12.5]", "--app", "tasks:app"))
    done = redrive("worker", "tasks:app", "--drain", "--log", "off")
    assert done.returncode == 0 and "the drain waits for queue 'naps': 1 running" in done.stderr


def test_a_worker_names_a_dependency_that_no_task_names_when_it_starts(home: Path, redrive: Call) -> None:
    typo = (
        TASKS.replace('queue="naps"', 'queue="naps", dependency="strpe"') + 'app.dependency("stripe", rate="100/s")\n'
    )
    (home / "typo.py").write_text(typo)
    done = redrive("worker", "typo:app", "--burst", "--log", "off")
    meant = "task nap names dependency 'strpe', which is not declared; did you mean 'stripe'?"
    assert done.returncode == 0 and meant in done.stderr
