"""What users of other queues type first is answered with what it is called here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redrive import App

app = App("memory://")


@app.task(name="push")
def push(record: int) -> None: ...


typed: Any = push


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: typed.delay(1), r"write enqueue\(…\)"),
        (lambda: typed.apply_async((1,), countdown=3), r'write enqueue\(…\), or using\(delay="30s"\)\.enqueue\(…\)'),
        (lambda: typed.using(queue="bulk").delay(1), r"write enqueue\(…\)"),
        (lambda: typed.s(1), r"write draft\(…\)"),
    ],
)
def test_a_method_of_another_queue_is_answered_with_ours(call: Callable[[], object], meant: str) -> None:
    with pytest.raises(AttributeError, match=meant):
        call()


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: typed.using(countdown=3), r'using\(…\) has no option countdown=; write delay="30s"'),
        (lambda: typed.using(dellay=3), r"using\(…\) has no option dellay=; write delay=…"),
        (lambda: typed.enqueue(1, countdown=3), r'; write using\(delay="30s"\)\.enqueue'),
        (
            lambda: typed.app.task(max_retries=3),
            r"no option max_retries=; write retry=Retry\(max_attempts=…\), which counts",
        ),
        (lambda: typed.app.task(bind=True), r"no option bind=; write ctx=True"),
        (lambda: typed.app.task(tiemout="5m"), r"no option tiemout=; write timeout=…"),
        (lambda: typed.app.task(zzz=1), r"no option zzz=; write ctx\|queue\|timeout\|"),
    ],
)
def test_an_option_of_another_queue_is_answered_with_ours(call: Callable[[], object], meant: str) -> None:
    with pytest.raises(TypeError, match=meant):
        call()


def test_an_attribute_that_no_queue_has_is_missing_as_usual() -> None:
    assert not hasattr(push, "colour")
    with pytest.raises(AttributeError, match=r"^a task has no attribute 'colour'$"):
        assert typed.colour
