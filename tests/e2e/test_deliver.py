"""`redrive deliver`, as a process, against a real endpoint on loopback."""

import base64
import functools
import gzip
import hashlib
import hmac
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.endpoint import Answer, Endpoint, Request

from redrive.decide import Policy, decide
from redrive.deliver.retry import PATIENT, read_retry
from redrive.errors import ConfigError
from redrive.fault import Fault, Kind
from redrive.flow.limits import read_rate
from redrive.message import Counts, DeadLetter, Discard, Handle, Lane, Message
from redrive.policy import Retry
from redrive.stores.sqlite.store import SqliteStore
from redrive.worker.crash.ledger import left_behind

SECRET = "whsec_" + base64.b64encode(b"a key of some bytes").decode()


class Deliver:
    """The command in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "NO_COLOR": "1"}
        for name in [name for name in self.env if name.startswith("REDRIVE_")]:
            del self.env[name]

    def write(self, lines: list[Any], name: str = "lines.jsonl") -> list[bytes]:
        """Write a file of JSON lines; returns them as bytes."""
        bodies = [json.dumps(line).encode() for line in lines]
        (self.folder / name).write_bytes(b"".join(body + b"\n" for body in bodies))
        return bodies

    def command(self, url: str, *options: str, file: str = "lines.jsonl") -> list[str]:
        return [sys.executable, "-m", "redrive", "deliver", file, "--to", url, *options]

    def __call__(
        self, url: str, *options: str, file: str = "lines.jsonl", stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        command = self.command(url, *options, file=file)
        return subprocess.run(command, cwd=self.folder, env=self.env, input=stdin, capture_output=True, timeout=60)

    def start(self, url: str, *options: str) -> subprocess.Popen[bytes]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(self.command(url, *options), cwd=self.folder, env=self.env, **pipes)

    def summary(self, url: str, *options: str, **more: Any) -> tuple[int, dict[str, Any]]:
        """Run it; returns its exit code and summary."""
        done = self(url, "-o", "json", *options, **more)
        assert done.stdout, done.stderr.decode()
        return done.returncode, json.loads(done.stdout)

    @functools.cached_property
    def store(self) -> SqliteStore:
        """Its store, for looking into."""
        return SqliteStore(self.folder / "redrive.db")


@pytest.fixture
def deliver(tmp_path: Path) -> Iterator[Deliver]:
    command = Deliver(tmp_path)
    yield command
    command.store.close()


def test_each_line_is_posted_once_with_its_exact_bytes(deliver: Deliver) -> None:
    bodies = [b'{"a": 1}', b'  {"b":\t"\xc3\xa4"} ', b"[1,2]", b'"text"', b"7", b'{"dup":1,"dup":2}', b'"\\ud800"']
    (deliver.folder / "lines.jsonl").write_bytes(
        b"\xef\xbb\xbf" + b"\n".join(bodies[:3]) + b"\r\n\n \n" + b"\n".join(bodies[3:])
    )
    with Endpoint() as endpoint:
        code, summary = deliver.summary(endpoint.url)
    assert code == 0
    assert Counter(endpoint.bodies) == Counter(bodies)
    assert (summary["lines"], summary["delivered"], summary["dead"]) == (7, 7, 0)
    assert all(request.headers["content-type"] == "application/json" for request in endpoint.requests)
    assert len({request.key for request in endpoint.requests}) == 7


def test_a_packed_answer_is_read_as_it_comes_and_up_to_a_bound(deliver: Deliver) -> None:
    deliver.write([1])
    packed = gzip.compress(bytes(200 * 1024 * 1024))
    with Endpoint(lambda request: Answer(422, {"Content-Encoding": "gzip"}, packed)) as endpoint:
        code, summary = deliver.summary(endpoint.url)
    assert (code, summary["dead"], len(endpoint.requests)) == (5, 1, 1)
    (dead,) = deliver.store.peek(None).messages
    assert len(dead.faults) == 1 and len(dead.faults[0].text + dead.faults[0].traceback) < 10_000


@pytest.mark.parametrize("location", ["http://[::bad/", "http://h:x:y/", "//["])
def test_a_redirect_to_what_is_no_url_is_dead_at_once(deliver: Deliver, location: str) -> None:
    deliver.write([1])
    with Endpoint(lambda _: Answer(302, {"Location": location})) as endpoint:
        code, summary = deliver.summary(endpoint.url)
    assert (code, summary["dead"], len(endpoint.requests)) == (5, 1, 1)
    assert "which points to no URL" in summary["groups"][0]["text"]


def test_requests_share_few_connections(deliver: Deliver) -> None:
    deliver.write(list(range(60)))
    with Endpoint() as endpoint:
        assert deliver(endpoint.url, "--concurrency", "3").returncode == 0
    assert len({request.client for request in endpoint.requests}) <= 3


def test_requests_are_signed_and_own_headers_are_sent(deliver: Deliver) -> None:
    deliver.write([{"a": 1}])
    deliver.env["REDRIVE_SECRET"] = SECRET
    with Endpoint() as endpoint:
        assert deliver(endpoint.url, "--header", "X-Tenant: seven", "--header", "Content-Type: text/x").returncode == 0
    (request,) = endpoint.requests
    assert request.headers["webhook-id"] == request.key
    content = f"{request.key}.{request.headers['webhook-timestamp']}.".encode() + request.body
    expected = base64.b64encode(hmac.new(b"a key of some bytes", content, hashlib.sha256).digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"
    assert abs(int(request.headers["webhook-timestamp"]) - time.time()) < 60
    assert (request.headers["x-tenant"], request.headers["content-type"]) == ("seven", "text/x")


def test_a_header_of_a_variable_is_sent_and_no_answer_that_quotes_it_tells_it(deliver: Deliver) -> None:
    deliver.write([{"a": 1}])
    deliver.env["CRM_TOKEN"] = "open sesame 7"
    with Endpoint(lambda request: Answer(422, body=b"no: open sesame 7 is unknown")) as endpoint:
        done = deliver(endpoint.url, "--header-env", "X-Open=CRM_TOKEN", "-o", "json")
    stored = b"".join(path.read_bytes() for path in deliver.folder.glob("redrive.db*") if path.is_file())
    assert done.returncode == 5 and endpoint.requests[0].headers["x-open"] == "open sesame 7"
    assert b"sesame" not in done.stdout + done.stderr + stored and b"is unknown" in stored


@pytest.mark.parametrize(
    "bad, why",
    [
        (b"{'a': 1}", "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": 1} {"b": 2}', "not JSON"),
        (b'{"a": "\xff"}', "not UTF-8: byte 0xff at column 8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'"' + b"x" * (16 * 1024 * 1024) + b'"', "longer than 16,777,216 bytes"),
    ],
    ids=["quotes", "nan", "two", "latin-1", "deep", "long"],
)
def test_a_bad_line_is_named_and_stops_before_anything_is_enqueued(deliver: Deliver, bad: bytes, why: str) -> None:
    (deliver.folder / "lines.jsonl").write_bytes(b'{"a": 1}\n' * 2000 + bad + b"\n" + b'{"a": 2}\n')
    with Endpoint() as endpoint:
        done = deliver(endpoint.url)
    told = done.stderr.decode().splitlines()
    assert done.returncode == 1
    assert told[0].startswith("error: line 2001 of lines.jsonl cannot be sent: ") and why in told[0]
    assert "nothing was enqueued" in told[1] and "--skip-bad" in told[2]
    assert (endpoint.requests, deliver.store.queues(), done.stdout) == ([], [], b"")


def test_skip_bad_collects_bad_lines_and_sends_the_others(deliver: Deliver) -> None:
    (deliver.folder / "lines.jsonl").write_bytes(b'1\noops\r\n2\n\n{"\xff": 1}\n3\n{')
    with Endpoint() as endpoint:
        code, summary = deliver.summary(endpoint.url, "--skip-bad", "bad.jsonl")
        assert deliver.summary(endpoint.url, "--skip-bad", "bad.jsonl")[0] == 0
    assert (code, summary["delivered"], summary["bad"]) == (0, 3, 3)
    assert sorted(endpoint.bodies) == [b"1", b"2", b"3"]
    assert (deliver.folder / "bad.jsonl").read_bytes() == b'oops\r\n{"\xff": 1}\n{'


def test_skip_bad_does_not_overwrite_what_it_did_not_write(deliver: Deliver) -> None:
    (deliver.folder / "lines.jsonl").write_bytes(b"1\noops\n")
    (deliver.folder / "bad.jsonl").write_bytes(b"mended\n")
    with Endpoint() as endpoint:
        assert deliver(endpoint.url, "--skip-bad", "bad.jsonl").returncode == 4
        assert deliver(endpoint.url, "--skip-bad", "lines.jsonl").returncode == 2
    assert endpoint.requests == []
    assert (deliver.folder / "bad.jsonl").read_bytes() == b"mended\n"
    assert (deliver.folder / "lines.jsonl").read_bytes() == b"1\noops\n"


def test_an_asked_retry_after_is_a_floor(deliver: Deliver) -> None:
    deliver.write([{"n": n} for n in range(4)])

    def answer(request: Request) -> Answer:
        if request.seen > 1:
            return Answer()
        soon = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 2))
        asked = {b'{"n": 0}': (429, "1"), b'{"n": 1}': (429, soon), b'{"n": 2}': (503, "1")}
        status, after = asked.get(request.body, (204, ""))
        return Answer(status, {"Retry-After": after, "Date": ""} if after else {})

    with Endpoint(answer) as endpoint:
        code, summary = deliver.summary(endpoint.url, "--retry", "orchestration")
    assert (code, summary["delivered"], summary["retries"]) == (0, 4, 3)
    times = {body: [r.at_s for r in endpoint.requests if r.body == body] for body in endpoint.bodies}
    waits_s = {body: times[body][-1] - times[body][0] for body in times}
    assert waits_s[b'{"n": 0}'] >= 1.0 and waits_s[b'{"n": 2}'] >= 1.0
    assert waits_s[b'{"n": 1}'] >= 0.9  # the date has whole seconds only
    assert len(times[b'{"n": 3}']) == 1


def test_what_dies_is_told_by_cause_and_the_exit_code_is_5(deliver: Deliver) -> None:
    deliver.write([{"n": n} for n in range(30)])

    def answer(request: Request) -> Answer:
        n = json.loads(request.body)["n"]
        if n % 10 == 3:
            return Answer(404, body=b'{"error": "no hook %d"}' % n)
        return Answer(307, {"Location": "http://127.0.0.1:9/elsewhere?token=hidden"}) if n == 5 else Answer()

    with Endpoint(answer) as endpoint:
        code, summary = deliver.summary(endpoint.url)
        again, later = deliver.summary(endpoint.url)
    assert (code, summary["delivered"], summary["dead"]) == (5, 26, 4)
    groups = {(g["reason"], g["count"], g["text"][:8], tuple(g["lines"])) for g in summary["groups"]}
    assert groups == {("permanent", 3, "HTTP 404", (4, 14, 24)), ("permanent", 1, "HTTP 307", (6,))}
    assert "hidden" not in json.dumps(summary)
    assert (again, later["delivered"], later["groups"]) == (5, 26, summary["groups"])
    assert len(endpoint.requests) == 30, "a rerun sends nothing"
    dead = deliver.store.find([summary["groups"][0]["sample_id"]])[0]
    assert dead is not None and "no hook" in dead.faults[0].traceback


def test_a_dead_line_that_is_put_back_is_sent_by_the_same_command(deliver: Deliver) -> None:
    deliver.write([1, 2, 3])
    with Endpoint(lambda request: Answer(404 if request.body == b"2" and request.seen == 1 else 204)) as endpoint:
        assert deliver.summary(endpoint.url)[0] == 5
        retry = [sys.executable, "-m", "redrive", "dlq", "retry", "--all"]
        subprocess.run(retry, cwd=deliver.folder, env=deliver.env, check=True, capture_output=True)
        code, summary = deliver.summary(endpoint.url)
    assert (code, summary["delivered"], summary["dead"]) == (0, 3, 0)
    assert Counter(endpoint.bodies) == {b"1": 1, b"2": 2, b"3": 1}


def test_a_request_over_its_timeout_is_retried_with_the_same_key(deliver: Deliver) -> None:
    deliver.write([1])
    with Endpoint(lambda request: Answer(delay_s=4.0 if request.seen == 1 else 0)) as endpoint:
        code, summary = deliver.summary(endpoint.url, "--timeout", "1s", "--retry", "orchestration")
    assert (code, summary["delivered"]) == (0, 1)
    assert endpoint.seen[endpoint.requests[0].key] == 2


def test_killed_at_half_and_run_again_every_undisturbed_line_comes_exactly_once(deliver: Deliver) -> None:
    bodies = deliver.write([{"n": n} for n in range(600)])
    killed = threading.Event()

    def answer(request: Request) -> Answer:
        if len(endpoint.requests) >= 450:
            killed.wait(60)  # so that the kill cannot come too late
        return Answer(delay_s=0.002)

    with Endpoint(answer) as endpoint:
        process = deliver.start(endpoint.url)
        endpoint.wait_for(300)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed.set()
        before = len(endpoint.requests)
        disturbed = started_of(deliver)
        code, summary = deliver.summary(endpoint.url)
    assert before < 600, "the kill came too late to show anything"
    assert (code, summary["delivered"], summary["lines"]) == (0, 600, 600)
    times = Counter(endpoint.bodies)
    assert times.keys() == set(bodies), "every line came"
    twice = {request.key for request in endpoint.requests if endpoint.seen[request.key] > 1}
    assert twice <= disturbed and len(disturbed) <= 20, "only what the kill interrupted came twice"
    assert max(times.values()) <= 2
    assert deliver.store.counts() == Counts()


def started_of(deliver: Deliver) -> set[str]:
    """The messages that the killed process had started and not settled, by its slot file."""
    (slots,) = left_behind(deliver.folder / "redrive.db-workers")
    assert slots.started is not None
    return {started.id for started in slots.started}


def test_killed_while_enqueueing_again_and_again_no_line_is_enqueued_twice(deliver: Deliver, seed: int) -> None:
    bodies = deliver.write([{"n": n, "pad": "x" * 200} for n in range(20_000)])
    draw = random.Random(seed)
    with Endpoint(lambda request: Answer(503)) as endpoint:  # so that nothing leaves the store
        for _ in range(5):
            process = deliver.start(endpoint.url)
            time.sleep(0.4 + draw.random() * 0.5)
            process.kill()
            process.communicate()
        process = deliver.start(endpoint.url)
        store, end = deliver.store, time.monotonic() + 90
        while sum(store.counts().__getattribute__(lane) for lane in ("ready", "scheduled", "leased")) < len(bodies):
            assert time.monotonic() < end
            time.sleep(0.05)
        process.kill()
        process.communicate()
        lines = Counter(message.headers["line"] for message in all_messages(store))
    assert len(lines) == 20_000 and max(lines.values()) == 1
    assert store.check() == []


def all_messages(store: SqliteStore) -> list[Any]:
    found: list[Any] = []
    cursor = None
    while True:
        page = store.peek(None, limit=5000, cursor=cursor)
        found += page.messages
        cursor = page.cursor
        if cursor is None:
            return found


def test_interrupted_it_finishes_what_is_under_way_and_goes_on_later(deliver: Deliver) -> None:
    deliver.write(list(range(200)))
    with Endpoint(lambda request: Answer(delay_s=0.04)) as endpoint:  # so slow that the signal comes before the end
        process = deliver.start(endpoint.url, "--concurrency", "4")
        endpoint.wait_for(50)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
        code, summary = deliver.summary(endpoint.url)
    assert process.returncode == 130
    assert b"the same command" in told and b"Traceback" not in told
    assert (code, summary["delivered"]) == (0, 200)
    assert max(endpoint.seen.values()) == 1, "an interrupt makes no duplicates"


def test_a_line_that_waits_for_its_slot_is_given_back_at_once(deliver: Deliver) -> None:
    deliver.write([1, 2, 3])
    with Endpoint() as endpoint:
        process = deliver.start(endpoint.url, "--rate", "1/m")
        endpoint.wait_for(1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        waiting = all_messages(deliver.store)
    assert process.returncode == 130
    assert [(message.lane, message.attempt) for message in waiting] == [("ready", 0)] * 2


def test_the_rate_holds_for_all_requests_together(deliver: Deliver) -> None:
    deliver.write(list(range(21)))
    with Endpoint() as endpoint:
        assert deliver(endpoint.url, "--rate", "20/s").returncode == 0
    at_s = sorted(request.at_s for request in endpoint.requests)
    assert at_s[-1] - at_s[0] >= 0.75, "20 slots of 50 ms; 100 ms may be caught up, and the first request takes longer"


def test_gzip_and_standard_input_are_spooled_and_resumed(deliver: Deliver) -> None:
    bodies = deliver.write(list(range(30)))
    plain = (deliver.folder / "lines.jsonl").read_bytes()
    (deliver.folder / "lines.jsonl.gz").write_bytes(gzip.compress(plain[:50]) + gzip.compress(plain[50:]))
    with Endpoint() as endpoint:
        assert deliver.summary(endpoint.url, file="lines.jsonl.gz")[1]["delivered"] == 30
        assert deliver.summary(endpoint.url, file="-", stdin=plain)[1]["delivered"] == 30
        assert deliver.summary(endpoint.url, file="-", stdin=gzip.compress(plain))[1]["delivered"] == 30
        assert Counter(endpoint.bodies) == Counter(bodies), "the same content is the same delivery"
        other = deliver(endpoint.url, file="-", stdin=plain + b'{"other": 1}\n')
        assert other.returncode == 0
        assert b"warning: 30 of these 31 lines were sent before, and are sent again" in other.stderr
    assert len(endpoint.requests) == 61
    assert list((deliver.folder / "redrive.db-spool").iterdir()) == []


@pytest.mark.parametrize(
    "data", [gzip.compress(b"1\n" * 1000)[:-9], gzip.compress(b"1\n") + b"rubbish"], ids=["cut", "rubbish"]
)
def test_a_broken_archive_is_refused_before_anything_is_enqueued(deliver: Deliver, data: bytes) -> None:
    (deliver.folder / "lines.jsonl.gz").write_bytes(data)
    with Endpoint() as endpoint:
        done = deliver(endpoint.url, file="lines.jsonl.gz")
    assert done.returncode == 1 and b"gzip" in done.stderr
    assert endpoint.requests == []


def test_forgotten_the_file_is_sent_again(deliver: Deliver) -> None:
    deliver.write([1, 2])
    with Endpoint(lambda request: Answer(404 if request.body == b"2" else 204)) as endpoint:
        assert deliver(endpoint.url).returncode == 5
        assert deliver(endpoint.url, "--forget").returncode == 4, "a dead line would be left behind"
        assert deliver(endpoint.url, "--forget", "--yes").returncode == 0
        assert deliver.summary(endpoint.url)[1]["dead"] == 1
    assert Counter(endpoint.bodies) == {b"1": 2, b"2": 2}


def test_of_a_file_that_grew_append_sends_the_new_lines_alone(deliver: Deliver) -> None:
    deliver.write(list(range(8)))
    with Endpoint(lambda request: Answer(404 if request.body == b"3" else 204)) as endpoint:
        assert deliver(endpoint.url).returncode == 5
        deliver.write(list(range(12)))
        told = deliver(endpoint.url, "--dry-run").stderr.decode()
        assert "warning: 8 of these 12 lines were sent before, and are sent again; to send only the others: " in told
        assert f"deliver lines.jsonl --to {endpoint.url} --append" in told
        code, summary = deliver.summary(endpoint.url, "--append")
        assert (code, summary["lines"], summary["delivered"], summary["dead"]) == (5, 12, 11, 1)
        code, summary = deliver.summary(endpoint.url)
        assert (code, summary["delivered"], summary.get("requests", 0)) == (5, 11, 0)
        deliver.write([*range(11), 110])  # its last line was another
        assert b"warning" not in deliver(endpoint.url, "--dry-run").stderr
    assert Counter(endpoint.bodies) == Counter(str(n).encode() for n in range(12))


def test_a_file_that_goes_to_two_urls_is_two_deliveries(deliver: Deliver) -> None:
    deliver.write([1, 2])
    with Endpoint() as endpoint:
        queues = {deliver.summary(endpoint.url + path)[1]["queue"] for path in ("/a", "/b")}
    assert len(queues) == 2 and len(endpoint.requests) == 4


def test_a_password_in_the_url_is_used_and_not_told(deliver: Deliver) -> None:
    deliver.write([1])
    with Endpoint(lambda request: Answer(404)) as endpoint:
        done = deliver(endpoint.url.replace("//", "//me:hunter2@") + "?token=hunter3", "-o", "json")
    stored = b"".join(path.read_bytes() for path in deliver.folder.glob("redrive.db*") if path.is_file())
    assert endpoint.requests[0].headers["authorization"] == "Basic " + base64.b64encode(b"me:hunter2").decode()
    assert b"hunter" not in done.stdout + done.stderr + stored


def test_the_same_delivery_does_not_run_twice_at_once(deliver: Deliver) -> None:
    deliver.write([1, 2])
    refused = threading.Event()  # the first is under way until the second has ended

    def answer(request: Request) -> Answer:
        refused.wait(60)
        return Answer()

    with Endpoint(answer) as endpoint:
        first = deliver.start(endpoint.url, "--timeout", "2m")
        endpoint.wait_for(2)
        second = deliver(endpoint.url)
        refused.set()
        first.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 4)
    assert b"runs already" in second.stderr
    assert len(endpoint.requests) == 2


def test_what_is_removed_by_hand_does_not_count_as_delivered(deliver: Deliver) -> None:
    deliver.write([1, 2, 3])
    with Endpoint(lambda request: Answer(410 if request.body == b"2" else 204)) as endpoint:
        _, summary = deliver.summary(endpoint.url)
        dead = summary["groups"][0]["sample_id"]
        assert deliver.store.triage([Handle(dead, 0, Lane.DEAD)], Discard("by hand")) == [True]
        code, later = deliver.summary(endpoint.url)
    assert (code, later["delivered"], later["removed"], later["dead"]) == (5, 2, 1, 0)


@pytest.mark.parametrize(
    "options",
    [
        ("--rate", "fast"),
        ("--rate", "0/s"),
        ("--retry", "forever"),
        ("--header", "nothing"),
        ("--header", "webhook-id: mine"),
        ("--header", "Transfer-Encoding: chunked"),
        ("--header", "X : a"),
        ("--header", "X(y): a"),
        ("--header-env", "Authorization"),
        ("--header-env", "Authorization=NOT_SET"),
        ("--header-env", "webhook-id=HOME"),
        ("--header-env", "X-Two=TWO_LINES"),
        ("--secret", "whsec_***"),
        ("--timeout", "5"),
        ("--concurrency", "0"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_a_usage_error(deliver: Deliver, options: tuple[str, ...]) -> None:
    deliver.write([1])
    deliver.env["TWO_LINES"] = "hunter2\nhunter3"
    done = deliver("http://127.0.0.1:9/", *options)
    assert done.returncode == 2, done.stderr.decode()
    assert len(done.stderr.splitlines()) == 3 and b"hunter" not in done.stderr


@pytest.mark.parametrize("url", ["ftp://host/", "http://", "nothing", "http://host:99999/"])
def test_a_url_that_cannot_be_posted_to_is_a_usage_error(deliver: Deliver, url: str) -> None:
    deliver.write([1])
    assert deliver(url).returncode == 2


def test_a_store_that_forgets_is_refused(deliver: Deliver) -> None:
    deliver.write([1])
    assert deliver("http://127.0.0.1:9/", "--url", "memory://").returncode == 4


def test_an_empty_file_is_done(deliver: Deliver) -> None:
    (deliver.folder / "lines.jsonl").write_bytes(b"\n\n")
    assert deliver("http://127.0.0.1:9/").returncode == 0


def test_a_missing_file_is_said_in_three_lines(deliver: Deliver) -> None:
    done = deliver("http://127.0.0.1:9/", file="none.jsonl")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 3 and b"none.jsonl" in done.stderr


def test_a_dry_run_sends_nothing(deliver: Deliver) -> None:
    deliver.write([1, 2])
    code, found = deliver.summary("http://127.0.0.1:9/", "--dry-run")
    assert (code, found["lines"], found["enqueued"]) == (0, 2, 0)
    assert deliver.store.queues() == []


def fault(kind: Kind, at_ms: int) -> Fault:
    return Fault(kind, at_ms=at_ms)


def fate(retry: Retry, kind: Kind, attempt: int, faults: list[Fault], now_ms: int = 1_000_000) -> str:
    """What the policy decides for a message with that history: `retry`, or the reason for its death."""
    message = Message(
        "0", "t", "q", b"", attempt=attempt, fence=attempt, faults=tuple(faults), life_ms=1, correlation_id="0"
    )
    decision = decide(message, Fault(kind), Policy(retry), now_ms)
    return decision.reason if isinstance(decision, DeadLetter) else "retry"


def test_the_16th_failure_is_the_last_and_being_throttled_does_not_count() -> None:
    failures = [fault(Kind.TRANSIENT, 1)] * 15
    throttled = [fault(Kind.THROTTLED, 1)] * 5
    assert fate(PATIENT, Kind.TRANSIENT, 15, failures[:14]) == "retry"
    assert fate(PATIENT, Kind.TRANSIENT, 16, failures) == "exhausted"
    assert fate(PATIENT, Kind.TRANSIENT, 20, failures[:14] + throttled) == "retry"
    assert fate(PATIENT, Kind.THROTTLED, 20, failures + throttled) == "retry"
    assert fate(PATIENT, Kind.THROTTLED, 100, throttled) == "exhausted"


def test_a_line_that_keeps_failing_outlives_an_outage_of_5_minutes() -> None:
    low_s, high_s = (sum(PATIENT.backoff.range(n)[i] for n in range(15)) for i in (0, 1))
    assert low_s > 300 and high_s < 610


def test_a_lines_wait_for_its_turn_is_no_part_of_a_presets_time() -> None:
    now_ms = 100_000_000  # a day and more after the line was enqueued
    retry = read_retry("standard_api")
    assert fate(retry, Kind.TRANSIENT, 1, [], now_ms) == "retry"
    tried = replace(fault(Kind.TRANSIENT, 1000), delay_ms=2000, tried_ms=430_000)
    assert fate(retry, Kind.TRANSIENT, 3, [tried], now_ms) == "retry"
    assert fate(retry, Kind.TRANSIENT, 3, [replace(tried, tried_ms=499_000)], now_ms) == "elapsed"


@pytest.mark.parametrize("text, rate", [("50/s", 50), ("600/m", 10), ("5/2s", 2.5), ("0.5/s", 0.5), ("36000/h", 10)])
def test_a_rate_is_a_number_per_unit_of_time(text: str, rate: float) -> None:
    assert read_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "50", "/s", "-1/s", "0/s", "1/0s", "1/x", "1e3/s", "∞/s", "1/s/s", "2000000/s"])
def test_another_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="rate"):
        read_rate(text)
