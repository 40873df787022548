"""`redrive demo`: it does what it claims, and its ledger notices when a log does not add up."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
from tests.support.browsing.chromium import chromium

from redrive.demo.endpoint import EndpointLine
from redrive.demo.ledger import SentEvent, judge
from redrive.demo.plan import FOR_GOOD, LASTING, PASSING, draw, event_ids
from redrive.message import Discard, Handle, Lane
from redrive.stores.sqlite.store import SqliteStore

# One run of the demo serves all tests of its ledger; on a busy machine it takes minutes.
pytestmark = [pytest.mark.xdist_group("demo"), pytest.mark.timeout(330)]
PATIENCE_S = 300
SLOW = 400  # requests in the outage without a breaker: about 900, but a busy machine sends only some hundred
DRAW = Path(__file__).parents[2] / "scripts" / "demo_picture.py"


class Run:
    """One run of the demo, its figures and what it left."""

    def __init__(self, folder: Path, seed: int) -> None:
        command = [sys.executable, "-m", "redrive", "demo", "--seed", str(seed), "--keep", "-o", "json"]
        env = {**os.environ, "TMPDIR": str(folder), "NO_COLOR": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
        self.code, self.told, self.seed = done.returncode, done.stderr, seed
        assert done.stdout, self.told
        self.result: dict[str, Any] = json.loads(done.stdout)
        self.folder = Path(self.result["folder"])

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "endpoint.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def run(seed: int) -> Iterator[Run]:
    with tempfile.TemporaryDirectory(prefix="rd-") as folder:
        yield Run(Path(folder), seed)


def test_the_ledger_balances_before_and_after_the_dead_are_driven_back(run: Run) -> None:
    first, between, second = run.result["ledgers"]
    gone = sum(kind in FOR_GOOD for kind in draw(run.seed, event_ids()).lasting.values())
    assert run.code == 0 and run.result["balanced"], run.told
    assert first["events"] == second["events"] == 329
    assert first["delivered"] + first["dead"] == 329 and first["dead"] >= len(draw(run.seed, event_ids()).lasting)
    assert (second["delivered"], second["dead"]) == (329 - gone, gone)
    assert run.result["driven_back"] == first["dead"] - gone
    assert (between["delivered"], between["dead"]) == (first["delivered"], first["dead"])
    assert set(second["reasons"]) == {"permanent: HTTP 410 Gone"}
    assert run.result["took_s"] > 0


def test_a_redrive_while_the_endpoint_is_broken_stops_at_its_canary_and_leaves_the_rest_dead(run: Run) -> None:
    early, late = run.result["runs"]
    first, between, _ = run.result["ledgers"]
    counts = early["counts"]
    assert early["state"] == "stopped" and "canary: 3 of 3 failed" in early["why"]
    assert (counts["moved"], counts["failed"], counts["skipped"]) == (3, 3, counts["planned"] - 3)
    assert 3 <= between["requests"] - first["requests"] <= 3 * 3  # the endpoint's own count: no attempt of the others
    assert late["state"] == "done" and late["counts"]["done"] == late["counts"]["planned"] == counts["planned"]


def test_a_breaker_spares_an_endpoint_that_is_down_and_neither_run_loses_an_event(run: Run) -> None:
    without, spared = run.result["outage"]
    assert (without["breaker"], spared["breaker"]) == (False, True)
    for side in (without, spared):
        begin, end = side["outage_ms"]
        assert side["in_outage"] == sum(begin <= at_ms < end for at_ms, _ in side["requests"])
        assert side["died"] == len(side["deaths_ms"]) and any(again for _, again in side["requests"]) == bool(
            side["died"]
        )
        assert (side["verdict"]["delivered"], side["verdict"]["dead"], side["verdict"]["problems"]) == (329, 0, [])
        assert f"{side['in_outage']:,}" in run.told
    assert without["in_outage"] > spared["in_outage"] > 0 and spared["died"] <= without["died"]
    assert max(without["in_outage"], SLOW) > 2 * spared["in_outage"]


def test_the_picture_of_the_outage_is_well_formed_and_says_its_figures(run: Run) -> None:
    file = run.folder.parent / "outage.svg"
    command = [sys.executable, str(DRAW), str(file)]
    subprocess.run(command, input=json.dumps(run.result), text=True, check=True)
    drawn = ElementTree.parse(file).getroot()
    said = " ".join(drawn.itertext())
    for side in run.result["outage"]:
        requests = rf"(?<![\d,]){side['in_outage']:,} requests while nothing listened"
        assert len(re.findall(requests, said)) == 2  # in the picture and its text
    assert "prefers-color-scheme: dark" in said


def test_everything_the_plan_names_happened(run: Run) -> None:
    plan = draw(run.seed, event_ids())
    answers = Counter(line["answer"] for line in run.log)
    lost = Counter(line.get("lost") for line in run.log)
    assert answers.keys() >= {"429", "429-date", "503", "503-after", "500", "404", "400", "410", "500-always", "204"}
    assert lost["answered after the timeout"] > 0 and lost["connection dropped before the answer"] > 0
    assert answers["dropped before it was read"] > 0
    assert answers[f"outage of {plan.outage_s} s begins"] == answers["outage ends"] == 1
    assert run.result["ledgers"][0]["duplicates"] > 0


def test_the_counts_of_duplicates_add_up(run: Run) -> None:
    for ledger in run.result["ledgers"]:
        assert sum(ledger["causes"].values()) == ledger["repeats"] >= ledger["duplicates"] > 0
    times = Counter(line["key"] for line in run.log if line.get("accepted"))
    last = run.result["ledgers"][-1]
    assert last["duplicates"] == sum(n > 1 for n in times.values())
    assert last["repeats"] == sum(times.values()) - len(times)
    assert f"{last['duplicates']} were accepted more than once" in run.told and f"{last['repeats']} repeats" in run.told


def test_an_event_that_is_accepted_three_times_is_one_duplicate_and_two_repeats() -> None:
    def accepted(at_ms: int, lost: str | None) -> EndpointLine:
        return EndpointLine(at_ms, at_ms, "k", at_ms, "e", "204", True, lost)

    seen = [accepted(1, "dropped"), accepted(2, "too late"), accepted(3, None)]
    verdict = judge(seen, [SentEvent("k", "e")], [], [])
    assert (verdict.duplicates, verdict.repeats, verdict.causes) == (1, 2, {"dropped": 1, "too late": 1})


def test_the_endpoints_log_alone_shows_each_delivered_event_accepted(run: Run) -> None:
    """The same claim, counted here once more without the ledger's code."""
    accepted = {line["event"] for line in run.log if line.get("accepted")}
    sent = {line["event"] for line in map(json.loads, (run.folder / "sent.jsonl").read_text().splitlines())}
    with_store = SqliteStore(run.folder / "demo.db")
    dead = {json.loads(m.body)["id"] for m in with_store.peek(Lane.DEAD, limit=1000).messages}
    with_store.close()
    assert sent == set(event_ids()) and sent - dead <= accepted
    assert dead == {event for event, kind in draw(run.seed, event_ids()).lasting.items() if kind in FOR_GOOD}


