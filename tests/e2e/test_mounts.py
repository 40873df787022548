"""redrive in web frameworks and in a script: the examples as they stand, and what each mount promises beyond them."""

import asyncio
import json
import os
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
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.support.command_line import COMMAND, environment
from tests.support.examples import EXAMPLES, _path, run
from tests.support.workers import until

from redrive import App
from redrive.contrib.starlette import lifespan
from redrive.events import Event, Notice
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing.sqs import SqsServer

SITE = EXAMPLES / "django_site"
PATIENCE_S = 60.0


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
    assert len(files) >= 5
    for path in files:
        if path.name != "dict_store.py":  # a whole store: tests/contract/test_example_store.py bounds it
            assert len(path.read_text().splitlines()) <= 110, path  # a saga takes a hundred


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


# -- Django


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site with more tasks than the example: in `shop.tasks`, which imports `shop.mail`."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "settings.py").write_text(
        textwrap.dedent(
            """
            SECRET_KEY = "x"
            INSTALLED_APPS = ["shop"]
            USE_TZ = True
            DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.db", "CONN_MAX_AGE": 0}}
            TASKS = {
                "default": {"BACKEND": "redrive.contrib.django.RedriveBackend", "QUEUES": ["default", "bulk"],
                            "OPTIONS": {"url": "sqlite:///work.db"}},
                "other": {"BACKEND": "redrive.contrib.django.RedriveBackend",
                          "OPTIONS": {"url": "sqlite:///other.db"}},
            }
            """
        )
    )
    (tmp_path / "shop" / "tasks.py").write_text(
        textwrap.dedent(
            """
            try:
                from django.tasks import task
            except ImportError:
                from django_tasks import task
            from django.db import connection
            from redrive import Backoff, Reject, Retry
            from . import mail
            from .mail import said

            soon = Retry(max_attempts=3, backoff=Backoff.fixed("10ms"))

            @task
            def add(a, b=0, **more):
                with connection.cursor() as cursor:
                    cursor.execute("select 1")
                said("add", a, b, more)
                return {"sum": a + b, "pair": (a, b)}

            @task(takes_context=True)
            async def aadd(context, a, *rest):
                said("aadd", context.attempt, context.task_result.id, a, rest)
                return a + sum(rest)

            @task(retry=soon, takes_context=True)
            def unlucky(context):
                said("unlucky", context.attempt)
                if context.attempt < 3:
                    raise ValueError(f"no. {context.attempt}")

            @task(retry=soon)
            def bad():
                raise ValueError("always")

            @task
            def odd():
                said("odd")
                return object()

            @task(backend="other")
            def elsewhere():
                said("elsewhere")
            """
        )
    )
    (tmp_path / "shop" / "mail.py").write_text(
        textwrap.dedent(
            """
            import json
            try:
                from django.tasks import task
            except ImportError:
                from django_tasks import task

            def said(*words):
                print(f"said {json.dumps(words)}\\n", end="", flush=True)

            @task
            def post(to):
                said("post", to)
            """
        )
    )
    return tmp_path


def shell(site: Path, code: str) -> Any:
    """What this code prints as JSON at its end, run with the site set up."""
    whole = "import django, json; django.setup()\nfrom shop.tasks import *\n" + textwrap.dedent(code)
    done = run(site, sys.executable, "-c", whole, path=site, DJANGO_SETTINGS_MODULE="settings")
    return json.loads(done.stdout.splitlines()[-1])


def work(site: Path, app: str = "app", *more: str, drain: bool = True) -> list[list[Any]]:
    """What tasks said while a worker worked until nothing was left."""
    words = ["worker", f"redrive.contrib.django:{app}", "--drain" if drain else "--burst", "--log", "off", *more]
    done = run(site, *COMMAND, *words, path=site, DJANGO_SETTINGS_MODULE="settings")
    lines = done.stdout.splitlines()
    return [json.loads(line.removeprefix("said ")) for line in lines if line.startswith("said ")]


