"""What all tests share: one seed for everything random, the two amounts of work, the Linux-only mark, and the
rows of docs/reliability.md."""

import atexit
import compileall
import gc
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadGroupScheduling

import redrive

pytest.register_assert_rewrite("tests.support")  # before it is imported
from tests.support.cpu import Cpu  # noqa: E402
from tests.support.dealing import ByFile, begins_late  # noqa: E402
from tests.support.rewritten import rewrite  # noqa: E402
from tests.support.servers import PostgresServer, RedisServer, memory_disk  # noqa: E402
from tests.support.turns import give_turns  # noqa: E402

# No deadline: the machine is shared, and a slow example is not a wrong one.
settings.register_profile("gate", deadline=None, print_blob=True, max_examples=40)
settings.register_profile("soak", deadline=None, print_blob=True, max_examples=5_000)
settings.load_profile("gate")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu", action="store_true", help="at the end: the processor time by folder, file and test")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("cpu", default=False):
        config.pluginmanager.register(Cpu(config), "cpu")
    # Its entry point is known once redrive is installed anew; an environment may be older than the plugin.
    if not config.pluginmanager.has_plugin("redrive"):
        config.pluginmanager.register(import_module("redrive.testing.plugin"), "redrive")
    # Where workers at servers keep identities: not at home.
    state = tempfile.mkdtemp(prefix="redrive-state-")
    os.environ["XDG_STATE_HOME"] = state
    atexit.register(shutil.rmtree, state, ignore_errors=True)
    # No test asks the cloud that this machine may be in for credentials: where nobody answers, that takes seconds.
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    # In the environment because the xdist workers must draw the same tests from the same seed.
    os.environ.setdefault("TEST_SEED", str(random.SystemRandom().randrange(1_000_000)))
    if "PYTEST_XDIST_WORKER" not in os.environ:
        here = Path(__file__).parent
        compileall.compile_dir(redrive.__path__[0], quiet=2)
        if not sys.dont_write_bytecode and config.option.numprocesses and config.option.assertmode == "rewrite":
            rewrite(config, here)


def pytest_report_header() -> str:
    return f"seed: {os.environ['TEST_SEED']} (TEST_SEED={os.environ['TEST_SEED']} repeats it)"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadGroupScheduling | None:
    if config.getvalue("dist") != "loadgroup":
        return None
    config.option.loadscopereorder = False  # in the order of collection: cheap tests fill the time of the last
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests are made that stay: they need not be looked through for garbage, neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Files of tests have no doctests to look for."""
    return [each for each in (yield) if type(each).__name__ != "DoctestModule"]


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not any(".py" in argument for argument in config.args):
        give_turns(items)
    items.sort(key=begins_late)
    if sys.platform == "linux":
        return
    for item in items:
        if item.get_closest_marker("linux"):
            item.add_marker(pytest.mark.skip(reason="declared Linux-only; CI runs it"))


@pytest.fixture(scope="session", autouse=True)
def _children_find_bytecode_and_write_none() -> None:
    """They start in half the time; and none makes system calls that the next does not, or trusts a file's second."""
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


@pytest.fixture(autouse=True)
def _modules_of_a_test_end_with_it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test imported from a folder of its own: the next has another `tasks`."""
    before = sys.modules.copy()  # in less time than a set of its names
    yield
    if len(sys.modules) == len(before) and next(reversed(sys.modules)) == next(reversed(before)):
        return
    folder = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - before.keys():
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
            del sys.modules[name]


@pytest.fixture(scope="session")
def seed() -> int:
    """The run's seed, shown in the header; derive every random choice from it."""
    return int(os.environ["TEST_SEED"])


@pytest.fixture(scope="session")
def soak() -> bool:
    """True in `make soak`: run the whole of a sweep, not this run's share of it."""
    return os.environ.get("TEST_SOAK") == "1"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server that the tests of this process share, each in a schema of its own. Not to be killed."""
    with PostgresServer(folder=memory_disk()) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_session(postgres_server: PostgresServer) -> Iterator[Any]:
    """A connection to it that tidies up after tests: to open one costs the server more than most tests do."""
    import psycopg

    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("set lock_timeout = '20s'")  # a transaction that a test left open
        yield connection


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis server that the tests of this process share, each in a namespace of its own. Not to be killed."""
    with RedisServer(appendonly=True, folder=memory_disk()) as server:
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """With TEST_MATRIX=FILE each test of a fault adds a row to that file; scripts/reliability makes the page of it."""
    report = yield
    path, marker = os.environ.get("TEST_MATRIX"), item.get_closest_marker("fault")
    if path and marker and (report.when == "call" or not report.passed):
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        row = {
            "fault": marker.args[0],
            "store": marker.kwargs.get("store") or parameters.get("place") or parameters.get("server") or "sqlite",
            "test": item.nodeid.partition("[")[0],
            "outcome": report.outcome,
            "figures": dict(item.user_properties),
            "seed": int(os.environ["TEST_SEED"]),
            "soak": os.environ.get("TEST_SOAK") == "1",
        }
        with Path(path).open("a") as file:
            file.write(json.dumps(row) + "\n")
    return report
