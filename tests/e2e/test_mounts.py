"""redrive in web frameworks and in a script: the examples as they stand, and what each mount promises beyond them."""

import asyncio
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.e2e.test_cli import environment
from tests.unit.working import until

from redrive import App
from redrive.contrib.starlette import lifespan
from redrive.events import Event, Notice
from redrive.stores.sqlite import SqliteStore

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 60.0


def run(home: Path, *argv: str, path: Path = EXAMPLES, **extra: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        argv, cwd=home, env=environment(PYTHONPATH=_path(path), **extra), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done


def _path(first: Path) -> str:
    import redrive

    return f"{first}:{Path(redrive.__file__).parents[1]}"


@contextmanager
def server(home: Path, module: str, path: Path = EXAMPLES) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """uvicorn in a process of its own, and where it listens."""
    argv = [sys.executable, "-m", "uvicorn", module, "--port", "0", "--host", "127.0.0.1"]
    with (home / "log").open("wb") as log:
        env = environment(PYTHONPATH=_path(path))
        process = subprocess.Popen(argv, cwd=home, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process, said(home, r"running on (http://127\.0\.0\.1:\d+)")[1]
    finally:
        process.kill()
        process.wait(30)


def said(home: Path, pattern: str) -> re.Match[str]:
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        if found := re.search(pattern, (home / "log").read_text()):
            return found
        time.sleep(0.02)
    raise AssertionError(f"{pattern!r} is not in:\n{(home / 'log').read_text()}")


def test_examples_are_short_enough_to_be_read() -> None:
    files = [path for path in EXAMPLES.rglob("*.py") if path.stat().st_size]
    assert len(files) >= 2
    for path in files:
        assert len(path.read_text().splitlines()) <= 30, path


# -- a plain script


def test_the_script_says_hello_to_both_and_ends(tmp_path: Path) -> None:
    done = run(tmp_path, sys.executable, str(EXAMPLES / "script.py"))
    assert sorted(done.stdout.splitlines()) == ["hello ann", "hello bob"]


# -- Starlette and FastAPI


def test_the_fastapi_example_works_what_its_route_enqueues(tmp_path: Path) -> None:
    with server(tmp_path, "fastapi_app:web") as (process, url):
        answer = httpx.post(f"{url}/people", params={"email": "ann@example.org"})
        assert answer.status_code == 202
        said(tmp_path, r"welcome, ann@example\.org\n")
        assert httpx.get(f"{url}/jobs/{answer.json()['job']}").status_code in (200, 404)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    assert "Application shutdown complete" in (tmp_path / "log").read_text()


def test_a_server_that_shuts_down_lets_what_runs_finish_and_keeps_what_waits(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        textwrap.dedent(
            """
            import asyncio
            from starlette.applications import Starlette
            from redrive import App
            from redrive.contrib.starlette import lifespan

            app = App("sqlite:///work.db")
            web = Starlette(lifespan=lifespan(app, {"q": 1}, grace="30s"))

            @app.task(name="slow", queue="q")
            async def slow(number: int) -> None:
                print("begun", number, flush=True)
                await asyncio.sleep(1)
                print("ended", number, flush=True)

            if __name__ == "__main__":
                app.enqueue_many(slow.draft(number) for number in (1, 2, 3))
            """
        )
    )
    run(tmp_path, sys.executable, "slow.py", path=tmp_path)
    with server(tmp_path, "slow:web", tmp_path) as (process, _):
        said(tmp_path, "begun 1")
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    log = (tmp_path / "log").read_text()
    assert "ended 1" in log and "begun 3" not in log
    store = SqliteStore(tmp_path / "work.db")
    counts = store.counts()
    assert (counts.ready, counts.leased) == (3 - log.count("ended"), 0)
    assert all(m.attempt == 0 for m in store.peek(None).messages)
    store.close()


@asynccontextmanager
async def served(web: Starlette) -> AsyncIterator[str]:
    """The application behind a real server, on this event loop."""
    server = uvicorn.Server(uvicorn.Config(web, host="127.0.0.1", port=0, lifespan="on", log_level="warning"))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started or serving.done())
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


def test_an_inner_lifespan_opens_before_the_worker_and_closes_after_it() -> None:
    app, steps = App("memory://"), list[str]()

    @app.task(name="t")
    async def t() -> None:
        steps.append("run")

    @asynccontextmanager
    async def own(web: Any) -> AsyncIterator[dict[str, str]]:
        steps.append("open")
        yield {"pool": "a pool"}
        steps.append("close")

    async def route(request: Request) -> PlainTextResponse:
        await t.aenqueue()
        await until(lambda: "run" in steps)
        return PlainTextResponse(request.state.pool)

    def told(events: Sequence[Event]) -> None:
        steps.extend(event.name for event in events if isinstance(event, Notice) and event.name == "stopped")

    app.subscribe(told)

    async def main() -> None:
        web = Starlette(routes=[Route("/", route)], lifespan=lifespan(app, inner=own))
        async with served(web) as url, httpx.AsyncClient() as client:
            assert (await client.get(url)).text == "a pool"

    asyncio.run(main())
    assert steps == ["open", "run", "stopped", "close"]


def test_a_lifespan_can_begin_again_on_the_same_app() -> None:
    app, runs = App("memory://"), list[int]()

    @app.task(name="t")
    def t(number: int) -> None:
        runs.append(number)

    web = Starlette(lifespan=lifespan(app))

    async def main(number: int) -> None:
        await t.aenqueue(number)
        async with served(web):
            await until(lambda: number in runs)

    asyncio.run(main(1))
    asyncio.run(main(2))
    assert runs == [1, 2]