def test_a_command_without_djangos_settings_says_how_to_name_them(tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text("")
    command = [*COMMAND, "queue", "list", "--app", "redrive.contrib.django:app"]
    unset = {name: text for name, text in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    env = {**unset, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "Django's settings are not named" in done.stderr
    assert "next: DJANGO_SETTINGS_MODULE=settings " in done.stderr


def test_the_django_example_enqueues_in_a_view_and_tells_the_result(tmp_path: Path) -> None:
    code = "import django, sys; django.setup(); from django.test import Client; print(Client().get(sys.argv[1]).text)"

    def get(url: str) -> Any:
        done = run(tmp_path, sys.executable, "-c", code, url, path=SITE, DJANGO_SETTINGS_MODULE="settings")
        return json.loads(done.stdout)

    id = get("/people?email=ann@example.org")["job"]
    assert get(f"/jobs/{id}") == {"status": "READY", "value": None}
    words = ["worker", "redrive.contrib.django:app", "--burst", "--log", "off"]
    done = run(tmp_path, *COMMAND, *words, path=SITE, DJANGO_SETTINGS_MODULE="settings")
    assert done.stdout == "welcome, ann@example.org\n"
    assert get(f"/jobs/{id}") == {"status": "SUCCESSFUL", "value": "sent to ann@example.org"}


def test_django_tasks_run_sync_and_async_with_their_arguments_and_results(site: Path) -> None:
    ids = shell(
        site,
        """
        import asyncio
        one = add.enqueue(1, b=2, c=[3])
        two = asyncio.run(aadd.aenqueue(4, 5, 6))
        print(json.dumps([one.id, two.id, one.status, one.args, one.kwargs]))
        """,
    )
    assert ids[2:] == ["READY", [1], {"b": 2, "c": [3]}]
    heard = work(site)
    assert sorted(heard) == [["aadd", 1, ids[1], 4, [5, 6]], ["add", 1, 2, {"c": [3]}]]
    found = shell(
        site,
        f"""
        import asyncio
        one, two = add.get_result({ids[0]!r}), asyncio.run(aadd.aget_result({ids[1]!r}))
        print(json.dumps([one.return_value, two.return_value, one.status, one.args, one.kwargs, one.attempts,
                          one.finished_at >= one.enqueued_at]))
        """,
    )
    assert found == [{"sum": 3, "pair": [1, 2]}, 15, "SUCCESSFUL", [1], {"b": 2, "c": [3]}, 1, True]


def test_django_finds_the_result_of_a_task_whose_arguments_lie_in_blob_storage(site: Path) -> None:
    with (site / "settings.py").open("a") as file:
        file.write(f"import os\nos.environ['REDRIVE_BLOBS'] = 'file://{site}/blobs'\n")
    [id, *waiting] = shell(
        site,
        """
        made = add.enqueue("x" * 300_000, b="y")
        found = add.get_result(made.id)
        print(json.dumps([made.id, found.status, found.args == made.args, found.kwargs]))
        """,
    )
    assert waiting == ["READY", True, {"b": "y"}]
    work(site)
    find = f"found = add.get_result({id!r}); print(json.dumps([found.status, len(found.return_value['sum'])]))"
    assert shell(site, find) == ["SUCCESSFUL", 300_001]
    gone = shell(site, "print(json.dumps(add.enqueue('x' * 300_000).id))")
    [blob] = site.glob(f"blobs/*/{gone}.*")
    blob.unlink()
    find = f"found = add.get_result({gone!r}); print(json.dumps([found.status, found.args, found.kwargs]))"
    assert shell(site, find) == ["READY", [], {}]


def test_django_finds_a_task_that_waits_on_sqs_without_its_arguments(site: Path) -> None:
    with SqsServer() as server:
        settings = site / "settings.py"
        url = f"sqs://eu-central-1/shop?endpoint={server.url}&create=true&track=true&cells=sqlite:///{site}/cells.db"
        settings.write_text(settings.read_text().replace("sqlite:///work.db", url))
        found = shell(
            site,
            """
            made = add.enqueue(1)
            found = add.get_result(made.id)
            print(json.dumps([found.status, found.args, found.kwargs, found.id == made.id]))
            """,
        )
    assert found == ["READY", [], {}, True]


def test_a_django_task_that_fails_is_tried_again_and_failed_when_it_is_dead(site: Path) -> None:
    ids = shell(site, "print(json.dumps([unlucky.enqueue().id, bad.enqueue().id, odd.enqueue().id]))")
    heard = work(site)
    assert [word for word in heard if word[0] == "unlucky"] == [["unlucky", 1], ["unlucky", 2], ["unlucky", 3]]
    assert heard.count(["odd"]) == 1  # what it returns cannot be kept: it is not run again for that
    found = shell(
        site,
        f"""
        good, bad_, odd_ = unlucky.get_result({ids[0]!r}), bad.get_result({ids[1]!r}), odd.get_result({ids[2]!r})
        print(json.dumps([good.status, bad_.status, bad_.attempts, [e.exception_class.__name__ for e in bad_.errors],
                          "always" in bad_.errors[0].traceback, odd_.status, odd_.errors[0].exception_class_path]))
        """,
    )
    assert found == ["SUCCESSFUL", "FAILED", 3, ["ValueError"] * 3, True, "FAILED", "redrive.errors.Reject"]


def test_run_after_priority_and_queue_of_django_are_kept(site: Path) -> None:
    found = shell(
        site,
        """
        from datetime import timedelta
        from django.utils import timezone
        later = timezone.now() + timedelta(hours=1)
        made = [add.using(run_after=later).enqueue(1), add.using(priority=100).enqueue(2), add.enqueue(3),
                add.using(priority=-5, queue_name="bulk").enqueue(4)]
        again = [add.get_result(r.id) for r in made]
        app = add.get_backend().home.app
        stored = [app.job(r.id) for r in made]
        print(json.dumps([[r.task.priority for r in again], [r.task.queue_name for r in again],
                          again[0].task.run_after == later, [m.priority for m in stored],
                          0 <= stored[0].due_ms - later.timestamp() * 1000 <= 1]))
        """,
    )
    assert found == [[0, 100, 0, -5], ["default", "default", "default", "bulk"], True, [2, 0, 2, 3], True]
    assert [word[1] for word in work(site, "app", "-q", "default:1", drain=False)] == [2, 3]


def test_a_django_worker_runs_declared_tasks_only_also_those_a_tasks_module_imports(site: Path) -> None:
    store = SqliteStore(site / "work.db")
    from redrive import Draft

    body = b'{"args": ["ann"], "kwargs": {}}'
    _, unknown = store.put([Draft(task=name, body=body) for name in ("shop.mail.post", "os.system")])
    store.close()
    assert work(site, drain=False) == [["post", "ann"]]
    store = SqliteStore(site / "work.db")
    left = store.find([unknown.id])[0]
    assert left is not None and left.attempt == 0 and left.body == body
    store.close()


def test_each_alias_has_an_app_of_its_name(site: Path) -> None:
    shell(site, "print(json.dumps(elsewhere.enqueue().id))")
    assert work(site) == []
    assert work(site, "other") == [["elsewhere"]]
    words = ["worker", "redrive.contrib.django:nothing", "--burst"]
    env = environment(PYTHONPATH=_path(site), DJANGO_SETTINGS_MODULE="settings")
    done = subprocess.run([*COMMAND, *words], cwd=site, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "no app 'nothing'" in done.stderr


def test_a_worker_without_django_settings_says_so(site: Path) -> None:
    words = ["worker", "redrive.contrib.django:app", "--burst"]
    env = environment(PYTHONPATH=_path(site))
    done = subprocess.run([*COMMAND, *words], cwd=site, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "DJANGO_SETTINGS_MODULE" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "code, error",
    [
        ("add.enqueue()", "missing a required argument: 'a'"),
        ("add.enqueue(object())", "Unsupported type"),
        ("add.using(queue_name='nowhere')", "Queue 'nowhere' is not valid"),
        ("add.get_result('0190f5f0-0000-7000-8000-000000000000')", "TaskResultDoesNotExist"),
        ("bad.get_result(add.enqueue(1).id)", "TaskResultMismatch"),
    ],
)
def test_what_django_refuses_is_refused_at_the_call(site: Path, code: str, error: str) -> None:
    caught = f"""
    try:
        {code}
    except Exception as e:
        print(json.dumps(repr(e)))
    """
    assert error in shell(site, caught)


def test_django_s_signals_are_sent(site: Path) -> None:
    (site / "shop" / "apps.py").write_text(
        textwrap.dedent(
            """
            from django.apps import AppConfig

            class Shop(AppConfig):
                name = "shop"

                def ready(self):
                    from redrive.contrib.django_results import task_finished, task_started
                    from .mail import said
                    self.tell = lambda task_result, **_: said(task_result.status, task_result.task.name)
                    task_started.connect(self.tell)
                    task_finished.connect(self.tell)
            """
        )
    )
    shell(site, "add.enqueue(1); print(json.dumps(aadd.enqueue(1).id))")
    heard = [tuple(word) for word in work(site)]
    for name in ("add", "aadd"):
        assert heard.index(("RUNNING", name)) < heard.index(("SUCCESSFUL", name))
