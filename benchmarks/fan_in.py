"""A fan-in on Redis: many no-op messages and one callback after the last, beside Celery's chord and BullMQ's flow.

    python -m benchmarks.fan_in --rounds 3 --members 10000 --node FOLDER

FOLDER is where `npm install bullmq` was run; without it BullMQ is left out. Celery is the one installed beside redrive.
Each takes the time from the call that puts all to the first line of the callback, its worker process running already:
redrive with a concurrency of 500 and a prefetch of 1,500, BullMQ with one of 100, as in the comparison of throughput;
Celery with its defaults. All share one private server, in turns.
"""

from __future__ import annotations

import argparse
import itertools
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.servers import RedisServer

REDRIVE = """
import os, pathlib, sys, time
from redrive import App

app = App(os.environ["FAN_URL"])


@app.task(name="member")
async def member(n: int) -> None: ...


@app.task(name="ended")
async def ended() -> None:
    pathlib.Path(os.environ["FAN_END"]).write_text(repr(time.time()))


if __name__ == "__main__":
    begun = time.time()
    app.batch((member.draft(n) for n in range(int(sys.argv[1]))), name="fan", on_success=ended.draft()).enqueue()
    print(begun)
"""
CELERY = """
import os, pathlib, sys, time
from celery import Celery, chord

app = Celery("fan", broker=os.environ["FAN_URL"], backend=os.environ["FAN_URL"])


@app.task
def member(n):
    return None


@app.task
def ended(results):
    pathlib.Path(os.environ["FAN_END"]).write_text(repr(time.time()))


if __name__ == "__main__":
    begun = time.time()
    chord((member.s(n) for n in range(int(sys.argv[1]))), ended.s()).apply_async()
    print(begun)
"""
BULLMQ = """
import { createRequire } from "node:module";
import { writeFileSync } from "node:fs";
const require = createRequire(process.env.FAN_NODE + "/");
const { FlowProducer, Worker } = require("bullmq");
const url = new URL(process.env.FAN_URL);
const connection = { host: url.hostname, port: Number(url.port), db: 0 };
const prefix = process.env.FAN_PREFIX;
if (process.argv[2] === "work") {
  new Worker("members", async () => null, { connection, prefix, concurrency: 100 });
  new Worker("ends", async () => writeFileSync(process.env.FAN_END, String(Date.now() / 1000)), { connection, prefix });
} else {
  const flow = new FlowProducer({ connection, prefix });
  await flow.waitUntilReady();
  const begun = Date.now() / 1000;
  const children = Array.from({ length: Number(process.argv[2]) }, (_, n) => ({
    name: "member", data: { n }, queueName: "members", opts: { removeOnComplete: true },
  }));
  await flow.add({ name: "ended", queueName: "ends", children });
  console.log(begun);
  await flow.close();
}
"""
PATIENCE_S = 300.0


def run(folder: Path, work: list[str], put: list[str], env: dict[str, str], members: int) -> float:
    """Seconds from the put to the callback, with a worker that runs since two seconds."""
    end = folder / f"end-{secrets.token_hex(4)}"
    env = os.environ | env | {"FAN_END": str(end)}
    with (folder.parent / "log").open("ab") as log:
        worker = subprocess.Popen(work, cwd=folder, env=env, stdout=log, stderr=log)
        try:
            time.sleep(4)
            put_at = float(subprocess.check_output([*put, str(members)], cwd=folder, env=env, stderr=log))
            until_s = time.monotonic() + PATIENCE_S
            while not (end.exists() and end.read_text()):
                if time.monotonic() > until_s:
                    raise SystemExit(f"no callback after {PATIENCE_S:g} s: see {folder / 'log'}")
                time.sleep(0.01)
            return float(end.read_text()) - put_at
        finally:
            worker.terminate()
            worker.wait(30)


def peers(url: str, folder: Path, node: Path | None, members: int) -> dict[str, Callable[[], float]]:
    """The contenders by name; each call is one run on a namespace of its own."""
    python, redrive, databases = sys.executable, folder / "redrive", itertools.cycle(range(1, 16))
    celery, bullmq = folder / "celery", folder / "bullmq"
    for place, name, text in ((redrive, "fan.py", REDRIVE), (celery, "fan.py", CELERY), (bullmq, "fan.mjs", BULLMQ)):
        place.mkdir()
        (place / name).write_text(text)

    def of_redrive() -> float:
        env = {"FAN_URL": f"{url}?namespace={secrets.token_hex(4)}"}
        return run(
            redrive,
            [python, "-m", "redrive", "worker", "fan:app", "--concurrency", "500", "--prefetch", "1500"],
            [python, "fan.py"],
            env,
            members,
        )

    def of_celery() -> float:
        env = {"FAN_URL": f"{url.rpartition('/')[0]}/{next(databases)}"}
        work = [python, "-m", "celery", "-A", "fan", "worker", "--loglevel", "ERROR"]
        return run(celery, work, [python, "fan.py"], env, members)

    def of_bullmq() -> float:
        env = {"FAN_URL": url, "FAN_NODE": str(node), "FAN_PREFIX": secrets.token_hex(4)}
        return run(bullmq, ["node", "fan.mjs", "work"], ["node", "fan.mjs"], env, members)

    return {"redrive": of_redrive, "Celery": of_celery} | ({} if node is None else {"BullMQ": of_bullmq})


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--members", type=int, default=10_000)
    p.add_argument("--node", type=Path)
    options = p.parse_args()
    with RedisServer(appendonly=True) as server, tempfile.TemporaryDirectory(prefix="redrive-fan-") as folder:
        contenders = peers(server.url, Path(folder), options.node, options.members)
        found: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(options.rounds):
            for name, once in contenders.items():
                found[name].append(once())
                print(f"{name}: {found[name][-1]:.2f} s", file=sys.stderr, flush=True)
    for name, times in found.items():
        middle = statistics.median(times)
        ratio = middle / statistics.median(found["redrive"])
        print(f"{name:8} {middle:8.2f} s ({min(times):.2f}–{max(times):.2f}), {ratio:.1f} × redrive's")


if __name__ == "__main__":
    main()
