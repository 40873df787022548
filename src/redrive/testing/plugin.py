"""The pytest plugin: fixture `rd`, a `redrive.testing.Kit` for each test that asks for it.

pytest loads it in every run on a machine that has redrive, so it imports nothing of redrive until the fixture is used.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .kit.kit import Kit

APP = "redrive_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(APP, "MODULE:APP, the redrive app whose tasks the rd fixture puts in its own store", default="")


@pytest.fixture
def rd(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """A `redrive.testing.Kit`: a store of this test's own, on a clock that jumps through delays.

    The ini option `redrive_app = "module:app"` puts that app in it; else call `rd.use(app)`.
    """
    from .kit.kit import Kit

    with Kit() as kit:
        spec = request.config.getini(APP)
        if spec:
            kit.use(_load(spec))
        yield kit


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the report of the test's kit to the report of a failed test."""
    report = yield
    kit: Any = getattr(item, "funcargs", {}).get("rd")
    if report.failed and report.when == "call" and hasattr(kit, "report"):
        report.sections.append(("redrive", kit.report()))
    return report


def _load(spec: str) -> Any:
    module_name, _, path = spec.partition(":")
    try:
        loaded: Any = import_module(module_name)
        for name in path.split("."):
            loaded = getattr(loaded, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise pytest.UsageError(
            f"{APP} = {spec!r} names no app: {error}; expected MODULE:APP, such as 'tasks:app', where the tests can "
            "import MODULE (see pytest's `pythonpath` setting)"
        ) from error
    from ..app import App

    if not isinstance(loaded, App):
        raise pytest.UsageError(f"{APP} = {spec!r} names a {type(loaded).__name__}; expected a redrive.App")
    return loaded