def test_an_asked_delay_was_waited_for(run: Run) -> None:
    by_key: dict[str, list[dict[str, Any]]] = {}
    for line in run.log:
        by_key.setdefault(line["key"], []).append(line)
    waits_ms = [
        later["at_ms"] - one["at_ms"]
        for lines in by_key.values()
        for one, later in itertools.pairwise(lines)
        if one["answer"] in ("429", "429-date", "503-after")
    ]
    assert len(waits_ms) > 20 and min(waits_ms) >= 990  # a date has whole seconds, the log whole milliseconds


def test_the_report_tells_the_seed_and_is_plain_when_piped(run: Run) -> None:
    assert "Traceback" not in run.told  # its retries are the story, not faults of a worker
    assert f"--seed {run.seed}" in run.told
    assert "\x1b" not in run.told
    for text in (*PASSING.values(), *LASTING.values()):
        assert text in run.told


def ledger(folder: Path) -> tuple[int, list[str]]:
    """The ledger's own exit code and problems, over the files in a folder."""
    files = [str(folder / "endpoint.jsonl"), f"sqlite:///{folder / 'demo.db'}", str(folder / "sent.jsonl")]
    command = [sys.executable, "-m", "redrive.demo.ledger", *files, str(folder / "fates.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    return done.returncode, json.loads(done.stdout)["problems"]


def rewrite(folder: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    path = folder / "endpoint.jsonl"
    lines = change([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def delivered_once(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """A request that was accepted and answered, of an event that needed no other."""
    keys = Counter(line["key"] for line in lines)
    return next(line for line in lines if keys[line["key"]] == 1 and line.get("accepted") and "lost" not in line)


def forget_one(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    gone = delivered_once(lines)["key"]
    return [line for line in lines if line["key"] != gone]


def repeat_one(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*lines, delivered_once(lines)]


def invent_one(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*lines, {**delivered_once(lines), "key": "00000000-0000-7000-8000-000000000000"}]


def swap_two(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    one = delivered_once(lines)
    return [{**line, "event": "another"} if line is one else line for line in lines]


@pytest.mark.parametrize(
    "change, problem",
    [(forget_one, "lost"), (repeat_one, "no cause found"), (invent_one, "never sent"), (swap_two, "mixed up")],
)
def test_a_log_that_was_tampered_with_does_not_balance(
    run: Run, tmp_path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], problem: str
) -> None:
    folder = shutil.copytree(run.folder, tmp_path / "copy")
    assert ledger(folder) == (0, [])
    rewrite(folder, change)
    code, problems = ledger(folder)
    assert code == 1 and len(problems) == 1 and problem in problems[0]


def test_a_dead_event_that_vanishes_from_the_store_is_lost(run: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(run.folder, tmp_path / "copy")
    store = SqliteStore(folder / "demo.db")
    message = store.peek(Lane.DEAD, limit=1).messages[0]
    assert store.triage([Handle(message.id, message.redrives, Lane.DEAD)], Discard("to see whether it is missed")) == [
        True
    ]
    store.close()
    code, problems = ledger(folder)
    assert code == 1 and len(problems) == 1 and problems[0].startswith("lost")


def test_a_seed_draws_the_same_plan_again_and_another_seed_another() -> None:
    ids = event_ids()
    assert draw(5, ids) == draw(5, list(reversed(ids))) != draw(6, ids)
    assert len(ids) == len(set(ids)) == 329


@pytest.mark.parametrize("number", range(50))
def test_every_plan_holds_every_kind_of_failure(number: int) -> None:
    plan = draw(number, event_ids())
    counts = plan.counts()
    assert all(counts[kind] > 0 for kind in (*PASSING, *LASTING))
    assert not plan.scripts.keys() & plan.lasting.keys()
    assert sum(counts[kind] for kind in LASTING) < 30, "a few"
    assert all(len(script) <= 3 for script in plan.scripts.values()), "10 attempts leave room for the outage"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rd-") as path:
        yield Path(path)


def test_interrupted_it_leaves_nothing_behind(folder: Path) -> None:
    env = {**os.environ, "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "redrive", "demo"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.monotonic() + 60
    while not list(folder.glob("redrive-demo-*/endpoint.jsonl")):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told.decode()
    assert b"Traceback" not in told
    assert list(folder.glob("redrive-demo-*")) == []


def test_the_pages_answer_while_the_demo_runs_change_nothing_and_end_with_it(folder: Path) -> None:
    env = {**os.environ, "TMPDIR": str(folder), "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "redrive", "demo", "--web"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            told = next(line for line in process.stdout if "Watch it at" in line)
            found = re.search(r"http://127\.0\.0\.1:\d+/", told)
            assert found, told
            at = found[0]
            end = time.monotonic() + 60
            while not (queues := httpx.get(f"{at}queues", headers={"Accept": "application/json"}).json()["queues"]):
                assert time.monotonic() < end and process.poll() is None
                time.sleep(0.1)
            assert len(queues) == 1
            for path in ("", "groups", "messages", "runs"):
                page = httpx.get(at + path, headers={"Accept": "text/html"}, timeout=30)
                assert page.status_code == 200 and "read-only" in page.text
            refused = httpx.post(f"{at}do/pause-queue", json={"queue": queues[0]["queue"], "reason": "x"})
            assert refused.status_code == 405
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    assert process.returncode == 130
    with pytest.raises(httpx.ConnectError):
        httpx.get(at)
    assert list(folder.glob("redrive-demo-*")) == []


def redrive_by_hand(tab: Any, at: str, cause: str) -> None:
    """Redrive a cause as the demo's text says: the cause, plan, freeze, a reason, the button."""
    tab.goto(f"{at}groups")
    tab.locator("a", has_text=cause).first.click()
    tab.get_by_role("link", name="Plan a redrive of all").click()
    tab.get_by_role("button", name="Freeze the plan").click()
    tab.get_by_label("Reason, for the audit log").fill("the endpoint is fixed")
    tab.get_by_role("button", name="Redrive", exact=True).click()
    tab.wait_for_url("**/runs/*")


def test_the_newcomer_redrives_each_cause_in_the_pages_and_the_ledger_balances(folder: Path) -> None:
    env = {**os.environ, "TMPDIR": str(folder), "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "redrive", "demo", "--web"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            told = ""
            while "3. Say why" not in told:
                line = process.stdout.readline()
                assert line, told
                told += line
            (at,) = set(re.findall(r"http://127\.0\.0\.1:\d+/(?=groups)", told))
            causes = re.findall(r"^ +\d+ +(\w+)$", told.partition("Your turn")[2], re.MULTILINE)
            assert sorted(causes) == ["HandlerCrashed", "PayloadRefused", "RouteMissing"]
            refused = httpx.post(f"{at}do/discard", json={"id": "x", "reason": "to see"})
            assert refused.status_code == 403
            with chromium() as browser:
                tab = browser.new_page()
                for cause in causes:
                    redrive_by_hand(tab, at, cause)
            told, _ = process.communicate(timeout=PATIENCE_S)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=60)
    assert process.returncode == 0, told
    delivered = re.search(r"(\d+) +delivered by your hand", told)
    assert delivered and int(delivered[1]) > 0 and told.count("A redrive by hand") == 3
    assert "✓ The ledger balances" in told.partition("The ledger again")[2]
    assert "are over" not in told
    with pytest.raises(httpx.ConnectError):
        httpx.get(at)
