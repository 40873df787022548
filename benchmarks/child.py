"""What runs in processes of its own: `python -m benchmarks.child ROLE …`, started by harness.py."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from redrive import App
from redrive.fault import Fault

from . import aws_libraries, crowded, floors, late, rollout, sqs_roles, tenants, web_site
from .tasks import Records, make_app


def worker(url: str, concurrency: str, records: str, evidence: str = "") -> None:
    """A worker until SIGTERM. `evidence`: a file for the faults that retries were claimed with, written at the end."""
    retried: dict[int, tuple[Fault, ...]] = {}
    app = make_app(url, Records(Path(records)).add, retried if evidence else None)
    app.run_worker(queues={"default": int(concurrency)})
    if evidence:
        Path(evidence).write_bytes(msgspec.json.encode({str(i): faults for i, faults in retried.items()}))


def telling(url: str, concurrency: str, records: str) -> None:
    """As `worker`, and tells about itself."""
    os.environ["REDRIVE_TELEMETRY"] = "true"
    worker(url, concurrency, records)


def silent(url: str, concurrency: str, records: str) -> None:
    """As `worker`, and tells nothing."""
    os.environ["REDRIVE_TELEMETRY"] = "false"
    worker(url, concurrency, records)


def guarded(url: str, concurrency: str, records: str) -> None:
    """A worker whose no-op task has every control, none of which ever holds it back."""
    app = make_app(url, Records(Path(records)).add)
    app.dependency("noop", rate="900000/s")  # a budget and a breaker by default
    app.run_worker(queues={"default": int(concurrency)})


def isolated(url: str, concurrency: str, records: str) -> None:
    """As `worker`, with a handler that runs in child processes. One message makes the first of them before."""
    from . import isolated as found

    os.environ[found.RECORDS] = records
    found.app.url = url
    found.records()
    found.app.run_worker(queues={"default": int(concurrency)})


def threaded(url: str, concurrency: str, records: str) -> None:
    """As `worker`, with a handler that runs in threads."""
    file, app = Records(Path(records)), App(url)

    @app.task(name="noop")
    def noop(i: int) -> None:
        file.add(i)

    app.run_worker(queues={"default": int(concurrency)})


def floor(url: str, concurrency: str, records: str) -> None:
    """The least that could do a worker's work: see floors.py."""
    floors.work(url, int(concurrency), Records(Path(records)).add)


def steady(url: str, first: str, count: str, per_s: str, records: str) -> None:
    """Enqueue at a fixed rate, whatever the queue does; records each call as -1 - index and its return as index."""
    file = Records(Path(records))
    send = _datagrams(url.removeprefix("datagram:")) if url.startswith("datagram:") else _enqueues(url)
    start_s = time.monotonic() + 0.05
    for k in range(int(count)):
        time.sleep(max(0.0, start_s + k / float(per_s) - time.monotonic()))
        file.add(-1 - int(first) - k)
        send(int(first) + k)
        file.add(int(first) + k)


def _datagrams(port: str) -> Callable[[int], object]:
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(("127.0.0.1", int(port)))
    return lambda i: sender.send(str(i).encode())


def _enqueues(url: str) -> Callable[[int], object]:
    return make_app(url).tasks["noop"].enqueue


def receiver(port: str, records: str) -> None:
    """The least that another process can wake: blocks on a datagram socket, records what comes. `port`: a file."""
    receiving = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiving.bind(("127.0.0.1", 0))
    Path(port).write_text(str(receiving.getsockname()[1]))
    add = Records(Path(records)).add  # its file says that the port can be read
    while True:
        add(int(receiving.recv(64)))


def sleeper(dues: str, records: str) -> None:
    """The least that is on time: sleeps until each due time of the JSON list in turn."""
    add = Records(Path(records)).add
    for index, due_s in sorted(enumerate(json.loads(Path(dues).read_text())), key=lambda pair: pair[1]):
        time.sleep(max(0.0, due_s - time.time()))
        add(index)


def planner(url: str, selector: str) -> None:
    """Draws up a plan and looks through it; prints how long each took, and the most memory there was."""
    app = App(url)
    app.store.now_ms()
    start_s, cpu_s = time.perf_counter(), time.process_time()
    made = app.dlq.select(selector).plan(rate="100/s")
    planned_s, cpu_s = time.perf_counter(), time.process_time() - cpu_s
    made.check(reason="measured")
    found = {"plan_s": planned_s - start_s, "cpu_s": cpu_s, "check_s": time.perf_counter() - planned_s}
    print(json.dumps(found | {"rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
    app.store.close()


ROLES: dict[str, Callable[..., None]] = {
    f.__name__: f
    for f in (
        worker,
        guarded,
        telling,
        silent,
        floor,
        steady,
        receiver,
        sleeper,
        isolated,
        threaded,
        planner,
        late.late_worker,
        aws_libraries.library,
        web_site.site,
        crowded.crowd,
        rollout.rolling,
        tenants.tenants_endpoint,
        tenants.tenants_worker,
    )
} | sqs_roles.ROLES

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
