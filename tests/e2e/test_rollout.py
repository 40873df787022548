"""Three releases of an app rolled forth and back under load, by real processes that are stopped and killed."""

from __future__ import annotations

import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.releases import app_of, send

from redrive import App
from redrive.message import Lane
from redrive.presence import read_workers

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 90.0  # for what comes within seconds or never
PLACES = 4
STEPS = 14
STEP_S = 1.0
PER_STEP = 20
PARK_FOR = "5s"


class Fleet:
    """Workers in places; each is of some release."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._at: dict[int, subprocess.Popen[bytes]] = {}
        self.records = folder / "records"

    def start(self, place: int, release: int, park_for: str) -> None:
        argv = [sys.executable, "-m", "tests.support.releases", self._url, str(release)]
        argv += [str(self.records), park_for]
        with (self._folder / f"{place}.log").open("ab") as log:
            self._at[place] = subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log)

    def pid(self, place: int) -> int:
        return self._at[place].pid

    def end(self, place: int, *, kill: bool) -> None:
        process = self._at.pop(place)
        process.kill() if kill else process.terminate()
        assert process.wait(60) in (0, -9, -15), (self._folder / f"{place}.log").read_text()

    def end_all(self) -> None:
        for place in [*self._at]:
            self.end(place, kill=True)

    def ran(self) -> list[int]:
        return [*map(int, self.records.read_text().split())] if self.records.exists() else []


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = f"rollout_{secrets.token_hex(6)}"
    if request.param == "postgres":
        return f"{request.getfixturevalue('postgres_server').url}?schema={name}"
    if request.param == "redis":
        return f"{request.getfixturevalue('redis_server').url}?namespace={name}"
    return f"sqlite:///{tmp_path}/work.db"


@pytest.fixture
def fleet(tmp_path: Path, url: str) -> Iterator[Fleet]:
    made = Fleet(tmp_path, url)
    yield made
    made.end_all()


def test_nothing_dies_while_three_releases_come_and_go(fleet: Fleet, url: str, seed: int) -> None:
    """One place always has the newest release, though its worker is killed now and then; the others change at random.
    What waits for a newer worker for 5 s dies, unless one lives that knows it."""
    print(f"seed {seed}")
    draw, apps = random.Random(seed), {release: app_of(url, release, PARK_FOR) for release in (1, 2, 3)}
    for place, release in enumerate((3, 1, 1, 2)):
        fleet.start(place, release, PARK_FOR)
    newest = apps[3]
    _until(lambda: len([w for w in read_workers(newest.store) if not w.gone]) == PLACES)
    sent = 0
    for _ in range(STEPS):
        end_s = time.monotonic() + STEP_S
        for n in range(PER_STEP):
            send(apps, draw.randrange(4), sent + n)
            time.sleep(STEP_S / PER_STEP / 2)
        sent += PER_STEP
        place = draw.randrange(PLACES)
        if not place:
            _until(lambda: fleet.pid(0) in {worker.pid for worker in read_workers(newest.store)})
        fleet.end(place, kill=draw.random() < 0.5)
        fleet.start(place, draw.randint(1, 3) if place else 3, PARK_FOR)
        time.sleep(max(0.0, end_s - time.monotonic()))
    _until(lambda: len(set(fleet.ran())) == sent, lambda: _state(newest))
    _until(lambda: sum(_lanes(newest)) == 0, lambda: _state(newest))
    for app in apps.values():
        app.store.close()


def test_what_waited_for_a_release_runs_soon_after_its_first_worker_starts(fleet: Fleet, url: str) -> None:
    """Before, three older workers alone; they put it off longer and longer, but it does not wait for that."""
    apps = {release: app_of(url, release, "1h") for release in (1, 2, 3)}
    for place, release in enumerate((1, 1, 2)):
        fleet.start(place, release, "1h")
    _until(lambda: len([w for w in read_workers(apps[3].store) if not w.gone]) == 3)
    for n in range(100):
        send(apps, 3, n)
    time.sleep(3.0)
    assert fleet.ran() == []
    fleet.start(3, 3, "1h")
    _until(lambda: len(set(fleet.ran())) == 100, lambda: _state(apps[3]))
    _until(lambda: sum(_lanes(apps[3])) == 0, lambda: _state(apps[3]))
    for app in apps.values():
        app.store.close()


def _lanes(app: App) -> tuple[int, ...]:
    counts = app.store.counts("default")
    return counts.ready, counts.scheduled, counts.leased, counts.dead, counts.quarantine


def _state(app: App) -> str:
    dead = [(m.task, m.version, m.body, m.reason, m.faults) for m in app.store.peek(Lane.DEAD, limit=3).messages]
    ready = [(m.task, m.version, m.body, m.faults) for m in app.store.peek(Lane.READY, limit=3).messages]
    return f"{app.store.counts('default')}; dead {dead}; waiting {ready}"


def _until(condition: Callable[[], object], state: Callable[[], str] = str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, state()
        time.sleep(0.05)
